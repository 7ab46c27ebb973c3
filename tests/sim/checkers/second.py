"""Rule 43: what a run has at its beginning that begins with a checkpoint, in the second world."""

from collections import defaultdict
from typing import Any

import numpy as np

from atoll_protos.job.layout import Layout
from atoll_protos.transfer.arrays import F32, Array
from atoll_syncer.model.log import Entry, RunStarted, Seeded
from atoll_syncer.storage.objects import decode
from atoll_worker.link.messages import Start
from sim.learner_process import LearnerProcess
from sim.second_world import Parent
from sim.symbols import master_of, momentum_of
from sim.watch import Watcher
from sim.world import World


class SecondWorldChecker(Watcher):
    """Version 0 has the bits of the checkpoint, cut anew; tick and cursors go on from it.

    What the checkpoint says is read from its parts' histories alone, and the elements follow from
    the digests that stand there.
    """

    rule = "43"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.seeded: set[int] = set()  # shards
        self.tensors = tensors_of(world.parent) if world.parent is not None else {}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        parent = self.world.parent
        if parent is None:
            return
        if isinstance(entry, RunStarted):
            self.require(entry.parent == parent.run, f"a run after {entry.parent}")
            self.require(entry.tick == parent.tick, f"it begins at {entry.tick}, not {parent.tick}")
            for slot, cursor in parent.furthest.items():
                known = entry.cursors.get(slot, 0)
                self.require(known >= cursor, f"{slot} begins at {known}, and {cursor} was merged")
        if isinstance(entry, Seeded):
            self.seeded.add(shard)
            for fragment, name in enumerate(entry.objects):
                self._has_the_bits(parent, shard, fragment, name, entry.merges[fragment])

    def _has_the_bits(
        self, parent: Parent, shard: int, fragment: int, name: str, merges: int
    ) -> None:
        where = f"version 0 of slice {fragment} of shard {shard}"
        content, _ = decode(self.world.stores[shard].read(name))
        fewest = []
        for piece in self.world.layout.slice(shard, fragment).pieces:
            tensor = self.world.layout.tensors[piece.tensor].name
            for kind in ("master", "momentum"):
                wanted = self.tensors[kind][tensor][piece.start : piece.stop]
                found = content[kind][piece.offset : piece.offset + piece.element_count]
                same = found.tobytes() == wanted.tobytes()
                self.require(same, f"{where} has another {kind} of {tensor}")
            fewest.append(merges_of(parent, tensor, piece.start, piece.stop))
        self.require(merges == min(fewest), f"{where} says {merges} merges, not {min(fewest)}")

    def commanded(self, learner: LearnerProcess, command: Any) -> None:
        parent = self.world.parent
        if parent is not None and isinstance(command, Start):
            cursor, at_least = command.cursor, parent.furthest.get(learner.slot, 0)
            self.require(cursor >= at_least, f"{learner.name} begins at {cursor}, not {at_least}")
            self.require(command.tick >= parent.tick, f"{learner.name} begins at {command.tick}")

    def run_ended(self) -> None:
        if self.world.parent is not None:
            without = {*range(self.world.run_file.shards)} - self.seeded
            self.require(not without, f"shards {without} have no version 0")


def tensors_of(parent: Parent) -> dict[str, dict[str, Array]]:
    """Masters and momenta of whole tensors, by name."""
    layout: Layout = parent.layout
    whole: dict[str, dict[str, Array]] = defaultdict(dict)
    for kind in ("master", "momentum"):
        for tensor in layout.tensors:
            whole[kind][tensor.name] = np.zeros(tensor.element_count, F32)
    for owned in layout.slices:
        head, count = parent.histories[owned.shard].heads[owned.fragment], owned.element_count
        master = master_of(head.digest, count)
        momentum = momentum_of(head.digest, head.merges, count)
        for piece in owned.pieces:
            name, held = layout.tensors[piece.tensor].name, slice(piece.offset, None)
            to = slice(piece.start, piece.stop)
            whole["master"][name][to] = master[held][: piece.element_count]
            whole["momentum"][name][to] = momentum[held][: piece.element_count]
    return whole


def merges_of(parent: Parent, tensor: str, start: int, stop: int) -> int:
    """The fewest that a momentum of these elements has taken in."""
    layout = parent.layout
    return min(
        parent.histories[owned.shard].heads[owned.fragment].merges
        for owned in layout.slices
        for piece in owned.pieces
        if layout.tensors[piece.tensor].name == tensor
        if max(piece.start, start) < min(piece.stop, stop)
    )
