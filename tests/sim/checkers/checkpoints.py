"""Rule 42: a part of a checkpoint is what the log says at one position, with all of its objects."""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from atoll_syncer.checkpoints.copies import PART
from atoll_syncer.model.log import Committed, Entry, Seeded
from atoll_syncer.storage import journal
from atoll_syncer.storage.files import StoreError, read_object
from sim.memory_store import MemoryStore
from sim.watch import Watcher
from sim.world import World


class CheckpointChecker(Watcher):
    """Whatever kills and stops the shards meanwhile. After a loss the log says less than it did."""

    rule = "42"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.objects: dict[int, dict[int, list[tuple[int, str]]]] = defaultdict(
            lambda: defaultdict(list)
        )  # by shard, then slice: the position of an entry, and the object that it names
        self.cursors: dict[int, list[tuple[int, str, int]]] = defaultdict(list)  # by shard
        self.lost: set[int] = set()  # shards

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        position, named = document["seq"], self.objects[shard]
        if isinstance(entry, Seeded):
            for fragment, name in enumerate(entry.objects):
                named[fragment].append((position, name))
        if isinstance(entry, Committed):
            named[entry.slice].append((position, entry.object))
            cursors = ((position, each.slot, each.cursor) for each in entry.participants)
            self.cursors[shard].extend(cursors)

    def store_lost(self, shard: int) -> None:
        self.lost.add(shard)

    def object_lost(self, shard: int, name: str) -> None:
        self.lost.add(shard)

    def part_taken(self, shard: int, part: MemoryStore) -> None:
        found = journal.read_snapshot(part, PART)
        for name in found.history.live_objects():
            try:
                read_object(part, name, "")
            except StoreError as error:
                self.require(False, f"a part of shard {shard}: {error}")
        if shard in self.lost:
            return
        for fragment, named in self.objects[shard].items():
            (*_, newest) = (name for at, name in named if at <= found.position)
            head = found.history.heads[fragment].object
            self.require(head == newest, f"a part of shard {shard} has {head}, not {newest}")
        for at, slot, cursor in self.cursors[shard]:
            known = found.history.cursors.get(slot, 0)
            holds = at > found.position or known >= cursor
            self.require(holds, f"a part of shard {shard} has {slot} at {known}, not {cursor}")

    def checkpoint_whole(self, step: str, parts: Mapping[str, MemoryStore]) -> None:
        runs = set()
        for shard in range(self.world.run_file.shards):
            part = parts.get(f"{step}/{shard}")
            is_there = part is not None and PART in part.data
            self.require(is_there, f"{step} is whole without the part of shard {shard}")
            assert part is not None
            runs.add(json.loads(part.data[PART])["run"])
        self.require(len(runs) == 1, f"{step} is whole with parts of {len(runs)} runs")
