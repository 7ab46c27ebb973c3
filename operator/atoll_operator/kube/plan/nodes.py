"""Which nodes count as lost, and when so many are that the nodes are not to blame.

The kubelet writes `renewTime` by its own clock, so only *changes* of it are used, timed by the
operator's monotonic clock (`Leases`). A Lease is silent when it has not changed for
max(nodeLossSeconds, half of its duration), and 15 % of a renewal more: renewals jitter, and nodes
that fell together must all be overdue before the first counts as lost. After a gap in the
operator's own watch every Lease gets one whole renewal more. docs/architecture.md has the states of
a node, which are computed afresh in every pass (`state_of`), and docs/operating.md (Lost nodes)
what a storm is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from atoll_operator.api.job.fields import FailureSpec
from atoll_operator.kube.observed.observation import Node

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
    known = [each for each in nodes if not each.never_ready]
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
    """A region's storm: more than stormPercent of its nodes, and at least STORM_NODES_MIN.

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
