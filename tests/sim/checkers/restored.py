"""Rule 43: a run of any other form can begin with each whole checkpoint, and with no other."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Fragments
from atoll_syncer.checkpoints import copies, restoring
from atoll_syncer.checkpoints.copies import WHOLE
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from atoll_syncer.model.log import Committed, Entry
from sim.memory_store import MemoryStore
from sim.watch import Watcher
from sim.world import World

SHARDS = (1, 2, 3)  # of the runs that begin with it


class RestoreChecker(Watcher):
    """As production reads it, whatever kills and stops the shards that took it."""

    rule = "43"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.cursors: dict[int, list[tuple[int, str, int]]] = defaultdict(list)  # by shard
        self.lost = False

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            found = ((document["seq"], each.slot, each.cursor) for each in entry.participants)
            self.cursors[shard].extend(found)

    def store_lost(self, shard: int) -> None:
        self.lost = True

    def object_lost(self, shard: int, name: str) -> None:
        self.lost = True

    def part_taken(self, shard: int, part: MemoryStore) -> None:
        place = self.world.place
        (step,) = {name.partition("/")[0] for name, each in place.parts.items() if each is part}
        if f"{step}/{WHOLE}" in place.files:
            return
        try:
            self._find(step)
        except RestoreRefusedError:
            return
        self.require(False, f"a run begins with {step}, which is not whole")

    def checkpoint_whole(self, step: str, parts: Mapping[str, MemoryStore]) -> None:
        try:
            found = self._find(step)
        except RestoreRefusedError as error:
            self.require(False, f"{step} is whole: {error}")
            return
        ticks = [each.tick for each in found.histories]
        self.require(found.tick == min(ticks), f"{step} begins at {found.tick}, parts at {ticks}")
        self._places_in_the_data(step, found, parts)
        for shards in SHARDS:
            self._every_element_once(step, found, shards)

    def _find(self, step: str) -> Checkpoint:
        place = self.world.place
        return restoring.find(f"{place.url}/{step}", lambda _: place)

    def _places_in_the_data(
        self, step: str, found: Checkpoint, parts: Mapping[str, MemoryStore]
    ) -> None:
        """The furthest that any shard had merged at the position of its part."""
        if self.lost:
            return
        furthest: Counter[str] = Counter()
        for shard, history in enumerate(found.histories):
            position = copies.read_part(self.world.place, _number(step), shard)
            assert position is not None, "a whole one"
            for at, slot, cursor in self.cursors[shard]:
                if at <= position.position:
                    furthest[slot] = max(furthest[slot], cursor)
            assert history.heads, "a part without versions"
        for slot, cursor in furthest.items():
            known = found.cursors.get(slot, 0)
            self.require(known >= cursor, f"{slot} begins at {known} of {step}, not at {cursor}")

    def _every_element_once(self, step: str, found: Checkpoint, shards: int) -> None:
        """Of masters and momenta, however the model is cut: each is read from where it lies."""
        run_file = dataclasses.replace(
            self.world.run_file,
            shards=shards,
            sync=dataclasses.replace(self.world.run_file.sync, fragments=Fragments.AUTO),
        )
        try:
            layout, count = run_file.layout(found.layout.tensors), 0
        except SpecError:
            return  # the model has too few tensors for so many shards
        for shard in range(shards):
            for old, overlaps in restoring._overlaps(found.layout, layout, shard):
                self.require(
                    old.fragment in found.histories[old.shard].heads,
                    f"{step}: slice {old.fragment} of shard {old.shard} has no version",
                )
                count += sum(each.count for each in overlaps)
        whole = sum(each.element_count for each in layout.tensors)
        self.require(count == whole, f"{step}: {shards} shards read {count} elements of {whole}")


def _number(step: str) -> int:
    return int(step.removeprefix("step-"))
