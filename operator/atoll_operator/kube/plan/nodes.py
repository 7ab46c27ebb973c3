"""Which nodes count as lost, which pods are replaced, and when to hold; pure (DESIGN.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from atoll_operator.api.spec import Failure
from atoll_operator.kube.observe import Node, Pod

STORM_NODES_MIN = 3
RENEWAL_JITTER = 1.15  # kubelets renew within a few percent of a quarter of the duration


class State(StrEnum):
    """A node, as far as the API server and its Lease show."""

    WELL = "well"
    DOUBTFUL = "overdue"  # a renewal is late; soon it is either silent or well
    SILENT = "silent"
    NOT_READY = "not ready"
    GONE = "gone"

    @property
    def lost(self) -> bool:
        """Whether it takes its pods with it."""
        return self in (State.SILENT, State.NOT_READY, State.GONE)


def state_of(node: Node | None, loss_seconds: float) -> State:
    """One node's state. A Lease is silent when it has not changed for max(loss, duration / 2).

    A fraction of a renewal more lets every other node that fell at the same moment become
    overdue first, so that a storm is seen as one. After a gap of the watch a whole renewal more.
    """
    if node is None:
        return State.GONE
    if node.out_of_service or not node.ready:
        return State.NOT_READY
    if node.silent_seconds is None:
        return State.WELL
    renewal = node.lease_seconds / 4
    limit = max(loss_seconds, node.lease_seconds / 2) + renewal * (RENEWAL_JITTER - 1)
    overdue = node.silent_seconds > renewal * RENEWAL_JITTER
    if node.silent_seconds >= limit and node.settled_seconds >= renewal * RENEWAL_JITTER:
        return State.SILENT
    return State.DOUBTFUL if overdue else State.WELL


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Too many nodes at once: more likely a network than the nodes."""

    region: str
    lost: int
    nodes: int

    @property
    def message(self) -> str:
        """For the condition."""
        return (
            f"{self.lost} of {self.nodes} nodes of {self.region} are lost or overdue at once;"
            " nothing is replaced until they return, are deleted, or carry the out-of-service"
            " taint; to act all the same: kubectl annotate dtj NAME atoll.dev/release-hold=true"
        )


def storm(
    region: str, nodes: Iterable[Node], failure: Failure, *, released: bool, settling: bool = False
) -> Storm | None:
    """More than stormPercent of a region's nodes, and at least 3.

    While it settles, any lost node still counts: nodes return one after the other.
    """
    known = list(nodes)
    seconds = failure.node_loss_seconds
    states = [State.WELL if n.out_of_service else state_of(n, seconds) for n in known]
    lost = sum(state is not State.WELL for state in states)
    many = lost >= STORM_NODES_MIN and lost * 100 > failure.storm_percent * len(known)
    if released or not (many or (settling and lost)):
        return None
    return Storm(region=region, lost=lost, nodes=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Delete this pod, so that its controller makes it anew elsewhere."""

    pod: Pod
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is to be done about nodes."""

    replace: tuple[Replace, ...] = ()
    held: tuple[Storm, ...] = ()
    exhausted: tuple[str, ...] = ()  # slots and shards without replacements left
    lost: Mapping[str, State] = field(default_factory=dict)  # nodes
    storms: tuple[str, ...] = ()  # regions with too many lost nodes right now


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one decision rests on. `dead`: pod UIDs whose session (or shard) is dead.

    `unseen`: pod UIDs about which the syncer could not be asked: dead only if the node is.
    `counts`: replacements so far, by pod name.
    """

    pods: Sequence[Pod]
    nodes: Mapping[str, Node]
    dead: frozenset[str]
    unseen: frozenset[str]
    counts: Mapping[str, int]
    failure: Failure
    region_nodes: Mapping[str, Sequence[Node]]
    released: bool
    settling: frozenset[str] = frozenset()  # regions with a storm within nodeLossSeconds


def decide(seen: Seen) -> Placement:
    """A pod is replaced when its session is dead AND its node is lost."""
    seconds = seen.failure.node_loss_seconds
    states = {name: state_of(node, seconds) for name, node in seen.nodes.items()}
    lost = {name: state for name, state in states.items() if state.lost}
    storms = {}
    for region, nodes in seen.region_nodes.items():
        found = storm(
            region, nodes, seen.failure, released=seen.released, settling=region in seen.settling
        )
        if found is not None:
            storms[region] = found
    replaced: list[Replace] = []
    exhausted: list[str] = []
    held: dict[str, Storm] = {}
    for pod in seen.pods:
        if not pod.node:
            continue
        state = states.get(pod.node, State.GONE)
        if state is State.GONE:
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
            replaced.append(Replace(pod=pod, node=pod.node, reason=reason))
    full = [
        region
        for region, nodes in seen.region_nodes.items()
        if storm(region, nodes, seen.failure, released=seen.released)
    ]
    return Placement(
        replace=tuple(replaced),
        held=tuple(held.values()),
        exhausted=tuple(exhausted),
        lost=lost,
        storms=tuple(full),
    )


def _is_lost(pod: Pod, state: State, seen: Seen) -> bool:
    if not state.lost:
        return False
    if pod.uid in seen.dead:
        return True
    return pod.uid in seen.unseen and state in (State.NOT_READY, State.GONE)


def stranded(pod: Pod, lost: Mapping[str, State]) -> bool:
    """A pod that waits for a node and excludes one that is well again: make it anew."""
    return not pod.node and not pod.terminating and any(n not in lost for n in pod.excluded)
