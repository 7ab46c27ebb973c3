"""Values that tests of the Kubernetes executor share."""

from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE, JobOwner
from atoll_operator.kube.observed.objects import key_of
from atoll_operator.kube.observed.observation import Node, Pod
from atoll_operator.kube.plan.children import JobChildren
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.replacements import Exclusions
from atoll_operator.kube.settings import Settings

MANIFEST = """
apiVersion: atoll.dev/v1alpha1
kind: DecoupledTrainingJob
metadata: {name: tiny}
spec:
  steps: 600
  regions: [{name: us-east, learners: 2}, {name: eu-west}]
  syncer: {shards: 2}
  sync: {fragments: 4, period: 16}
  evaluator: {everySteps: 50}
"""
SETTINGS = Settings(worker_image="worker:1", syncer_image="syncer:1")
OWNER = JobOwner(namespace="demo", name="tiny", uid="job-uid")
EVERYTHING = Running(learners=True, shards=True, evaluator=True)


def job(*changes: str) -> Job:
    return parse(MANIFEST, changes)


def stored(*changes: str) -> dict[str, Any]:
    """The job's spec as the API server has it."""
    found: dict[str, Any] = job(*changes).spec.model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    return found


def children(
    *changes: str,
    running: Running = EVERYTHING,
    exclusions: Exclusions = Exclusions(),  # noqa: B008
    settings: Settings = SETTINGS,
    **more: Any,
) -> JobChildren:
    return JobChildren(
        job=job(*changes), owner=OWNER, settings=settings, running=running, exclusions=exclusions,
        manifest=stored(*changes), **more,
    )  # fmt: skip


Objects = dict[tuple[str, str], dict[str, Any]]


def keyed(*changes: str, **more: Any) -> Objects:
    """The children by kind and name."""
    return {key_of(each): each for each in children(*changes, **more).objects()}


def template(found: Objects, kind: str, name: str) -> dict[str, Any]:
    inner: dict[str, Any] = found[kind, name]["spec"]["template"]
    return inner


def first_container(pod: dict[str, Any]) -> dict[str, Any]:
    """The first container of a template, with what its variables hold in place of their list."""
    found: dict[str, Any] = pod["spec"]["containers"][0]
    env = {
        each["name"]: each.get("value")
        or each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        for each in found["env"]
    }
    return found | env


def learner(name: str, node: str, **more: Any) -> Pod:
    """`us-east-0` on a node."""
    region, _, ordinal = name.rpartition("-")
    fields: dict[str, Any] = {"phase": "Running", "uid": f"uid-{name}", "ready": True} | more
    return Pod(
        name=f"tiny-{name}",
        role=LEARNER_ROLE,
        region=region,
        ordinal=int(ordinal),
        node=node,
        **fields,
    )


def hosts(name: str, *nodes: str, **more: Any) -> list[Pod]:
    """The pods of `us-east-0`, a learner with a host on each of these nodes; the first has its UID.

    A value of `more` that is a tuple has one for each host.
    """
    return [
        replace(
            learner(name, node),
            name=f"tiny-{name}-{host}",
            host=host,
            has_own_set=True,
            uid=f"uid-{name}-{host}" if host else f"uid-{name}",
            **{key: each[host] if isinstance(each, tuple) else each for key, each in more.items()},
        )
        for host, node in enumerate(nodes)
    ]


def shard(number: int, node: str, **more: Any) -> Pod:
    fields: dict[str, Any] = {
        "phase": "Running",
        "uid": f"uid-shard-{number}",
        "ready": True,
    } | more
    return Pod(name=f"tiny-syncer-{number}-x", role=SHARD_ROLE, shard=number, node=node, **fields)


def node(name: str, region: str = "us-east", silent: float = 1.0, **more: Any) -> Node:
    return Node(name=name, region=region, silent_seconds=silent, **more)


def reply(**slots: str) -> pb.StatusReply:
    """A serving registrar with slots `us_east_0="Training"`."""
    shown = [
        pb.SlotStatus(
            slot=name.replace("_", "-"), state=f"SLOT_{state.upper()}",
            uid=f"uid-{name.replace('_', '-')}",
            loss=2.5, tokens=100, tokens_here=100, step_seconds=0.5,
        )
        for name, state in slots.items()
    ]  # fmt: skip
    return pb.StatusReply(
        run="r1",
        state=pb.SHARD_SERVING,
        tick=60,
        steps=600,
        slots=shown,
        trained=100 * len(shown),
        ticks_per_second=2.0,
        epoch=1,
    )
