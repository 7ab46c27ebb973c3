"""Last offer in -> durable -> trailer made, over the time that memory and disk need for it.

In tests/: python -m bench.commit --folder FOLDER_ON_THE_DISK
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_protos.job.layout import Layout  # noqa: E402
from atoll_protos.job.run_file import Merge as MergeKind  # noqa: E402
from atoll_protos.job.run_file import Sync  # noqa: E402
from atoll_protos.transfer import arrays  # noqa: E402
from atoll_protos.transfer.arrays import F32  # noqa: E402
from atoll_protos.transfer.codecs import Wire, encoding_of  # noqa: E402
from atoll_protos.transfer.frames import transfer_frames  # noqa: E402
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed  # noqa: E402
from atoll_syncer.model.log import Begun, Participant  # noqa: E402
from atoll_syncer.numbers.values import StoredVersion, TensorValues  # noqa: E402
from atoll_syncer.storage.journal import Journal  # noqa: E402
from atoll_syncer.storage.store import FileStore  # noqa: E402
from bench.merge import model  # noqa: E402
from bench.table import interleaved, show  # noqa: E402

SESSION = 1
DICE = np.random.default_rng(0)


class Shard:
    """One shard with one slice that commits what it is given."""

    def __init__(self, folder: Path, layout: Layout, sync: Sync, learners: int) -> None:
        self.store = FileStore(folder)
        self.store.open()
        self.journal = Journal(self.store, time.time)
        self.values = TensorValues.allocate(layout, 0, sync)
        self.wire = sync.wire_up
        self.learners = learners
        self.objects: list[str] = []
        self.stages: dict[str, list[float]] = {}
        count = layout.slice(0, 0).element_count
        seed = pb.Transfer(seed=pb.Seed(), encoding=pb.F32)
        data = bytearray(arrays.encode(DICE.standard_normal(count, F32), pb.F32))
        self.values.keep(SESSION, 0, self.values.examine(seed, data))
        (making,) = self.values.begin_seed(StoreSeed(SESSION), "run", 1)
        making.compute()
        self._durable(making.write(self.store))
        encoding = encoding_of(self.wire)
        self.head = pb.Transfer(offer=pb.Offer(), encoding=encoding)
        self.data = [
            bytearray(arrays.encode(DICE.standard_normal(count, F32), encoding))
            for _ in range(learners)
        ]

    def arrive(self, learner: int) -> Participant:
        """An offer's last byte is in: examine and stage it."""
        offer = self.values.examine(self.head, self.data[learner])
        slot = f"a-{learner}"
        self.values.stage(Stage(slot, 1, 0, 1), offer)
        return Participant(
            slot=slot, incarnation=1, capture=1, base=0, steps=1, tokens=1, cursor=1, weight=1.0
        )

    def prepare(self) -> list[Participant]:
        """All offers but the last one."""
        self.collect(2)
        return [self.arrive(learner) for learner in range(self.learners - 1)]

    def commit(self, participants: list[Participant]) -> None:
        """From the last byte of the last offer to the trailer."""
        clock = Clock(self.stages)
        participants.append(self.arrive(self.learners - 1))
        clock.lap("norms")
        making = self.values.begin_merge(MergeOffers(0, tuple(participants), 0.9), "run", 1)
        making.compute()
        clock.lap("merge")
        outcome = making.write(self.store)
        clock.lap("object")
        self._durable(outcome)
        clock.lap("entry")
        payload = self.values.publish_payload(0, outcome.number, None)
        head = pb.Transfer(encoding=payload.encoding, byte_count=len(payload.data))
        for _frame in transfer_frames(1, head, payload.data):
            pass
        clock.lap("frames")

    def _durable(self, outcome: StoredVersion) -> None:
        self.journal.append(Begun(shard=outcome.number))  # any entry: one small file
        self.values.committed(0)
        self.objects.append(outcome.object)

    def collect(self, keep: int) -> None:
        while len(self.objects) > keep:
            self.store.delete(self.objects.pop(0))


class Clock:
    """Laps of one commit."""

    def __init__(self, stages: dict[str, list[float]]) -> None:
        self.stages = stages
        self.start = time.perf_counter()

    def lap(self, name: str) -> None:
        """The time since the last lap."""
        now = time.perf_counter()
        self.stages.setdefault(name, []).append(now - self.start)
        self.start = now


class Limits:
    """What the memory and the disk of this machine take for the same bytes."""

    def __init__(self, folder: Path, element_count: int) -> None:
        self.path = folder / "plain"
        self.left, self.right = np.full(element_count, 1, F32), np.full(element_count, 1, F32)
        self.object = memoryview(bytearray(b"x" * (8 * element_count)))  # master and momentum

    def add(self) -> None:
        """12 bytes an element through memory."""
        np.add(self.left, self.right, out=self.left)

    def write(self) -> None:
        """An object's bytes onto the disk."""
        with self.path.open("wb", buffering=0) as file:
            view = self.object
            while view:
                view = view[file.write(view[: 8 << 20]) :]
            os.fsync(file.fileno())
        self.path.unlink()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=26_000_000)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    layout = model(arguments.elements)
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        limits = Limits(Path(folder), arguments.elements)
        for wire in (Wire.F32, Wire.BF16, Wire.INT8):
            for merge in MergeKind:
                sync = Sync(fragments=1, merge=merge, wire_up=wire)
                shard = Shard(Path(folder) / f"{wire}-{merge}", layout, sync, arguments.learners)
                rows.append((f"{wire} {merge}", *measure(shard, limits, arguments.rounds)))
                shard.collect(0)
    show(
        f"R7: {arguments.elements:,} elements, {arguments.learners} learners; milliseconds",
        ("case", *shard.stages, "commit", "memory", "disk", "R7"),
        rows,
    )


def measure(shard: Shard, limits: Limits, rounds: int) -> list[float]:
    """Interleaved medians in milliseconds: the stages, the commit, its two limits; and R7."""
    waiting: list[list[Participant]] = []
    cases: dict[str, Callable[[], object]] = {
        "prepare": lambda: waiting.append(shard.prepare()),
        "commit": lambda: shard.commit(waiting.pop()),
        "add_": limits.add,
        "disk": limits.write,
    }
    seconds = interleaved(cases, rounds)
    count = limits.left.size
    moved = sum(map(len, shard.data)) + (8 + 8 + 2) * count  # offers, master, momentum, base
    memory = moved / (12 * count) * seconds["add_"]
    stages = [statistics.median(laps[1:]) for laps in shard.stages.values()]
    times = [*stages, seconds["commit"], memory, seconds["disk"]]
    return [*(s * 1e3 for s in times), seconds["commit"] / (memory + seconds["disk"])]


if __name__ == "__main__":
    main()
