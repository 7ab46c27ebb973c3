"""Which nodes count as lost, which pods are made again elsewhere, and when the operator holds.

Kubernetes alone never replaces a StatefulSet's pod whose node has died: the pod stays Terminating
until the node returns, because only the node's kubelet could confirm that its process has ended.
Atoll may do better. Its registrar fences a slot: once SetOwner has been taken, no process of an
older pod can act for that slot. So a pod on a lost node may be deleted at once, and its
StatefulSet makes it again on another node.

Inputs. Two facts must agree before a pod is replaced, because each alone is often wrong:
- its *session is dead* at the syncer (`sessions.judge`): the registrar saw it leave or fall
  silent, or a shard does not answer. A cut between the learner and the syncer looks the same.
- its *node is lost* at the API server: the Node is NotReady, deleted, or its Lease is silent. A
  kubelet that was killed looks the same, while its pods train on.
When the syncer cannot be asked, which is always so for the evaluator, a pod's session counts as
dead only if its Node is deleted, is declared out-of-service, or has been NotReady for
nodeLossSeconds: a kubelet that restarts is NotReady for a moment. A silent Lease is not enough
then.

Clocks. The kubelet writes `renewTime` by its own clock, so only *changes* of it are used, timed by
the operator's monotonic clock (`Leases`). A Lease is silent when it has not changed for
max(nodeLossSeconds, half of its duration), and 15 % of a renewal more: renewals jitter, and nodes
that fell together must all be overdue before the first counts as lost, so that a storm is seen as
one. After a gap in the operator's own watch every Lease gets one whole renewal more, because the
kubelets could not be seen renewing in the gap.

State machine of a node (`state_of`, computed afresh in every pass):

            late by 15 % of a renewal        silent for the whole limit
    WELL ───────────────────────────> DOUBTFUL ───────────────────────> SILENT
     ^ <──────── renewTime changes ────── │ <───── renewTime changes ────── │
     └──────────────────────────────────────────────────────────────────────┘
    any state ── Node not Ready, or tainted out-of-service ──> NOT_READY ── Ready ──> by its Lease
    any state ── Node object deleted ──────────────────────> GONE

SILENT, NOT_READY and GONE are *lost*; DOUBTFUL only counts for a storm.

Storm. When more than `stormPercent` of a region's nodes, and at least three, are lost or doubtful
at once, a network or the API server has failed rather than the nodes. (Nodes that have never been
Ready are booting, and count neither way.) Then nothing of that region is replaced (`held`,
condition NodeLossHeld), and while it settles, for nodeLossSeconds after the last storm, any lost
node still holds, because nodes return one after the other. A node that is
deleted or declared out-of-service by a person is replaced even in a storm, and the annotation
`atoll.dev/release-hold` on the job lifts the hold.

State machine of a pod on a lost node (one arrow or more in each pass; see `repair` for the order):

    chosen (`decide`) ──> the template excludes the node (`exclusions`, applied)
      ──> the controller has observed that template ──> the Lease is still silent at the API server
      ──> the slot's owner is retired (SetOwner) ──> deleted, grace 0, with a UID precondition
      ──> made again elsewhere ──> named owner (SetOwner) ──> trains (`works_again`)

The exclusion comes before the delete because at 20 s the scheduler still takes the dead node for a
good one, and the pod's own requests have just been freed on it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from atoll_operator.api.parts import Failure
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observation import (
    Node,
    Pod,
    Replaced,
    Replacement,
    Workload,
    workload_name,
)

LEASE_SECONDS = 40.0  # Kubernetes' default duration of a node's Lease
RENEWALS_PER_LEASE = 4  # a kubelet renews after a quarter of the duration
RENEWAL_JITTER = 1.15  # and within a few percent of that
STORM_NODES_MIN = 3


# ---------------------------------------------------------------- Leases


@dataclass(slots=True, kw_only=True)
class Lease:
    """One node's Lease as it was last seen to change."""

    renewed: str  # renewTime
    seconds: float  # leaseDurationSeconds
    changed_at: float  # monotonic


@dataclass(slots=True, kw_only=True)
class Leases:
    """How long each Lease has been silent. Clocks of other machines are never compared."""

    leases: dict[str, Lease] = field(default_factory=dict)  # by node
    settled_at: float = 0.0  # end of the last gap in watching
    unready_at: dict[str, float] = field(default_factory=dict)  # first seen not Ready, by node

    def seen(self, node: str, renewed: str, seconds: float | None, now: float) -> None:
        """Note a Lease as the API server shows it now."""
        known = self.leases.get(node)
        if known is None or known.renewed != renewed:
            self.leases[node] = Lease(
                renewed=renewed, seconds=seconds or LEASE_SECONDS, changed_at=now
            )

    def gone(self, node: str) -> None:
        """Forget a Lease that was deleted."""
        self.leases.pop(node, None)
        self.unready_at.pop(node, None)

    def resumed(self, now: float) -> None:
        """Note that the watch has begun again: renewals before now may have been missed."""
        self.settled_at = now

    def look(self, node: Node, now: float) -> Node:
        """The node with what its Lease shows, and for how long it has been seen not Ready."""
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

    def ages(self, now: float) -> dict[str, float]:
        """Seconds of silence by node, also of nodes that are deleted but whose Lease is left."""
        return {name: now - lease.changed_at for name, lease in self.leases.items()}


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
        """Whether the pods of the node may be replaced."""
        return self in (NodeState.SILENT, NodeState.NOT_READY, NodeState.GONE)


def state_of(node: Node | None, loss_seconds: float) -> NodeState:
    """One node's state; None is a node that does not exist.

    `loss_seconds` is `spec.failure.nodeLossSeconds`. The module's docstring explains the limits.
    """
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
class Storm:
    """Too many nodes of one region at once: more likely a network than the nodes."""

    region: str
    lost: int
    nodes: int

    @property
    def message(self) -> str:
        """The text of the condition NodeLossHeld."""
        return (
            f"{self.lost} of {self.nodes} nodes of {self.region} are lost or overdue at once;"
            " nothing is replaced until they return, are deleted, or carry the out-of-service"
            " taint; to act all the same: kubectl annotate dtj NAME atoll.dev/release-hold=true"
        )


class Census(dict[str, Node]):
    """All nodes at one moment, by name, with what follows from them alone.

    Every job's pass asks the same of the same nodes: that is worked out once for all of them.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        super().__init__(nodes)
        self._states: dict[float, Mapping[str, NodeState]] = {}
        self._lost: dict[float, Mapping[str, NodeState]] = {}
        self._tallies: dict[tuple[int, float], Tally] = {}
        self._regions: dict[str, list[Node]] | None = None
        self._every: Sequence[Node] = list(nodes.values())

    def states(self, loss_seconds: float) -> Mapping[str, NodeState]:
        """Every node's state, by name."""
        found = self._states.get(loss_seconds)
        if found is None:
            found = {name: state_of(node, loss_seconds) for name, node in self.items()}
            self._states[loss_seconds] = found
        return found

    def lost(self, loss_seconds: float) -> Mapping[str, NodeState]:
        """The states of lost nodes, by name."""
        found = self._lost.get(loss_seconds)
        if found is None:
            states = self.states(loss_seconds)
            found = {name: state for name, state in states.items() if state.lost}
            self._lost[loss_seconds] = found
        return found

    def tally(self, nodes: Sequence[Node], loss_seconds: float) -> "Tally":
        """`tally` of nodes that `regions` or `every` has given."""
        key = (id(nodes), loss_seconds)
        if key not in self._tallies:
            self._tallies[key] = tally(nodes, self.states(loss_seconds))
        return self._tallies[key]

    def every(self) -> Sequence[Node]:
        """All of them."""
        return self._every

    def regions(self) -> Mapping[str, Sequence[Node]]:
        """The nodes by the region that their label names."""
        if self._regions is None:
            self._regions = {}
            for node in self.values():
                self._regions.setdefault(node.region, []).append(node)
        return self._regions


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many nodes count for a storm, and how many of them are lost or overdue."""

    nodes: int
    lost: int


def tally(nodes: Iterable[Node], states: Mapping[str, NodeState]) -> Tally:
    """Count a region's nodes. Nodes declared out-of-service are well, new ones do not count."""
    known = [each for each in nodes if not each.never_ready]
    lost = sum(not n.out_of_service and states[n.name] is not NodeState.WELL for n in known)
    return Tally(nodes=len(known), lost=lost)


def storm(
    region: str, found: Tally, failure: Failure, *, released: bool, settling: bool = False
) -> Storm | None:
    """A region's storm: more than stormPercent of its nodes, and at least STORM_NODES_MIN.

    `settling`: the region had a storm within nodeLossSeconds, so any lost node still counts.
    `released`: the user has lifted the hold.
    """
    lost, percent = found.lost, failure.storm_percent
    many = lost >= STORM_NODES_MIN and lost * 100 > percent * found.nodes
    if released or not (many or (settling and lost)):
        return None
    return Storm(region=region, lost=lost, nodes=found.nodes)


# ---------------------------------------------------------------- placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ToReplace:
    """A pod to delete, so that its controller makes it again on another node."""

    pod: Pod
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is to be done about lost nodes."""

    replace: tuple[ToReplace, ...] = ()
    held: tuple[Storm, ...] = ()  # storms that keep a pod from being replaced
    exhausted: tuple[str, ...] = ()  # names of pods without replacements left
    lost: Mapping[str, NodeState] = field(default_factory=dict)  # by node
    storms: tuple[str, ...] = ()  # regions with too many lost nodes right now
    suspected: tuple[Pod, ...] = ()  # learners that crash where they are (`suspects`)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """What one decision rests on."""

    pods: Sequence[Pod]  # each with its region, shards and evaluators too
    nodes: Mapping[str, Node]
    dead: frozenset[str]  # UIDs of pods whose session or shard is dead
    unseen: frozenset[str]  # UIDs about which the syncer could not be asked
    counts: Mapping[str, int]  # replacements of the last day, by pod name
    failure: Failure
    region_nodes: Mapping[str, Sequence[Node]]
    released: bool
    settling: frozenset[str] = frozenset()  # regions with a storm within nodeLossSeconds


def decide(seen: PlacementInput) -> Placement:
    """Replace each pod whose session is dead and whose node is lost, unless a storm holds it."""
    seconds = seen.failure.node_loss_seconds
    census = seen.nodes if isinstance(seen.nodes, Census) else Census(seen.nodes)
    states = census.states(seconds)
    tallies = {region: census.tally(each, seconds) for region, each in seen.region_nodes.items()}
    lost = dict(census.lost(seconds))
    storms = _storms(seen, tallies, settling=True)
    replaced: list[ToReplace] = []
    exhausted: list[str] = []
    held: dict[str, Storm] = {}
    for pod in seen.pods:
        if not pod.node:
            continue
        state = states.get(pod.node, NodeState.GONE)
        if state is NodeState.GONE:
            lost[pod.node] = state
        if not _is_lost(pod, state, seen):
            continue
        node = seen.nodes.get(pod.node)
        if pod.region in storms and node is not None and not node.out_of_service:
            held[pod.region] = storms[pod.region]
        elif seen.counts.get(pod.name, 0) >= seen.failure.max_replacements_per_slot:
            exhausted.append(pod.name)
        else:
            reason = f"its session is dead and its node {pod.node} is {state}"
            replaced.append(ToReplace(pod=pod, node=pod.node, reason=reason))
    return Placement(
        replace=tuple(replaced),
        held=tuple(held.values()),
        exhausted=tuple(exhausted),
        lost=lost,
        storms=tuple(_storms(seen, tallies, settling=False)),
    )


def _storms(
    seen: PlacementInput, tallies: Mapping[str, Tally], *, settling: bool
) -> dict[str, Storm]:
    """Storms by region; `settling`: with the regions that had one a moment ago."""
    found = {}
    for region, counted in tallies.items():
        lasts = settling and region in seen.settling
        one = storm(region, counted, seen.failure, released=seen.released, settling=lasts)
        if one is not None:
            found[region] = one
    return found


def _is_lost(pod: Pod, state: NodeState, seen: PlacementInput) -> bool:
    if not state.lost:
        return False
    if pod.uid in seen.dead:
        return True
    if pod.uid not in seen.unseen or state is NodeState.SILENT:
        return False
    node = seen.nodes.get(pod.node)
    if node is None or node.out_of_service:
        return True
    return node.not_ready_seconds >= seen.failure.node_loss_seconds


def region_nodes(
    regions: Iterable[str], nodes: Mapping[str, Node], *, spans_regions: bool
) -> dict[str, Sequence[Node]]:
    """Nodes by region: by their label where one cluster spans regions, else all of them."""
    census = nodes if isinstance(nodes, Census) else Census(nodes)
    if not spans_regions:
        return dict.fromkeys(regions, census.every())
    found = census.regions()
    return {region: found.get(region, ()) for region in regions}


def counts(
    job: str, pods: Iterable[Pod], workloads: Mapping[str, Workload], now: float
) -> dict[str, int]:
    """Replacements of the last day by pod name, of learners; `now` is in UNIX seconds.

    A replacement that is under way is already counted in the annotation (it is applied before the
    pod is deleted), so it is not counted against itself.
    """
    found: dict[str, int] = {}
    for pod in pods:
        live = workloads.get(workload_name(job, pod))
        if live is None or pod.role != LEARNER_ROLE:
            continue
        noted = live.replaced.get(pod.ordinal, Replaced())
        found[pod.name] = noted.within_a_day(now) - (noted.uid == pod.uid)
    return found


def works_again(each: Replacement, pods: Iterable[Pod], training: frozenset[str]) -> bool:
    """Whether the successor of a replaced pod trains or serves; `training` holds pods' UIDs."""
    if each.role == LEARNER_ROLE:
        new = [pod for pod in pods if pod.name == each.name and pod.uid != each.old_uid]
        return any(pod.uid in training for pod in new)
    new = [pod for pod in pods if (pod.role, pod.shard) == (each.role, each.shard)]
    return any(pod.ready and not pod.terminating and pod.uid != each.old_uid for pod in new)
