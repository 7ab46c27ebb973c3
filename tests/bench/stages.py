"""What a value that is due costs a shard and a learner in CPU, and how often it is copied.

In tests/: python -m bench.stages [--elements COUNT] [--folder FOLDER_ON_THE_DISK] [--json FILE]

CPU is that of this process, all threads, so that other load hardly matters; without gRPC and TLS,
which `bench.tls` measures, while the constants of `atoll plan` contain them. A shard's time grows
with the learners: two numbers of them give the part of each, and what a commit needs once.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Final

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_operator.sizing.needs import MERGE_SECONDS, TRANSPORT_SECONDS  # noqa: E402
from atoll_protos.job.layout import Layout, TensorSpec, build_layout  # noqa: E402
from atoll_protos.job.run_file import Sync  # noqa: E402
from atoll_protos.job.schedule import ahead, next_due  # noqa: E402
from atoll_protos.transfer import arrays  # noqa: E402
from atoll_protos.transfer.arrays import BF16, F32, Array  # noqa: E402
from atoll_protos.transfer.codecs import Form  # noqa: E402
from atoll_protos.transfer.frames import Assembler, transfer_frames  # noqa: E402
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed  # noqa: E402
from atoll_syncer.model.log import Begun, Participant  # noqa: E402
from atoll_syncer.numbers.values import StoredVersion, TensorValues  # noqa: E402
from atoll_syncer.storage.files import FileStore  # noqa: E402
from atoll_syncer.storage.journal import Journal  # noqa: E402
from bench.results import Figure, option, publish  # noqa: E402
from bench.table import show  # noqa: E402

SESSION: Final = 1
DICE: Final = np.random.default_rng(0)
FEW, MANY = 2, 6  # learners
SYNC: Final = Sync(fragments=24, period=24, overlap=2)
TICKS: Final = 20_000
STEPS: Final = (0.5, 1.0, 1.7, 3.0, 6.0)  # in ticks
NOISE: Final = 0.1  # of a step's time, both ways


def normal(count: int) -> Array:
    return DICE.standard_normal(count, F32)


def model(element_count: int) -> Layout:
    """Return one slice of a transformer's tensors."""
    shapes: list[tuple[int, ...]] = []
    while (left := element_count - sum(map(prod, shapes))) > 0:
        block: list[tuple[int, ...]] = [(1024, 4096), (1024, 1024), (1024,), (4096, 1024)]
        shapes += block if left > 1 << 23 else [(left,)]
    specs = [
        TensorSpec(name=f"{n:05d}", shape=shape, dtype="float32", merge="rda")
        for n, shape in enumerate(shapes)
    ]
    return build_layout(specs, fragments=1, shards=1)


class Shard:
    """One shard with one slice that commits what it is given."""

    def __init__(self, folder: Path, layout: Layout, learners: int) -> None:
        self.store = FileStore(folder)
        self.store.open()
        self.journal = Journal(self.store, time.time)
        self.values = TensorValues.allocate(layout, 0, Sync(fragments=1))
        self.objects: list[str] = []
        count = layout.slice(0, 0).element_count
        seed = pb.Transfer(seed=pb.Seed(), encoding=pb.F32)
        data = bytearray(arrays.encode(normal(count), pb.F32))
        self.values.keep(SESSION, 0, self.values.examine(seed, data))
        (making,) = self.values.begin_seed(StoreSeed(SESSION), "run", 1)
        making.compute()
        self._durable(making.write(self.store))
        self.data = [bytearray(arrays.encode(normal(count), pb.BF16)) for _ in range(learners)]

    def arrive(self, learner: int) -> Participant:
        """Examine and stage an offer of which the last byte is in."""
        head = pb.Transfer(offer=pb.Offer(), encoding=pb.BF16)
        slot = f"a-{learner}"
        self.values.stage(Stage(slot, 1, 0, 1), self.values.examine(head, self.data[learner]))
        return Participant(
            slot=slot, incarnation=1, capture=1, base=0, steps=1, tokens=1, cursor=1, weight=1.0
        )

    def commit(self) -> None:
        """Take all offers in, from the last byte of each to the last frame of what is published."""
        while len(self.objects) > 2:
            self.store.delete(self.objects.pop(0))
        participants = tuple(self.arrive(learner) for learner in range(len(self.data)))
        making = self.values.begin_merge(MergeOffers(0, participants, 0.9), "run", 1)
        making.compute()
        outcome = making.write(self.store)
        self._durable(outcome)
        payload = self.values.publish_payload(0, outcome.number, None)
        head = pb.Transfer(encoding=payload.encoding, byte_count=len(payload.data))
        for _frame in transfer_frames(1, head, payload.data):
            pass

    def _durable(self, outcome: StoredVersion) -> None:
        self.journal.append(Begun(shard=outcome.number))  # any entry: one small file
        self.values.committed(0)
        self.objects.append(outcome.object)


def through_frames(payload: bytearray | memoryview) -> None:
    """Cut a payload into frames and assemble them again: three copies and two checksums."""
    head = pb.Transfer(seed=pb.Seed(), encoding=pb.BF16, byte_count=len(payload))
    assembler = Assembler(lambda head: head.byte_count)
    arrived = [assembler.feed(frame) for frame in transfer_frames(1, head, payload)]
    assert arrived[-1] is not None


def based(values: Array) -> arrays.Base:
    return arrays.packed(arrays.byte_view(values.astype(BF16)), pb.BF16, Form(0, values.size))


def cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the least of several, after one that warms up."""
    spent = []
    for _ in range(rounds + 1):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return min(spent[1:])


def of_cpu(count: int, rounds: int, folder: Path) -> Iterator[Figure]:
    """Print CPU of a value that is due beside the constants of `atoll plan`, in bf16."""
    layout, values = model(count), normal(count)
    few, many = (
        1e9 / count * cpu_seconds(Shard(folder / str(n), layout, n).commit, rounds)
        for n in (FEW, MANY)
    )
    base, out = based(values), np.empty_like(values)

    def transport() -> None:
        offer = arrays.pack(arrays.difference(base, values), pb.BF16, base.form)
        through_frames(offer)
        arrays.decode(offer, pb.BF16, out)

    learner, each = 1e9 / count * cpu_seconds(transport, rounds), (many - few) / (MANY - FEW)
    rows = [
        ("a shard, of each offer", each, 5e9 * MERGE_SECONDS),
        ("a shard, once", few - FEW * each, 13e9 * MERGE_SECONDS),
        ("a learner's transport", learner, 1e9 * TRANSPORT_SECONDS),
    ]
    show("ns of CPU for each value", ("work", "measured", "of the plan"), rows)
    yield Figure(what="a learner's transport", values=[learner], unit="ns")
    yield Figure(what=f"a shard, of {FEW} and of {MANY} learners", values=[few, many], unit="ns")


def copies(step_ticks: float, seed: int = 1) -> tuple[float, float]:
    """Return copies of a slice for one due tick, and the share of Calls answered at once.

    The learner's steps take `step_ticks` ticks and 10% noise; the clock is even.
    """
    draw = random.Random(seed)
    now, count, at_once, dues = 0.0, 0, 0, 0
    held: list[int] = []
    while now < TICKS:
        wanted = ahead(SYNC, now, 1.0, step_ticks)
        after = now + step_ticks * draw.uniform(1 - NOISE, 1 + NOISE)
        for tick in range(math.floor(now) + 1, math.floor(after) + 1):
            for fragment in range(SYNC.fragment_count):
                if next_due(SYNC, fragment, tick - 1) == tick:
                    dues += 1
                    if fragment in held:
                        at_once += 1
                    elif fragment not in wanted:
                        wanted.append(fragment)  # for the Call itself
        now, held = after, wanted
        count += len(held)
    return count / dues, at_once / dues


def of_copies() -> Iterator[Figure]:
    """Print how often a learner copies a slice for one offer."""
    table = [(step, *copies(step)) for step in STEPS]
    show("P = H = 24", ("ticks in a step", "copies of a slice", "Calls answered at once"), table)
    for name, column, factor, unit in (("copies", 1, 1, ""), ("at once", 2, 100, "%")):
        values = [factor * row[column] for row in table]
        what = f"ahead, once, {name}: least and most"
        yield Figure(what=what, values=[min(values), max(values)], unit=unit)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=26_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    option(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures = [*of_cpu(given.elements, given.rounds, Path(folder)), *of_copies()]
    publish(given, figures, about=f"{given.elements:,} values; steps of {STEPS} ticks.")


if __name__ == "__main__":
    main()
