"""Observations of one job, and what the planner answers to them."""

import copy
from dataclasses import replace
from typing import Any

import yaml

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observed import objects, observation
from atoll_operator.kube.observed.observation import Observation, Pod, Remembered, Workload
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.planner import plan
from unit.kube.cluster_values import (
    MANIFEST,
    SETTINGS,
    children,
    job,
    learner,
    node,
    reply,
    shard,
    stored,
)

NOW = 1_800_000_000.0

CHANGES = ("spec.syncer.shards=1",)


def raw(**metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST)
    found["metadata"] |= {"namespace": "demo", "uid": "job-uid", "generation": 1} | metadata
    return found


def applied(*changes: str) -> list[dict[str, Any]]:
    """The children as they are once everything has been applied and observed."""
    found = copy.deepcopy(children(*CHANGES, *changes).objects())
    for each in found:
        each["metadata"] |= {"uid": f"uid-{each['metadata']['name']}", "generation": 1}
        each["status"] = {"observedGeneration": 1}
    return found


def workloads_of(live: list[dict[str, Any]]) -> dict[str, Workload]:
    found = [each for each in live if each["kind"] in ("StatefulSet", "Deployment")]
    return {child["metadata"]["name"]: objects.workload(child) for child in found}


def seen(*changes: str, pods: tuple[Pod, ...] = (), **more: Any) -> Observation:
    """A job whose children are applied, with these pods on nodes that are well."""
    live = more.pop("children", applied(*changes))
    remembered = more.pop("remembered", Remembered(replies=(None,)))
    fields: dict[str, Any] = {
        "at": 1000.0,
        "raw": raw(),
        "job": job(*CHANGES, *changes),
        "accepted": stored(*CHANGES, *changes),
        "children": tuple(live),
        "pods": pods,
        "workloads": {
            child["metadata"]["name"]: objects.workload(child)
            for child in live
            if child["kind"] in observation.WORKLOADS
        },
        "nodes": {name: node(name) for name in ("n1", "n2", "n3")},
        "remembered": remembered,
    }
    return Observation(**(fields | more))


def planned(found: Observation) -> Plan:
    return plan(found, SETTINGS, NOW)


def answers(registrar: pb.StatusReply, **more: Any) -> Remembered:
    return Remembered(replies=(registrar,), registrar_address="ip:7700", **more)


def template_of(found: Observation, region: str) -> str:
    return found.workloads[f"tiny-{region}"].template


def lost(**more: Any) -> Observation:
    return seen(
        pods=(learner("us-east-0", "n1"), shard(0, "n2")),
        nodes={"n1": node("n1", silent=30, renewed="10:00"), "n2": node("n2")},
        lease_ages={"n1": 30.0},
        remembered=answers(reply(us_east_0="Lost")),
        **more,
    )


def settled(found: Observation) -> Observation:
    """The next pass: what was planned has been applied, and its controllers have seen it."""
    changed = {objects.key_of(each): each for each in planned(found).children.apply}
    live = [copy.deepcopy(changed.get(objects.key_of(each), each)) for each in found.children]
    for each in live:
        each["metadata"] |= {"generation": 2}
        each["status"] = {"observedGeneration": 2}
    return replace(found, children=tuple(live), workloads=workloads_of(live))
