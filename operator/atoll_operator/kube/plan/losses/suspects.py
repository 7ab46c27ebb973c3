"""Learners that do not work where they are, while others of the job do.

docs/operating.md (Learners that do not work where they are) has the rules. The node of one that
crashes is suspected (`exclusions`), and the pod made again elsewhere; one that hangs restarts
(`restarts`). Nothing is done if no other node of the region is well. A GPU that is broken is no
guess: its first end is enough, whether or not others train, and however many nodes are suspected.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status import seen_status
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observed.observation import (
    Observation,
    Pod,
    Workload,
    with_hosts,
    workload_name,
)
from atoll_operator.kube.plan.losses.exclusions import SUSPECT_SECONDS
from atoll_operator.kube.plan.losses.nodes import NodeState, states_of
from atoll_protos.exits import ExitCode

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


def crashing(
    seen: Observation,
    job: Job,
    pods: Sequence[Pod],
    counts: Mapping[str, int],
    now: float,
    *,
    spans_regions: bool,
) -> Suspects:
    """Of `pods`, learners whose GPU is broken, and those that crash again and again where they are.

    The latter only while others train elsewhere.

    `counts`: replacements of the last day, by the learner's name. `now` is in UNIX seconds.
    """
    failure, found, nodes = job.spec.failure, list[Pod](), seen.nodes or {}
    states = states_of(nodes, failure.node_loss_seconds).states
    exhausted: dict[str, None] = {}
    known: dict[str, set[str]] = {}  # by region: learners of several hosts have a set each
    for pod in pods:
        live = seen.workloads.get(workload_name(job.name, pod))
        known.setdefault(pod.region, set()).update(_suspected(live, now) if live else ())
    training = frozenset(slot.uid for slot in seen_status.training(seen.replies) or ())
    elsewhere = {pod.node for pod in pods if pod.uid in with_hosts(training, seen.pods)}
    for pod in pods:
        live = seen.workloads.get(workload_name(job.name, pod))
        crashes = seen.remembered.crashes.get(pod.uid, pod.restarts)
        broken = pod.exit_code == ExitCode.BAD_DEVICE
        if live is None or not _needs_another(pod, live, crashes):
            continue
        if not broken and not elsewhere - {pod.node}:
            continue
        known_here = known[pod.region]
        few = broken or pod.node in known_here or len(known_here) < SUSPECTS_MAX
        others = any(
            name not in {pod.node, *live.excluded}
            and states[name] is NodeState.WELL
            and (not spans_regions or each.region == pod.region)
            for name, each in nodes.items()
        )
        if counts.get(pod.learner, 0) >= failure.max_replacements_per_slot:
            exhausted[pod.learner] = None
        elif pod.node in _suspected(live, now) or (few and others):
            found.append(pod)
            known_here.add(pod.node)
    return Suspects(pods=tuple(found), exhausted=tuple(exhausted))


def _suspected(live: Workload, now: float) -> frozenset[str]:
    return frozenset(n for n, since in live.suspects.items() if now - since < SUSPECT_SECONDS)


def _needs_another(pod: Pod, live: Workload, crashes: int) -> bool:
    """Whether the kubelet alone will not help: the fault is the node's, or may be."""
    if pod.role != LEARNER_ROLE or pod.terminating or pod.ended or not pod.node:
        return False
    if live.queued or pod.template != live.template:  # Kueue's may not be told to keep off the node
        return False
    if pod.exit_code == ExitCode.BAD_DEVICE:
        return True
    return pod.waiting == BACK_OFF and pod.crashed and crashes >= CRASHES


def hung(
    pods: Iterable[Pod], registrar: pb.StatusReply | None, stalled_seconds: Mapping[str, float]
) -> tuple[Pod, ...]:
    """Learners' pods that have long been Stalled (`stalled_seconds`, by UID) while others train."""
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
