"""Learners that do not work where they are, while others of the job do: what is done about them.

The kubelet starts a container that has crashed again, on the same node, for ever; and a process
that hangs is never started again. Both are right for most troubles and wrong for two:

    crashing   a learner that has crashed CRASHES times on one node and is in back-off again, while
               others of the job train: the node is suspected (a broken GPU, a bad disk). The
               StatefulSet keeps off it for an hour (`exclusions`), and the pod is made again
               elsewhere. It counts for failure.maxReplacementsPerSlot, and of one region's nodes
               at most SUSPECTS_MAX are suspected at a time.
    hung       a learner that was Stalled for HUNG_SECONDS without a break, while others train: it
               is restarted, at most once a day (`restarts`)

Of a learner of several hosts the pod is moved whose own process crashes: the others end with 75,
because they have lost it, and that is asked for. Only its own crashes count, not all restarts,
since those are the same on all hosts. A rank that is frozen may be on any host, so all
hosts of a learner that hangs are restarted.

Not the node's fault, and so left to the kubelet, are ends that are permanent or that the process
asks for (`atoll_protos.exits`), and kills from outside, such as for memory. Nor is anything done if
no other node of the region is well: a pod that cannot be scheduled is no better than one that
crashes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.parts import Failure
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observation import Node, Pod, Workload, with_hosts, workload_name
from atoll_operator.kube.plan.exclusions import SUSPECT_SECONDS
from atoll_operator.kube.plan.nodes import NodeState, state_of

CRASHES = 5
SUSPECTS_MAX = 3  # nodes of one region at a time
HUNG_SECONDS = 1800.0
HUNG_STEPS = 100  # a learner whose steps are long is given this many of them
BACK_OFF = "CrashLoopBackOff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Learners that are to be made again on another node, and those that have no budget left."""

    pods: tuple[Pod, ...] = ()
    exhausted: tuple[str, ...] = ()  # names of learners


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the decision about crashing learners rests on."""

    job: str
    pods: Sequence[Pod]
    training: frozenset[str]  # UIDs of pods whose learner trains
    workloads: Mapping[str, Workload]
    region_nodes: Mapping[str, Sequence[Node]]
    counts: Mapping[str, int]  # replacements of the last day, by the learner's name
    failure: Failure
    now: float  # UNIX seconds
    crashes: Mapping[str, int] = field(default_factory=dict)  # of a host's own process, by pod UID


def crashing(scene: Scene) -> Suspects:
    """Learners that crash again and again where they are, while others train elsewhere."""
    found: list[Pod] = []
    exhausted: dict[str, None] = {}
    known = _known(scene)
    elsewhere = {pod.node for pod in scene.pods if pod.uid in scene.training}
    for pod in scene.pods:
        live = scene.workloads.get(workload_name(scene.job, pod))
        if live is None or not _crashes(pod, live, scene) or not elsewhere - {pod.node}:
            continue
        nodes = known[pod.region]
        few = pod.node in nodes or len(nodes) < SUSPECTS_MAX
        if scene.counts.get(pod.learner, 0) >= scene.failure.max_replacements_per_slot:
            exhausted[pod.learner] = None
        elif pod.node in _suspected(live, scene.now) or (few and _has_other(pod, live, scene)):
            found.append(pod)
            nodes.add(pod.node)
    return Suspects(pods=tuple(found), exhausted=tuple(exhausted))


def _known(scene: Scene) -> dict[str, set[str]]:
    """The nodes that are suspected, by region: learners of several hosts have a set each."""
    found: dict[str, set[str]] = {}
    for region, name in {(p.region, workload_name(scene.job, p)) for p in scene.pods}:
        live = scene.workloads.get(name)
        found.setdefault(region, set()).update(_suspected(live, scene.now) if live else ())
    return found


def _suspected(live: Workload, now: float) -> frozenset[str]:
    return frozenset(n for n, since in live.suspects.items() if now - since < SUSPECT_SECONDS)


def _crashes(pod: Pod, live: Workload, scene: Scene) -> bool:
    """Whether the kubelet alone will not help: the fault may be the node's."""
    if pod.role != LEARNER_ROLE or pod.terminating or not pod.node or pod.waiting != BACK_OFF:
        return False
    if live.queued:  # it may not be told to keep off the node
        return False
    if pod.template != live.template or not pod.crashed:
        return False
    return scene.crashes.get(pod.uid, pod.restarts) >= CRASHES


def _has_other(pod: Pod, live: Workload, scene: Scene) -> bool:
    """Whether the region has another node that is well and not excluded."""
    seconds = scene.failure.node_loss_seconds
    return any(
        each.name != pod.node
        and each.name not in live.excluded
        and state_of(each, seconds) is NodeState.WELL
        for each in scene.region_nodes.get(pod.region, ())
    )


def hung(
    pods: Iterable[Pod], registrar: pb.StatusReply | None, stalled_seconds: Mapping[str, float]
) -> tuple[Pod, ...]:
    """The pods of learners that have made no step for very long while others train.

    `stalled_seconds`: for how long the registrar has shown a slot as Stalled, by its pod's UID.
    """
    if registrar is None or all(slot.state != pb.SLOT_TRAINING for slot in registrar.slots):
        return ()
    steps = {slot.uid: slot.step_seconds for slot in registrar.slots}
    heads = frozenset(
        uid
        for uid, seconds in stalled_seconds.items()
        if seconds >= max(HUNG_SECONDS, HUNG_STEPS * steps.get(uid, 0.0))
    )
    every = tuple(pods)
    stuck = with_hosts(heads, every)
    return tuple(
        pod
        for pod in every
        if pod.role == LEARNER_ROLE and not pod.terminating and pod.uid in stuck
    )
