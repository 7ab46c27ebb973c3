"""How long each node's Lease has been silent, by the operator's own monotonic clock; pure."""

from dataclasses import dataclass, field, replace

from atoll_operator.kube.observe import Node

LEASE_SECONDS = 40.0  # Kubernetes' default


@dataclass(slots=True, kw_only=True)
class Lease:
    """One Lease as it was last seen to change."""

    renewed: str
    seconds: float
    changed_at: float


@dataclass(slots=True, kw_only=True)
class Leases:
    """Clocks of other machines are not compared: only whether renewTime changes."""

    leases: dict[str, Lease] = field(default_factory=dict)
    settled_at: float = 0.0  # end of the last gap in watching

    def seen(self, node: str, renewed: str, seconds: float | None, now: float) -> None:
        """A Lease as the API server shows it now."""
        known = self.leases.get(node)
        if known is None or known.renewed != renewed:
            self.leases[node] = Lease(
                renewed=renewed, seconds=seconds or LEASE_SECONDS, changed_at=now
            )

    def gone(self, node: str) -> None:
        """The Lease was deleted."""
        self.leases.pop(node, None)

    def resumed(self, now: float) -> None:
        """The watch has begun (anew): nobody may have been able to renew before."""
        self.settled_at = now

    def look(self, node: Node, now: float) -> Node:
        """The node with its silence."""
        lease = self.leases.get(node.name)
        if lease is None:
            return node
        return replace(
            node,
            silent_seconds=now - lease.changed_at,
            settled_seconds=now - self.settled_at,
            lease_seconds=lease.seconds,
        )
