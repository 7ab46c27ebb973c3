"""What each stage of a slice's way costs: ns of a value, and what a learner's loop waits for it.

In tests/: python -m bench.stages [--elements COUNT] [--folder FOLDER_ON_THE_DISK] [--json FILE]

Medians of interleaved rounds on one thread; `of add` is the traffic over memory against that of an
addition in the same run. A commit's stages are in the order of a shard: from the last byte of the
last offer to the last frame of what is published, with the object on the disk. CPU is that of this
process, all threads, so that other load hardly matters; without gRPC and TLS, which `bench.tls`
measures, while the constants of `atoll plan` contain them. A shard's time grows with the learners:
two numbers of them give the part of each, and what a commit needs once.
"""

import argparse
import asyncio
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402
import xxhash  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_operator.sizing.needs import MERGE_SECONDS, TRANSPORT_SECONDS  # noqa: E402
from atoll_protos.job.layout import Layout, TensorSpec, build_layout  # noqa: E402
from atoll_protos.job.run_file import Merge, Sync  # noqa: E402
from atoll_protos.job.schedule import ahead, next_due  # noqa: E402
from atoll_protos.transfer import arrays, codecs  # noqa: E402
from atoll_protos.transfer.arrays import BF16, F32, Array  # noqa: E402
from atoll_protos.transfer.codecs import Form, Wire, encoding_of  # noqa: E402
from atoll_protos.transfer.frames import Assembler, transfer_frames  # noqa: E402
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed  # noqa: E402
from atoll_syncer.model.log import Begun, Participant  # noqa: E402
from atoll_syncer.numbers.values import StoredVersion, TensorValues  # noqa: E402
from atoll_syncer.storage.files import FileStore  # noqa: E402
from atoll_syncer.storage.journal import Journal  # noqa: E402
from bench.results import Figure, option, publish  # noqa: E402
from bench.table import interleaved, show  # noqa: E402

SESSION: Final = 1
DICE: Final = np.random.default_rng(0)
FEW, MANY = 2, 6  # learners
TICK_SECONDS: Final = 0.002  # of the task that shows how long the loop is blocked
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

    def __init__(self, folder: Path, layout: Layout, sync: Sync, learners: int) -> None:
        self.store = FileStore(folder)
        self.store.open()
        self.journal = Journal(self.store, time.time)
        self.values = TensorValues.allocate(layout, 0, sync)
        self.learners = learners
        self.objects: list[str] = []
        self.stages: dict[str, list[float]] = {}
        count = layout.slice(0, 0).element_count
        seed = pb.Transfer(seed=pb.Seed(), encoding=pb.F32)
        data = bytearray(arrays.encode(normal(count), pb.F32))
        self.values.keep(SESSION, 0, self.values.examine(seed, data))
        (making,) = self.values.begin_seed(StoreSeed(SESSION), "run", 1)
        making.compute()
        self._durable(making.write(self.store))
        encoding = encoding_of(sync.wire_up)
        self.head = pb.Transfer(offer=pb.Offer(), encoding=encoding)
        self.data = [bytearray(arrays.encode(normal(count), encoding)) for _ in range(learners)]

    def arrive(self, learner: int) -> Participant:
        """Examine and stage an offer of which the last byte is in."""
        offer = self.values.examine(self.head, self.data[learner])
        slot = f"a-{learner}"
        self.values.stage(Stage(slot, 1, 0, 1), offer)
        return Participant(
            slot=slot, incarnation=1, capture=1, base=0, steps=1, tokens=1, cursor=1, weight=1.0
        )

    def commit(self) -> None:
        """Take all offers in; the laps are of the last one, and of what follows."""
        while len(self.objects) > 2:
            self.store.delete(self.objects.pop(0))
        participants = [self.arrive(learner) for learner in range(self.learners - 1)]
        begun = time.perf_counter()

        def lap(name: str) -> None:
            nonlocal begun
            now = time.perf_counter()
            self.stages.setdefault(name, []).append(now - begun)
            begun = now

        participants.append(self.arrive(self.learners - 1))
        lap("examine")
        making = self.values.begin_merge(MergeOffers(0, tuple(participants), 0.9), "run", 1)
        making.compute()
        lap("merge")
        outcome = making.write(self.store)
        lap("object")
        self._durable(outcome)
        lap("entry")
        payload = self.values.publish_payload(0, outcome.number, None)
        head = pb.Transfer(encoding=payload.encoding, byte_count=len(payload.data))
        for _frame in transfer_frames(1, head, payload.data):
            pass
        lap("frames")

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


def offered(base: arrays.Base, theta: Array, encoding: pb.Encoding) -> memoryview:
    """Form an offer as a transport process makes it."""
    return arrays.pack(arrays.difference(base, theta), encoding, base.form)


def based(values: Array) -> arrays.Base:
    return arrays.packed(arrays.byte_view(values.astype(BF16)), pb.BF16, Form(0, values.size))


def of_codecs(count: int, rounds: int) -> None:
    """Print what codecs, checksums and frames take."""
    values = normal(count)
    other, out, base = values.copy(), np.empty_like(values), based(values)
    cases: dict[str, Callable[[], object]] = {"add": lambda: np.add(other, values, out=other)}
    traffic = {"add": 12 * count}
    for wire in Wire:
        encoding = encoding_of(wire)
        data = arrays.encode(values, encoding)
        works: dict[str, Callable[[], object]] = {
            "encode": partial(arrays.encode, values, encoding),
            "decode": partial(arrays.decode, data, encoding, out),
            "offer": partial(offered, base, values, encoding),
            "next base": partial(arrays.moved, base, data, encoding),
        }
        for name, work in works.items():
            cases[f"{wire} {name}"] = work
            traffic[f"{wire} {name}"] = 4 * count + len(data) + 2 * count * (name == "offer")
    sent = bytearray(arrays.encode(values, pb.BF16))
    cases |= {
        "xxh3_64": partial(xxhash.xxh3_64_intdigest, sent),
        "sha256": partial(codecs.digest, sent),
        "frames and back": partial(through_frames, sent),
    }
    traffic |= {"xxh3_64": len(sent), "sha256": len(sent), "frames and back": 8 * len(sent)}
    seconds = interleaved(cases, rounds)
    bandwidth = traffic["add"] / seconds["add"]
    rows = [
        (name, 1e9 * s / count, traffic[name] / s / 1e9, traffic[name] / s / bandwidth)
        for name, s in seconds.items()
    ]
    show(f"{count:,} values", ("stage", "ns a value", "GB/s", "of add"), rows)


def of_commits(count: int, rounds: int, folder: Path) -> None:
    """Print a commit's stages, and the disk alone with as many bytes as an object has."""
    layout, plain = model(count), memoryview(bytearray(8 * count))  # master and momentum
    store = FileStore(folder / "plain")
    store.open()

    def write() -> None:
        store.delete(store.put([plain], 1))

    rows: list[tuple[object, ...]] = []
    for wire in (Wire.F32, Wire.BF16, Wire.INT8, Wire.INT4):
        for merge in Merge:
            sync = Sync(fragments=1, merge=merge, wire_up=wire)
            shard = Shard(folder / f"{wire}-{merge}", layout, sync, 4)
            seconds = interleaved({"commit": shard.commit, "disk": write}, rounds)
            laps = [statistics.median(each[1:]) for each in shard.stages.values()]
            ns = [1e9 * s / count for s in (*laps, seconds["disk"])]
            rows.append((f"{wire} {merge}", *ns))
            names = [*shard.stages]
    show(f"A commit of 4 offers of {count:,} values, ns a value", ("", *names, "disk alone"), rows)


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
        1e9
        / count
        * cpu_seconds(Shard(folder / str(n), layout, Sync(fragments=1), n).commit, rounds)
        for n in (FEW, MANY)
    )
    base, out = based(values), np.empty_like(values)

    def transport() -> None:
        offer = offered(base, values, pb.BF16)
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


def longest_stop(work: Callable[[], object]) -> float:
    """Return the seconds for which a task that is due every TICK_SECONDS did not run.

    The work is done in a thread beside it.
    """

    async def scenario() -> float:
        stops, over = [0.0], asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                before = time.perf_counter()
                await asyncio.sleep(TICK_SECONDS)
                stops.append(time.perf_counter() - before - TICK_SECONDS)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(10 * TICK_SECONDS)
        stops.clear()
        await asyncio.to_thread(work)
        await asyncio.sleep(2 * TICK_SECONDS)
        over.set()
        await watching
        return max(stops)

    return asyncio.run(scenario())


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


def of_learner(count: int, rounds: int) -> Iterator[Figure]:
    """Print what an offer costs a learner's loop, and how often a slice is copied for one."""
    theta, table = normal(count), [(step, *copies(step)) for step in STEPS]
    base = based(-theta)
    seconds = interleaved({"difference": lambda: arrays.difference(base, theta)}, rounds)
    formed, stop = (
        1e3 * seconds["difference"],
        1e3 * longest_stop(lambda: arrays.difference(base, theta)),
    )
    show("A difference, ms", ("formed", "the loop stops"), [(formed, stop)])
    show("P = H = 24", ("ticks in a step", "copies of a slice", "Calls answered at once"), table)
    for name, column, factor, unit in (("copies", 1, 1, ""), ("at once", 2, 100, "%")):
        values = [factor * row[column] for row in table]
        what = f"ahead, once, {name}: least and most"
        yield Figure(what=what, values=[min(values), max(values)], unit=unit)
    yield Figure(what="a difference is formed", values=[formed], unit="ms")
    yield Figure(what="the loop's longest stop, in a thread", values=[stop], unit="ms")


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
    count, rounds = given.elements, given.rounds
    of_codecs(count, rounds)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        of_commits(count, rounds, Path(folder))
        figures = [*of_cpu(count, rounds, Path(folder)), *of_learner(count, rounds)]
    publish(given, figures, about=f"{count:,} values; steps of {STEPS} ticks.")


if __name__ == "__main__":
    main()
