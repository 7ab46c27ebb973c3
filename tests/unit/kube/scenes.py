"""A job of one shard at one moment, in words, and what the plan does about it.

    us-east-0 us-east-1 @n1 old aged=10    pods of two learners: their node, flags and fields
    us-east-0/* going                      all hosts of a learner; us-east-0/1: host 1
    shard @n2 unready                      the pod of shard 0; shard-b: another pod of it
    Training us-east-0 eu-west-0:uid=x     slots as the registrar shows them, with more fields
    Training all                           every slot of the manifest
    syncer recovering                      the state of the shard; without any word it is silent
    n1 n2 silent=30                        nodes; others of n0 to n5 are well
    set us-east unobserved                 a StatefulSet that is otherwise as it is wanted

Parts of a scene stand between semicolons. A pod runs on n0 and has the present template.
"""

import re
from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_operator.kube.observed.observation import Node, Observation, Pod, workload_name
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.planner import plan
from unit.kube.cluster_values import SETTINGS, node, reply
from unit.kube.planner_side import NOW, answers, seen

POD = re.compile(
    r"(?:(?P<region>[a-z]+-[a-z]+)-(?P<ordinal>\d+)|shard(?:-b)?|evaluator)(?:/(?P<host>.))?"
)
STATES = {"Joining", "Training", "Stalled", "Recovering", "Lost", "Left"}
FLAGS: dict[str, dict[str, Any]] = {
    "old": {"template": "old"},
    "going": {"terminating": True},
    "runs": {"runs": True},
    "unready": {"ready": False},
    "waits": {"ready": False, "runs": True, "started": True},  # for its turn
    "pending": {"phase": "Pending", "node": ""},
    "evicted": {"phase": "Failed", "ready": False},
    "gated": {"gated": True},
    "marked": {"gated": True, "trains": True},
    "crashes": {"waiting": "CrashLoopBackOff", "exit_code": 139, "restarts": 5, "ready": False},
    "down": {"ready": False},
    "unobserved": {"observed": False},
    "queued": {"queued": True},
    "booting": {"ready": False, "never_ready": True},
    "out": {"out_of_service": True},
    "recovering": {"state": pb.SHARD_RECOVERING},
    "serves": {},
    "complete": {"state": pb.SHARD_COMPLETE},
    "measured": {"state": pb.SHARD_COMPLETE, "final": True},
}
NAMES = {
    "exit": "exit_code", "said": "exit_message", "waits": "waiting", "off": "excluded",
    "silent": "silent_seconds", "for": "not_ready_seconds", "gen": "owner_generation",
    "owner": "owner_uid",
}  # fmt: skip


def scene(text: str, *changes: str, **remembered: Any) -> Observation:
    """What a pass observes; `changes` are of the manifest."""
    found = seen(*changes)
    assert found.job is not None
    nodes: dict[str, Node] = {f"n{number}": node(f"n{number}") for number in range(6)}
    sets = dict(found.workloads)
    pods: list[Pod] = []
    slots: dict[str, tuple[str, dict[str, Any]]] = {}
    syncer: dict[str, Any] | None = None
    for part in filter(None, map(str.split, text.split(";"))):
        named = [each for each in part if POD.fullmatch(each)]
        if part[0] in STATES:
            every = found.job.spec.slots if part[1:] == ["all"] else part[1:]
            for each in every:
                slot, _, given = each.partition(":")
                slots[slot] = (part[0], _fields(given.split(",") if given else []))
            syncer = syncer or {}
        elif part[0] == "set":
            name = f"tiny-{part[1]}"
            sets[name] = replace(sets[name], **_fields(part[2:]))
        elif named:
            fields = _fields(part[len(named) :])
            for each in named:
                pods += _pods(each, found, fields)
        elif part[0] == "syncer":
            syncer = (syncer or {}) | _fields(part[1:])
        else:
            of = [each for each in part if each in nodes]
            for name in of:
                known = nodes.pop(name)
                if part[-1] != "gone":
                    nodes[name] = replace(known, **_fields(part[len(of) :]))
    memory = found.remembered
    if syncer is not None:
        registrar = reply(**{slot.replace("-", "_"): state for slot, (state, _) in slots.items()})
        for name, value in syncer.items():
            on = registrar.evaluation if name == "final" else registrar
            setattr(on, name, value)
        for shown in registrar.slots:
            for name, value in slots[shown.slot][1].items():
                setattr(shown, name, value)
        memory = answers(registrar)
    return replace(
        found,
        pods=tuple(pods),
        nodes=nodes,
        workloads=sets,
        lease_ages={name: each.silent_seconds or 0.0 for name, each in nodes.items()},
        remembered=replace(memory, **remembered),
    )


def _fields(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, is_given, value = word.partition("=")
        if word.startswith("@"):
            found["node"] = word[1:]
        elif not is_given:
            found |= FLAGS[word]
        elif name == "off":
            found["excluded"] = tuple(value.split(","))
        elif name == "aged":
            found["made_at"] = NOW - float(value)
        else:
            number = float(value) if re.fullmatch(r"[\d.]+", value) else value.replace("_", " ")
            is_whole = isinstance(number, float) and number.is_integer()
            found[NAMES.get(name, name)] = int(number) if is_whole else number
    return found


def _pods(name: str, found: Observation, fields: dict[str, Any]) -> list[Pod]:
    assert found.job is not None
    given = POD.fullmatch(name)
    assert given is not None
    bare, _, host = name.partition("/")
    numbers = range(found.job.spec.learner.hosts) if host == "*" else [int(host)] if host else [-1]
    made = []
    for number in numbers:
        suffix = f"-{number}" if number >= 0 else ""
        pod = Pod(
            name=f"tiny-{bare}{suffix}", uid=f"uid-{bare}{suffix if number > 0 else ''}",
            role=LEARNER_ROLE, node="n0", phase="Running", ready=True,
        )  # fmt: skip
        if given["region"]:
            pod = replace(pod, region=given["region"], ordinal=int(given["ordinal"]),
                          host=max(number, 0), has_own_set=number >= 0)  # fmt: skip
        else:
            role = SHARD_ROLE if bare.startswith("shard") else bare
            pod = replace(pod, role=role, shard=0, address=f"ip-{bare}")
        live = found.workloads.get(workload_name("tiny", pod))
        made.append(replace(pod, **({"template": live.template if live else ""} | fields)))
    return made


def decided(text: str, *changes: str, settings: Any = SETTINGS, **more: Any) -> Plan:
    """The plan for a scene."""
    return plan(scene(text, *changes, **more), settings, NOW)


def names(found: Any) -> str:
    """Pods of replacements or deletions, without the name of the job."""
    pods = (each.pod if hasattr(each, "pod") else each for each in found)
    return " ".join(each.name.removeprefix("tiny-") for each in pods)
