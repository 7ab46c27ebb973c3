"""CPU of a shard and of a learner's transport for each value, beside the constants of `atoll plan`.

In tests/: python -m bench.sizing [--elements COUNT] [--json FILE]

CPU seconds of this process, all threads, so that other load hardly matters. A shard's time grows
with the learners: two numbers of them give the part of each, and what a commit needs once. Without
gRPC and TLS, which docs/security.md measures; the constants contain them.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_operator.sizing.machines import TRANSPORT_SECONDS  # noqa: E402
from atoll_operator.sizing.traffic import MERGE_SECONDS  # noqa: E402
from atoll_protos.job.run_file import Sync  # noqa: E402
from atoll_protos.transfer import arrays  # noqa: E402
from atoll_protos.transfer.arrays import BF16, F32  # noqa: E402
from atoll_protos.transfer.codecs import Form  # noqa: E402
from atoll_protos.transfer.frames import Assembler, transfer_frames  # noqa: E402
from bench.commit import Shard  # noqa: E402
from bench.merge import model  # noqa: E402
from bench.results import Figure, option, publish  # noqa: E402
from bench.table import show  # noqa: E402

FEW, MANY = 2, 6  # learners


def cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """The least of several, after one that warms up."""
    found = []
    for _ in range(rounds + 1):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found[1:])


def through_frames(payload: bytearray | memoryview) -> None:
    """Cut into frames on one side, and assemble on the other."""
    head = pb.Transfer(seed=pb.Seed(), encoding=pb.BF16, byte_count=len(payload))
    assembler = Assembler(lambda head: head.byte_count)
    for frame in transfer_frames(1, head, payload):
        assembler.feed(frame)


def of_shard(elements: int, learners: int, rounds: int) -> float:
    """One commit with its offers, in bf16."""
    with tempfile.TemporaryDirectory() as folder:
        shard = Shard(Path(folder), model(elements), Sync(fragments=1), learners)
        return cpu_seconds(lambda: shard.commit(shard.prepare()), rounds)


def of_learner(elements: int, rounds: int) -> float:
    """An offer is formed and sent, and a version arrives and is decoded."""
    values = np.random.default_rng(0).standard_normal(elements, F32)
    base = arrays.packed(arrays.byte_view(values.astype(BF16)), pb.BF16, Form(0, elements))
    out = np.empty_like(values)

    def work() -> None:
        offer = arrays.pack(arrays.difference(base, values), pb.BF16, base.form)
        through_frames(offer)
        arrays.decode(offer, pb.BF16, out)

    return cpu_seconds(work, rounds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    option(parser)
    given = parser.parse_args()
    few, many = (of_shard(given.elements, each, given.rounds) for each in (FEW, MANY))
    each = (many - few) / (MANY - FEW)
    nanoseconds = 1e9 / given.elements
    rows: list[tuple[object, ...]] = [
        ("a shard, of each offer", each * nanoseconds, 5 * MERGE_SECONDS * 1e9),
        ("a shard, once", (few - FEW * each) * nanoseconds, 13 * MERGE_SECONDS * 1e9),
        (
            "a learner's transport",
            of_learner(given.elements, given.rounds) * nanoseconds,
            TRANSPORT_SECONDS * 1e9,
        ),
    ]
    show(
        f"ns of CPU for each of {given.elements:,} values, {os.cpu_count()} cores, load"
        f" {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}",
        ("work", "measured", "of the plan"),
        rows,
    )
    shards = [few * nanoseconds, many * nanoseconds]
    learner = float(str(rows[-1][1]))
    figures = [
        Figure(what="a learner's transport", values=[learner], unit="ns"),
        Figure(what=f"a shard, of {FEW} and of {MANY} learners", values=shards, unit="ns"),
    ]
    publish(given, figures, about="CPU of each value that is due, without gRPC and TLS.")


if __name__ == "__main__":
    main()
