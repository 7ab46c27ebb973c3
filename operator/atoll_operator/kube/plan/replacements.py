"""Lost nodes and learners that do not work where they are: what is made again.

docs/operating.md (Lost nodes; Learners that do not work where they are) has the rules,
docs/architecture.md the states of a node, which are computed afresh in every pass (`state_of`).

The kubelet writes `renewTime` by its own clock, so only *changes* of it are used, timed by the
operator's monotonic clock (`Leases`). A Lease is silent when it has not changed for
max(nodeLossSeconds, half of its duration), and 15 % of a renewal more: renewals jitter, and nodes
that fell together must all be overdue before the first counts as lost. After a gap in the
operator's own watch every Lease gets one whole renewal more.

Two facts must agree before a pod is replaced, because each alone is often wrong: its *session is
dead* at the syncer (`situation.judge`), and its *node is lost* at the API server. When the syncer
cannot be asked, a silent Lease is not enough. Of a learner of several hosts each pod is judged by
its own node; budgets go by learner (`counts`). In a *storm* nothing of that region is replaced, and
for nodeLossSeconds after it any lost node still holds, as nodes return one after the other.

    chosen (`placement_of`) ──> the template excludes the node (`exclusions`, applied)
      ──> the controller has observed that template ──> the Lease is still silent at the API server
      ──> the slot's owner is retired (SetOwner) ──> deleted, grace 0, with a UID precondition
      ──> made again elsewhere ──> named owner (SetOwner) ──> trains (`works_again`)

The template excludes the node first, because the scheduler takes a dead node for a good one for
20 s, and a node with a broken GPU is Ready. A lost node is excluded until it is well again. The
node of a learner that crashes is *suspected*, and excluded for SUSPECT_SECONDS, which an annotation
of the StatefulSet remembers; nothing is done if no other node of the region is well. A broken GPU
is no guess: its first end is enough, whether or not others train. One that hangs restarts.

Kueue refuses a change of the affinity of a workload that it has admitted, so what it queues
(`queued`) excludes no other node: the delete waits until the Node is NotReady. Kueue also keeps a
finalizer on a pod until it has ended, and looks at it only when the StatefulSet changes, so the set
gets the UIDs of such pods as an annotation (`ended`; see KUEUE_MAY_END in `pods`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

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
    Sessions,
    Workload,
    by_workload,
    is_followed,
    with_hosts,
    workload_name,
)
from atoll_protos.exits import ExitCode

LEASE_SECONDS = 40.0  # Kubernetes' default duration of a node's Lease
RENEWALS_PER_LEASE = 4  # a kubelet renews after a quarter of the duration
RENEWAL_JITTER = 1.15  # and within a few percent of that
STORM_NODES_MIN = 3


# ---------------------------------------------------------------- Leases


@dataclass(slots=True, kw_only=True)
class NodeLease:
    """One node's Lease as it was last seen to change."""

    renewed: str  # renewTime
    seconds: float  # leaseDurationSeconds
    changed_at: float  # monotonic


@dataclass(slots=True, kw_only=True)
class Leases:
    """How long each Lease has been silent. Clocks of other machines are never compared."""

    leases: dict[str, NodeLease] = field(default_factory=dict)  # by node
    settled_at: float = 0.0  # end of the last gap in watching
    unready_at: dict[str, float] = field(default_factory=dict)  # first seen not Ready, by node

    def seen(self, node: str, renewed: str, seconds: float | None, now: float) -> None:
        known = self.leases.get(node)
        if known is None or known.renewed != renewed:
            self.leases[node] = NodeLease(
                renewed=renewed, seconds=seconds or LEASE_SECONDS, changed_at=now
            )

    def gone(self, node: str) -> None:
        self.leases.pop(node, None)
        self.unready_at.pop(node, None)

    def resumed(self, now: float) -> None:
        self.settled_at = now

    def look(self, node: Node, now: float) -> Node:
        if node.ready:
            self.unready_at.pop(node.name, None)
        else:
            since = self.unready_at.setdefault(node.name, now)
            node = replace(node, not_ready_seconds=now - since)
        lease = self.leases.get(node.name)
        if lease is None:
            return node
        return replace(
            node,
            renewed=lease.renewed,
            silent_seconds=now - lease.changed_at,
            settled_seconds=now - self.settled_at,
            lease_seconds=lease.seconds,
        )

    def ages(self, nodes: Iterable[str], now: float) -> dict[str, float]:
        """Seconds of silence by node, also of nodes that are deleted but whose Lease is left."""
        found = {name: self.leases.get(name) for name in nodes}
        return {name: now - lease.changed_at for name, lease in found.items() if lease}


# ---------------------------------------------------------------- nodes


class NodeState(StrEnum):
    """A node, as far as the API server and its Lease show; the values are words for messages."""

    WELL = "well"
    DOUBTFUL = "overdue"  # a renewal is late; soon it is either silent or well
    SILENT = "silent"
    NOT_READY = "not ready"
    GONE = "gone"

    @property
    def lost(self) -> bool:
        return self in (NodeState.SILENT, NodeState.NOT_READY, NodeState.GONE)


def state_of(node: Node | None, loss_seconds: float) -> NodeState:
    """None is a node that does not exist. The module's docstring explains the limits."""
    if node is None:
        return NodeState.GONE
    if node.out_of_service or not node.ready:
        return NodeState.NOT_READY
    if node.silent_seconds is None:
        return NodeState.WELL
    renewal = node.lease_seconds / RENEWALS_PER_LEASE
    limit = max(loss_seconds, node.lease_seconds / 2) + renewal * (RENEWAL_JITTER - 1)
    overdue = node.silent_seconds > renewal * RENEWAL_JITTER
    if node.silent_seconds >= limit and node.settled_seconds >= renewal * RENEWAL_JITTER:
        return NodeState.SILENT
    return NodeState.DOUBTFUL if overdue else NodeState.WELL


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many nodes count for a storm, and how many of them are lost or overdue."""

    nodes: int
    lost: int


def tally(nodes: Iterable[Node], states: Mapping[str, NodeState]) -> Tally:
    """Count a region's nodes. Nodes declared out-of-service are well, new ones do not count."""
    known = [node for node in nodes if not node.never_ready]
    lost = sum(not n.out_of_service and states[n.name] is not NodeState.WELL for n in known)
    return Tally(nodes=len(known), lost=lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStates:
    """What follows from all nodes alone."""

    states: Mapping[str, NodeState]  # by name
    lost: Mapping[str, NodeState]  # those of lost nodes
    tallies: Mapping[str | None, Tally]  # by the region that the label names; None: of all nodes

    def tally(self, region: str, *, spans_regions: bool) -> Tally:
        """Of a region's nodes: those with its label where one cluster spans regions, else all."""
        return self.tallies.get(region if spans_regions else None, Tally(nodes=0, lost=0))


class Census(dict[str, Node]):
    """All nodes at one moment, by name, with what `states_of` works out once for all jobs."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        super().__init__(nodes)
        self.known: dict[float, NodeStates] = {}  # by nodeLossSeconds


def states_of(nodes: Mapping[str, Node], loss_seconds: float) -> NodeStates:
    known = nodes.known if isinstance(nodes, Census) else {}
    if loss_seconds not in known:
        states = {name: state_of(node, loss_seconds) for name, node in nodes.items()}
        regions: dict[str | None, list[Node]] = {None: [*nodes.values()]}
        for each in nodes.values():
            regions.setdefault(each.region, []).append(each)
        known[loss_seconds] = NodeStates(
            states=states,
            lost={name: state for name, state in states.items() if state.lost},
            tallies={region: tally(found, states) for region, found in regions.items()},
        )
    return known[loss_seconds]


# ---------------------------------------------------------------- storms


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Too many nodes of one region at once: more likely a network than the nodes."""

    region: str
    lost: int
    nodes: int

    @property
    def message(self) -> str:
        return (
            f"{self.lost} of {self.nodes} nodes of {self.region} are lost or overdue at once;"
            " nothing is replaced until they return, are deleted, or carry the out-of-service"
            " taint; to act all the same: kubectl annotate dtj NAME atoll.dev/release-hold=true"
        )


def storm(
    region: str, found: Tally, failure: FailureSpec, *, released: bool, settling: bool = False
) -> Storm | None:
    """Detect a region's storm: over stormPercent of its nodes, and at least STORM_NODES_MIN.

    `settling`: after one within nodeLossSeconds any lost node counts. `released`: by the user.
    """
    lost, percent = found.lost, failure.storm_percent
    many = lost >= STORM_NODES_MIN and lost * 100 > percent * found.nodes
    if released or not (many or (settling and lost)):
        return None
    return Storm(region=region, lost=lost, nodes=found.nodes)


def nears_storm(found: Tally, failure: FailureSpec) -> bool:
    """Whether half of the nodes that make a storm are lost or overdue already."""
    many = found.lost >= STORM_NODES_MIN - 1
    return many and 2 * found.lost * 100 > failure.storm_percent * found.nodes


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
    suspected: tuple[Pod, ...] = ()  # learners that crash where they are (`crashing`)


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
        entry.name: of_nodes.tally(entry.name, spans_regions=spans_regions)
        for entry in job.spec.regions
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
        pod = bare if bare.region else replace(bare, region=job.spec.syncer_region)
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
    """Count replacements of the last day by learner's name; `now` is in UNIX seconds.

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
    """Return what every workload excludes; `now` is in UNIX seconds.

    `known`: the nodes have been listed; before that everything stays as it is. A Deployment keeps
    what it has as long as its pod is on a node that is not lost, because a changed template
    restarts the shard. Nothing can be scheduled on a deleted node: it is not excluded.
    """
    stand = {workload_name(job, pod) for pod in pods if pod.node and not pod.ended}
    lost = {n for n, state in placement.lost.items() if state is not NodeState.GONE}
    moved, suspected = (
        by_workload(job, found)
        for found in ([replacement.pod for replacement in placement.replace], placement.suspected)
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
