"""A plan of faults as a Workflow of Chaos Mesh, for the pods of a job.

Its templates are PodChaos, NetworkChaos, StressChaos and IOChaos, each behind a wait until its
time. Chaos Mesh ends a fault at the deadline of its template.

`any` becomes Chaos Mesh's mode `one`, which draws a pod when the fault begins; the times of `every`
are drawn here, as `atoll run` draws them.
"""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atoll_operator.kube import names
from atoll_operator.local.chaos.plan import (
    ANY,
    ANY_LEARNER,
    ANY_SHARD,
    LINKS,
    SECOND,
    SHARD,
    FaultPlan,
    FaultWord,
    PlannedFault,
)
from atoll_protos.errors import SpecError
from atoll_protos.names import Label, split_slot

Object = dict[str, Any]

API_VERSION: Final = "chaos-mesh.org/v1alpha1"
ENTRY: Final = "faults"
MOMENT: Final = "5s"  # of what does not last, such as a kill
KINDS: Final = {
    FaultWord.KILL: "PodChaos",
    FaultWord.SLOW_CPU: "StressChaos",
    **dict.fromkeys(LINKS, "NetworkChaos"),
    **dict.fromkeys((FaultWord.FILL_DISK, FaultWord.LOSE_STORE), "IOChaos"),
}
FIELDS: Final = {
    "PodChaos": "podChaos",
    "StressChaos": "stressChaos",
    "NetworkChaos": "networkChaos",
    "IOChaos": "ioChaos",
}
WRITING: Final = ["write", "create", "mkdir"]  # what fails on a full disk
QUEUE_BYTES: Final = 20 << 20  # that wait at a link of a limited rate
BURST_BYTES: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of a job by their labels; with `hosts`, each learner has several of them."""

    job: str
    hosts: bool = False

    def of(self, target: str) -> Object:
        """`selector` and `mode` of a target; raises SpecError for what is no slot."""
        labels: dict[str, str] = {Label.JOB: self.job}
        if target == ANY:
            roles = [names.LEARNER_ROLE, names.SHARD_ROLE]
            some = {"key": Label.ROLE, "operator": "In", "values": roles}
            return _selected("one", labels, expressionSelectors=[some])
        if target == ANY_LEARNER:
            return _selected("one", labels | {Label.ROLE: names.LEARNER_ROLE})
        if target == ANY_SHARD:
            return _selected("one", labels | {Label.ROLE: names.SHARD_ROLE})
        if SHARD.fullmatch(target) or SECOND.fullmatch(target):
            _, number, *process = target.split("-")
            shard = {Label.ROLE: names.SHARD_ROLE, Label.SHARD: number}
            second = {Label.PROCESS: process[0]} if process else {}
            return _selected("all", labels | shard | second)
        region, ordinal = split_slot(target)
        one = {Label.REGION: region, names.POD_INDEX_LABEL: str(ordinal)}
        learner = {Label.SLOT: target} if self.hosts else one
        return _selected("all", labels | {Label.ROLE: names.LEARNER_ROLE} | learner)


def workflow(plan: FaultPlan, pods: Pods, namespace: str) -> tuple[Object, list[str]]:
    """The Workflow, and what of the plan Chaos Mesh has no word for, in words."""
    templates: list[Object] = []
    left_out, steps = [], []
    for number, (planned, draw) in enumerate(plan.draws()):
        if planned.word not in KINDS:
            left_out.append(f"{planned.place}: Chaos Mesh has no word for {planned.word}")
            continue
        for turn, at in enumerate(planned.times(draw)):
            name = f"fault-{number}-{turn}"
            steps.append(name)
            templates += _step(name, at, planned, pods)
    metadata = {"name": f"{pods.job}-chaos"} | ({"namespace": namespace} if namespace else {})
    entry = {"name": ENTRY, "templateType": "Parallel", "children": steps}
    body = {"entry": ENTRY, "templates": [entry, *templates]}
    found = {"apiVersion": API_VERSION, "kind": "Workflow", "metadata": metadata, "spec": body}
    return found, left_out


def _selected(mode: str, labels: Mapping[str, str], **more: Any) -> Object:
    return {"mode": mode, "selector": {"labelSelectors": dict(labels), **more}}


def _step(name: str, at: float, planned: PlannedFault, pods: Pods) -> Sequence[Object]:
    kind = KINDS[planned.word]
    lasts = f"{planned.seconds:g}s" if planned.seconds else MOMENT
    wait = {"name": f"{name}-wait", "templateType": "Suspend", "deadline": f"{at:.3f}s"}
    fault = {"name": f"{name}-{planned.word.lower()}", "templateType": kind, "deadline": lasts}
    children = [wait["name"], fault["name"]]
    return [
        {"name": name, "templateType": "Serial", "children": children},
        wait,
        fault | {FIELDS[kind]: _spec(planned, pods)},
    ]


def _spec(planned: PlannedFault, pods: Pods) -> Object:
    word, amount = planned.word, planned.amount
    of_disk = word in (FaultWord.FILL_DISK, FaultWord.LOSE_STORE)
    words = [ANY_SHARD if each == ANY and of_disk else each for each in planned.targets]
    try:
        target, *others = (pods.of(each) for each in words)
    except SpecError as error:
        raise SpecError(planned.target_field, error.problem, error.remedy) from error
    link = {"direction": "both", "target": others[0]} if others else {}
    on_disk = {"action": "fault", "volumePath": names.DATA_FOLDER, "percent": 100}
    specs: dict[FaultWord, Object] = {
        FaultWord.KILL: {"action": "pod-kill"},
        FaultWord.SLOW_CPU: {
            "stressors": {"cpu": {"workers": 1, "load": round(100 * (1 - amount))}}
        },
        FaultWord.CUT: {"action": "partition"},
        FaultWord.DELAY: {"action": "delay", "delay": {"latency": f"{1000 * amount:g}ms"}},
        FaultWord.RATE: {  # Chaos Mesh's bps are bytes a second
            "action": "bandwidth",
            "bandwidth": {
                "rate": f"{amount:.0f}bps",
                "limit": QUEUE_BYTES,
                "buffer": BURST_BYTES,
            },
        },
        FaultWord.CORRUPT: {
            "action": "corrupt",
            "corrupt": {"corrupt": f"{100 / (amount or 1):g}"},
        },
        FaultWord.FILL_DISK: on_disk | {"errno": errno.ENOSPC, "methods": WRITING},
        FaultWord.LOSE_STORE: on_disk | {"errno": errno.EIO},
    }
    return target | link | specs[word]
