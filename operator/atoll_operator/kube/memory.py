"""What the operator remembers of one job between passes; all of it can be lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observe import Pod

REPLY_SECONDS_MAX = 12.0  # of age in a status; with the pause between writes it stays below 15 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A shard's last answer."""

    message: pb.StatusReply
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """One that is under way: for the metrics."""

    role: str
    name: str
    old_uid: str
    lost_at: float


@dataclass(slots=True, kw_only=True)
class Memory:
    """Times are of the operator's monotonic clock."""

    uid: str
    dirty: bool = True
    observed_at: float = -1e9
    job: dict[str, Any] = field(default_factory=dict)
    children: list[dict[str, Any]] = field(default_factory=list)
    replies: dict[int, Reply] = field(default_factory=dict)
    heard_at: dict[int, float] = field(default_factory=dict)
    absent_since: dict[str, float] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    tick: int = -1
    tick_at: float = 0.0
    final_at: float | None = None
    written_at: float = -1e9
    replacements: dict[str, Replacement] = field(default_factory=dict)  # by pod name
    asked_at: str = ""
    stormed_at: dict[str, float] = field(default_factory=dict)  # by region

    def take(self, replies: Sequence[pb.StatusReply | None], now: float, wall: str) -> None:
        """The answers of one poll."""
        for shard, reply in enumerate(replies):
            self.heard_at.setdefault(shard, now)
            if reply is not None:
                self.replies[shard] = Reply(message=reply, at=now)
                self.heard_at[shard] = now
                self.asked_at = wall
        known = [reply.tick for reply in replies if reply is not None]
        if len(known) == len(replies) and known and min(known) != self.tick:
            self.tick, self.tick_at = min(known), now
        registrar = replies[0] if replies else None
        if registrar is not None and registrar.state == pb.SHARD_COMPLETE and self.final_at is None:
            self.final_at = now

    def fresh(self, shards: int, now: float) -> list[pb.StatusReply | None]:
        """What may still be shown: one a shard, None when it is too old."""
        found: list[pb.StatusReply | None] = []
        for shard in range(shards):
            reply = self.replies.get(shard)
            young = reply is not None and now - reply.at <= REPLY_SECONDS_MAX
            found.append(reply.message if reply is not None and young else None)
        return found

    def silent_seconds(self, now: float) -> dict[int, float]:
        """By shard, since its last answer."""
        return {shard: now - at for shard, at in self.heard_at.items()}

    def settling(self, seconds: float, now: float) -> frozenset[str]:
        """Regions that had a storm a moment ago."""
        return frozenset(r for r, at in self.stormed_at.items() if now - at < seconds)

    def note_absent(
        self, pods: Sequence[Pod], registrar: pb.StatusReply | None, now: float
    ) -> Mapping[str, float]:
        """How long the registrar has not shown each learner's slot."""
        if registrar is None:
            return {}
        shown = {slot.slot for slot in registrar.slots}
        slots = {pod.slot for pod in pods if pod.role == "learner" and pod.node}
        absent = slots - shown
        self.absent_since = {slot: self.absent_since.get(slot, now) for slot in absent}
        return {slot: now - since for slot, since in self.absent_since.items()}
