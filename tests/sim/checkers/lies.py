"""Rule 38: what cannot be true ends its own session at once, and nothing else follows."""

from typing import Any

from google.protobuf.message import Message

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import COUNTER_MAX
from atoll_syncer.model.effects import Append, Effect, EndSession
from atoll_syncer.model.log import Entry
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World


class LiesChecker(Watcher):
    """Looks at numbers that no field may have, as they come and as they would be durable."""

    rule = "38"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.somebody_lies = any(fault.kind == "lie" for fault in world.scenario.faults)
        self.lied: dict[str, int] = {}  # process: the session whose lie is its input now

    def shard_joined(self, shard: ShardProcess, session: int, join: pb.Join) -> None:
        if self._cannot_be_true(join):
            self.lied[shard.name] = session

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        assert shard.shard is not None
        if session in shard.shard.state.sessions.open and self._cannot_be_true(message):
            self.lied[shard.name] = session

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if (session := self.lied.pop(shard.name, None)) is None:
            return
        ends = {each.session: each.end.code for each in effects if isinstance(each, EndSession)}
        self.require(ends == {session: pb.BAD_MESSAGE}, f"session {session} lies, and ends: {ends}")
        entries = [each for each in effects if isinstance(each, Append)]
        self.require(not entries, f"session {session} lies, and makes {entries} durable")

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        self.require(largest(document) <= COUNTER_MAX, f"shard {shard} has {entry} in its log")

    def _cannot_be_true(self, message: pb.Join | pb.ToShard) -> bool:
        if not self.somebody_lies:
            return False  # it takes time to look at every message
        slices = [] if isinstance(message, pb.Join) else message.report.slices
        unknown = any(each.slice >= self.world.layout.fragments for each in slices)
        return unknown or largest(message) > COUNTER_MAX


def largest(value: Any) -> int:
    """The largest whole number in a message or a document."""
    if isinstance(value, Message):
        return max((largest(each) for _, each in value.ListFields()), default=0)
    if isinstance(value, dict):
        return max(map(largest, value.values()), default=0)
    if isinstance(value, int):
        return value
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        return max(map(largest, value), default=0)
    return 0
