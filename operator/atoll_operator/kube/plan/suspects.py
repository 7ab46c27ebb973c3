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

Not the node's fault, and so left to the kubelet, are ends that are permanent or that the process
asks for (`atoll_protos.exits`), and kills from outside, such as for memory. Nor is anything done if
no other node of the region is well: a pod that cannot be scheduled is no better than one that
crashes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.parts import Failure
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observation import Node, Pod, Workload, workload_name
from atoll_operator.kube.plan.exclusions import SUSPECT_SECONDS
from atoll_operator.kube.plan.nodes import NodeState, state_of
from atoll_protos.exits import is_failure, is_permanent

CRASHES = 5
SUSPECTS_MAX = 3  # nodes of one region at a time
HUNG_SECONDS = 1800.0
HUNG_STEPS = 100  # a learner whose steps are long is given this many of them
BACK_OFF = "CrashLoopBackOff"
KILLED = frozenset({137, 143})  # exit codes of SIGKILL, also for memory, and SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Learners that are to be made again on another node, and those that have no budget left."""

    pods: tuple[Pod, ...] = ()
    exhausted: tuple[str, ...] = ()  # names of pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the decision about crashing learners rests on."""

    job: str
    pods: Sequence[Pod]
    training: frozenset[str]  # UIDs of pods whose slot trains
    workloads: Mapping[str, Workload]
    region_nodes: Mapping[str, Sequence[Node]]
    counts: Mapping[str, int]  # replacements of the last day, by pod name
    failure: Failure
    now: float  # UNIX seconds


def crashing(scene: Scene) -> Suspects:
    """Learners that crash again and again where they are, while others train elsewhere."""
    found, exhausted = [], []
    new: dict[str, set[str]] = {}  # nodes that this decision suspects, by workload
    elsewhere = {pod.node for pod in scene.pods if pod.uid in scene.training}
    for pod in scene.pods:
        live = scene.workloads.get(workload_name(scene.job, pod))
        if live is None or not _crashes(pod, live) or not elsewhere - {pod.node}:
            continue
        known = {
            node for node, since in live.suspects.items() if scene.now - since < SUSPECT_SECONDS
        } | new.setdefault(live.name, set())
        if scene.counts.get(pod.name, 0) >= scene.failure.max_replacements_per_slot:
            exhausted.append(pod.name)
        elif pod.node in known or (len(known) < SUSPECTS_MAX and _has_other(pod, live, scene)):
            found.append(pod)
            new[live.name].add(pod.node)
    return Suspects(pods=tuple(found), exhausted=tuple(exhausted))


def _crashes(pod: Pod, live: Workload) -> bool:
    """Whether the kubelet alone will not help: the fault may be the node's."""
    if pod.role != LEARNER_ROLE or pod.terminating or not pod.node or pod.waiting != BACK_OFF:
        return False
    if pod.template != live.template or pod.restarts < CRASHES or pod.exit_code is None:
        return False
    own = is_failure(pod.exit_code) and not is_permanent(pod.exit_code)
    return own and pod.exit_code not in KILLED


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
    """Learners that have made no step for very long while others train.

    `stalled_seconds`: for how long the registrar has shown a pod's slot as Stalled, by pod UID.
    """
    if registrar is None or all(slot.state != pb.SLOT_TRAINING for slot in registrar.slots):
        return ()
    steps = {slot.uid: slot.step_seconds for slot in registrar.slots}
    return tuple(
        pod
        for pod in pods
        if pod.role == LEARNER_ROLE
        and not pod.terminating
        and stalled_seconds.get(pod.uid, 0.0)
        >= max(HUNG_SECONDS, HUNG_STEPS * steps.get(pod.uid, 0.0))
    )
