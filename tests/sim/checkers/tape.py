"""Rule 29: every commit is on its shard's tape, whoever was killed when."""

from typing import Any

from atoll_syncer.model.log import Committed, Entry
from sim.watch import Watcher
from sim.world import World

Line = tuple[int, int, int]  # slice, version, epoch


class TapeChecker(Watcher):
    """At the end of a job the tapes hold all versions; a shard that is down may still owe some."""

    rule = "29"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.durable: dict[int, set[Line]] = {}  # by shard

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            line = entry.slice, entry.number, entry.epoch
            self.durable.setdefault(shard, set()).add(line)

    def store_lost(self, shard: int) -> None:
        """Its entries are gone, and nobody can write their lines."""
        self.durable.pop(shard, None)

    def run_ended(self) -> None:
        for shard, durable in self.durable.items():
            process = self.world.shards[shard]
            if process.shard is not None and process.shard.state.term.durable:
                lacking = sorted(durable - self.world.tapes[shard].lines)
                self.require(not lacking, f"shard {shard}: {lacking[:3]} are on no tape")
