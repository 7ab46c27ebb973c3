"""A place of checkpoints in memory, which tells the watchers what appears there."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from atoll_syncer.checkpoints.copies import PART
from atoll_syncer.storage.files import StoreMissing
from sim.memory_store import MemoryStore

if TYPE_CHECKING:
    from sim.world import World


class MemoryPlace:
    """See atoll_syncer.checkpoints.copies.Place."""

    url = "memory"

    def __init__(self, world: "World") -> None:
        self.world = world
        self.files: dict[str, bytes] = {}
        self.parts: dict[str, MemoryStore] = {}

    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in (*self.files, *self.parts)})

    def below(self, name: str) -> MemoryStore:
        if name not in self.parts:
            part = self.parts[name] = MemoryStore(random.Random(name))

            def created(file: str, data: bytes) -> None:
                if file == PART:
                    self.world.watchers.tell("part_taken", int(name.partition("/")[2]), part)

            part.on_create.append(created)
        return self.parts[name]

    def read(self, name: str) -> bytes:
        folder, _, file = name.rpartition("/")
        if name in self.files:
            return self.files[name]
        if folder in self.parts and file in self.parts[folder].data:
            return self.parts[folder].data[file]
        raise StoreMissing(name, "is not there", "nothing to do")

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data
        self.world.watchers.tell("checkpoint_whole", name.partition("/")[0], self.parts)

    def send(self, source: Path, name: str) -> None:
        raise AssertionError("the simulation makes no model")

    def remove(self, name: str) -> None:
        folder, _, file = name.rpartition("/")
        self.files.pop(name, None)
        self.parts.pop(name, None)
        if folder in self.parts:
            self.parts[folder].data.pop(file, None)
