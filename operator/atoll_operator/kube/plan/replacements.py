"""Which pods are made again elsewhere, and when the operator holds (docs/operating.md, Lost nodes).

Two facts must agree before a pod is replaced, because each alone is often wrong: its *session is
dead* at the syncer (`sessions.judge`), and its *node is lost* at the API server (`nodes`). When the
syncer cannot be asked, a silent Lease is not enough.

Of a learner of several hosts each pod is judged by its own node. Budgets go by learner (`counts`).

In a storm (`nodes.storm`) nothing of that region is replaced, and while it settles, for
nodeLossSeconds, any lost node still holds, because nodes return one after the other.

    chosen (`placement_of`) ──> the template excludes the node (`exclusions`, applied)
      ──> the controller has observed that template ──> the Lease is still silent at the API server
      ──> the slot's owner is retired (SetOwner) ──> deleted, grace 0, with a UID precondition
      ──> made again elsewhere ──> named owner (SetOwner) ──> trains (`works_again`)

Learners that do not work where they are, while others of the job do.

docs/operating.md (Learners that do not work where they are) has the rules. The node of one that
crashes is suspected (`exclusions`), and the pod made again elsewhere; one that hangs restarts
(`restarts`). Nothing is done if no other node of the region is well. A GPU that is broken is no
guess: its first end is enough, whether or not others train, and however many nodes are suspected.

The nodes that templates exclude: lost ones, and ones on which a learner crashes.

After 20 s the scheduler still takes a dead node for a good one, and a node with a broken GPU is
Ready. So before a pod is deleted its workload excludes the node, and the delete waits until the
controller has seen that (`is_excluded`). A lost node is excluded from the first replacement on
until it is well again, a suspected one for SUSPECT_SECONDS, which an annotation of the StatefulSet
remembers.

Kueue refuses a change of the affinity of a workload that it has admitted, so what it queues
(`queued`) excludes no other node: the delete waits until the Node is NotReady. Kueue also keeps a
finalizer on a pod until it has ended, and looks at it only when the StatefulSet changes, so the set
gets the UIDs of such pods as an annotation (`ended`; see KUEUE_MAY_END in `pods`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.fields import FailureSpec
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status import job_status
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE, Annotation
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.observation import (
    Node,
    Observation,
    Pod,
    Replaced,
    Replacement,
    Workload,
    by_workload,
    is_followed,
    with_hosts,
    with_region,
    workload_name,
)
from atoll_operator.kube.plan.nodes import NodeState, Storm, Tally, states_of, storm
from atoll_operator.kube.plan.sessions import Sessions
from atoll_protos.exits import ExitCode

DEAD_IN_WORDS = {
    LEARNER_ROLE: ", and no shard hears the learner",
    SHARD_ROLE: ", and the shard does not answer",
}
FOLLOWED = ", and another pod serves the shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToReplace:
    """A pod to delete, so that its controller makes it again on another node."""

    pod: Pod
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is to be done about lost nodes."""

    replace: tuple[ToReplace, ...] = ()
    held: tuple[Storm, ...] = ()  # storms that keep a pod from being replaced
    exhausted: tuple[str, ...] = ()  # names of learners without replacements left
    lost: Mapping[str, NodeState] = field(default_factory=dict)  # by node
    storms: tuple[str, ...] = ()  # regions with too many lost nodes right now
    suspected: tuple[Pod, ...] = ()  # learners that crash where they are (`suspects`)


def placement_of(
    seen: Observation,
    job: Job,
    judged: Sessions,
    counts: Mapping[str, int],
    *,
    spans_regions: bool,
) -> Placement:
    """Replace each pod whose session is dead and whose node is lost, unless a storm holds it.

    `counts`: replacements of the last day, by the learner's name. `spans_regions`: the label of a
    node tells its region, else all are of each.
    """
    failure, nodes = job.spec.failure, seen.nodes or {}
    seconds = failure.node_loss_seconds
    of_nodes = states_of(nodes, seconds)
    states, lost = of_nodes.states, dict(of_nodes.lost)
    tallies = {
        each.name: of_nodes.tally(each.name, spans_regions=spans_regions)
        for each in job.spec.regions
    }
    released = Annotation.RELEASE_HOLD in (seen.raw["metadata"].get("annotations") or {})
    ages = seen.remembered.storm_seconds
    settling = {region for region, since in ages.items() if since < seconds}
    storms = _storms(tallies, failure, settling, released=released)
    replaced: list[ToReplace] = []
    exhausted: dict[str, None] = {}
    held: dict[str, Storm] = {}
    for bare in seen.pods:
        if not bare.node or (bare.ended and bare.role != LEARNER_ROLE):
            continue  # the ended pod of a learner counts: a StatefulSet waits for its name
        pod = with_region(bare, job.spec.syncer_region)
        state = states.get(pod.node, NodeState.GONE)
        if state is NodeState.GONE:
            lost[pod.node] = state
        node = nodes.get(pod.node)
        if not _is_lost(pod, state, node, judged, seconds):
            continue
        if pod.region in storms and node is not None and not node.out_of_service:
            held[pod.region] = storms[pod.region]
        elif counts.get(pod.learner, 0) >= failure.max_replacements_per_slot:
            exhausted[pod.learner] = None
        else:
            reason = f"its node {pod.node} is {state}"
            if pod.uid in judged.dead:
                reason += FOLLOWED if is_followed(pod, seen.pods) else _dead_in_words(pod)
            replaced.append(ToReplace(pod=pod, reason=reason))
    return Placement(
        replace=tuple(replaced),
        held=tuple(held.values()),
        exhausted=tuple(exhausted),
        lost=lost,
        storms=tuple(_storms(tallies, failure, (), released=released)),
    )


def _storms(
    tallies: Mapping[str, Tally], failure: FailureSpec, settling: Collection[str], *, released: bool
) -> dict[str, Storm]:
    found = {
        region: storm(region, counted, failure, released=released, settling=region in settling)
        for region, counted in tallies.items()
    }
    return {region: each for region, each in found.items() if each is not None}


def _dead_in_words(pod: Pod) -> str:
    if pod.role == LEARNER_ROLE and not pod.is_head:
        return ", and its learner does not train"
    return DEAD_IN_WORDS.get(pod.role, "")


def _is_lost(
    pod: Pod, state: NodeState, node: Node | None, judged: Sessions, loss_seconds: float
) -> bool:
    if not state.lost:
        return False
    if pod.uid in judged.dead:
        return True
    if pod.uid not in judged.unseen or state is NodeState.SILENT:
        return False
    if node is None or node.out_of_service:
        return True
    return node.not_ready_seconds >= loss_seconds


def counts(
    job: str, pods: Iterable[Pod], workloads: Mapping[str, Workload], now: float
) -> dict[str, int]:
    """Replacements of the last day by learner's name; `now` is in UNIX seconds.

    Of several hosts that of the one replaced most often counts. A replacement that is under way is
    already in the annotation, and not counted against itself. Of a job that is suspended or over
    nothing is made again, so nothing is counted against the pods that it still has.
    """
    found: dict[str, int] = {}
    for pod in pods:
        live = workloads.get(workload_name(job, pod))
        if live is None or not live.replicas or pod.role != LEARNER_ROLE:
            continue
        noted = live.replaced.get(pod.index, Replaced())
        own = noted.within_a_day(now) - (noted.uid == pod.uid)
        found[pod.learner] = max(own, found.get(pod.learner, 0))
    return found


def works_again(each: Replacement, pods: Iterable[Pod], training: frozenset[str]) -> bool:
    """Whether the successor of a replaced pod serves, or is of a learner in `training` (UIDs)."""
    if each.role == LEARNER_ROLE:
        new = [pod for pod in pods if pod.name == each.name and pod.uid != each.old_uid]
        return any(pod.uid in training and pod.ready for pod in new)
    new = [pod for pod in pods if (pod.role, pod.shard) == (each.role, each.shard)]
    return any(pod.ready and not pod.terminating and pod.uid != each.old_uid for pod in new)


SUSPECT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    """What nodes change in the workloads, by a workload's name."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)  # text of Annotation.REPLACED
    suspects: Mapping[str, str] = field(default_factory=dict)  # text of Annotation.SUSPECTS
    ended: Mapping[str, str] = field(default_factory=dict)  # text of Annotation.ENDED


def exclusions(
    job: str,
    workloads: Mapping[str, Workload],
    placement: Placement,
    pods: Sequence[Pod],
    *,
    now: float,
    known: bool = True,
) -> Exclusions:
    """What every workload excludes; `now` is in UNIX seconds.

    `known`: the nodes have been listed; before that everything stays as it is. A Deployment keeps
    what it has as long as its pod is on a node that is not lost, because a changed template
    restarts the shard. Nothing can be scheduled on a deleted node: it is not excluded.
    """
    stand = {workload_name(job, pod) for pod in pods if pod.node and not pod.ended}
    lost = {n for n, state in placement.lost.items() if state is not NodeState.GONE}
    moved, suspected = (
        by_workload(job, found)
        for found in ([each.pod for each in placement.replace], placement.suspected)
    )
    excluded: dict[str, tuple[str, ...]] = {}
    replaced: dict[str, str] = {}
    suspects: dict[str, str] = {}
    ended: dict[str, str] = {}
    for name, live in workloads.items():
        suspicion = _suspicion(live, suspected.get(name, []), placement, now)
        kept = set(live.excluded)
        if known and (live.kind == "StatefulSet" or name not in stand):
            kept &= lost
        if name in moved:
            kept |= lost
        excluded[name] = live.excluded if live.queued else tuple(sorted(kept | suspicion.keys()))
        suspects[name] = objects.of_suspects(suspicion)
        noted = dict(live.replaced)
        for pod in (*moved.get(name, []), *suspected.get(name, [])) if live.replicas else ():
            before = noted.get(pod.index, Replaced())
            if before.uid != pod.uid:
                noted[pod.index] = before.once_more(pod.uid, now)
        replaced[name] = objects.of_replaced(noted)
        held = [p.uid for p in moved.get(name, ()) if live.queued and p.ended and p.terminating]
        ended[name] = ",".join(sorted(held))
    return Exclusions(nodes=excluded, replaced=replaced, suspects=suspects, ended=ended)


def _suspicion(
    live: Workload, suspected: Iterable[Pod], placement: Placement, now: float
) -> dict[str, int]:
    """Since when each node is suspected; without those whose time is over, or that are gone."""
    found = {
        node: since
        for node, since in live.suspects.items()
        if abs(now - since) < SUSPECT_SECONDS and placement.lost.get(node) is not NodeState.GONE
    }
    for pod in suspected:
        found.setdefault(pod.node, int(now))
    return found


def is_excluded(each: ToReplace, live: Workload | None, lost: Mapping[str, NodeState]) -> bool:
    """Whether the pod may be deleted: its controller would not use the lost node again."""
    state = lost.get(each.pod.node)
    if state is NodeState.GONE or (live and live.queued and state is NodeState.NOT_READY):
        return True
    return keeps_off(each.pod.node, live)


def keeps_off(node: str, live: Workload | None) -> bool:
    return live is not None and live.observed and node in live.excluded


def stranded(pod: Pod, live: Workload | None) -> bool:
    """Whether a StatefulSet's pod waits, and excludes a node that its template allows again."""
    if live is None or live.kind != "StatefulSet" or not live.observed:
        return False
    waits = not pod.node and not pod.terminating and not pod.ended
    return waits and any(node not in live.excluded for node in pod.excluded)


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
    training = frozenset(slot.uid for slot in job_status.training(seen.replies) or ())
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
