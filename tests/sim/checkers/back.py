"""Rule 45: what a slice is used for, before and after a process has its values."""

from collections import Counter, defaultdict
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import (
    Append,
    Effect,
    MergeOffers,
    PublishHead,
    Send,
    TapeLine,
    WritePart,
)
from atoll_syncer.model.log import Committed, Entry, Seeded
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World


class BackChecker(Watcher):
    """A process has what it has looked for in its store, and what it has made itself."""

    rule = "45"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.here: dict[str, set[int]] = defaultdict(set)  # process: slices
        self.versions: dict[int, dict[int, int]] = defaultdict(dict)  # shard: number by slice
        self.claimed: Counter[tuple[int, int]] = Counter()  # shard, slice: what learners name

    def slice_read(self, shard: ShardProcess, fragment: int) -> None:
        self.here[shard.name].add(fragment)

    def store_lost(self, shard: int) -> None:
        self.versions[shard].clear()

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Seeded):
            self.versions[shard] = dict.fromkeys(range(len(entry.digests)), 0)
        if isinstance(entry, Committed):
            self.versions[shard][entry.slice] = entry.number

    def shard_joined(self, shard: ShardProcess, session: int, join: pb.Join) -> None:
        for each in join.held:
            self._claim(shard.number, each.slice, each.version.number)

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        for each in message.report.slices:
            self._claim(shard.number, each.slice, each.held)

    def _claim(self, shard: int, fragment: int, number: int) -> None:
        self.claimed[shard, fragment] = max(self.claimed[shard, fragment], number)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        here, known = self.here[shard.name], self.versions[shard.number]
        for effect in effects:
            match effect:
                case Append(Seeded(digests=digests)):
                    here.update(range(len(digests)))
                case Append(Committed(slice=fragment)):
                    here.add(fragment)
                case MergeOffers(slice=fragment) | PublishHead(slice=fragment):
                    what = f"{shard.name}: {effect}, before its values are here"
                    self.require(fragment in here, what)
                case WritePart():
                    self.require(here >= known.keys(), f"{shard.name} exports {sorted(here)}")
                case Send(message=message) if message.HasField("final"):
                    self.require(here >= known.keys(), f"{shard.name} has only {sorted(here)}")
                case TapeLine(record) if record["event"] == "loss":
                    for fragment in record["slices"]:
                        self._is_lost(shard, fragment)

    def _is_lost(self, shard: ShardProcess, fragment: int) -> None:
        """Its store has it no more, or a learner holds a newer one."""
        assert shard.shard is not None
        head = shard.shard.state.history.heads.get(fragment)
        claimed = head is None or self.claimed[shard.number, fragment] > head.number
        found = fragment in self.here[shard.name] or claimed
        self.require(found, f"{shard.name} has lost {fragment}, and has not looked")
