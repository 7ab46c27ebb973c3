"""Memory traffic of merge + outer step + rounding over that of an addition.

In tests/: python -m bench.merge
"""

import argparse
from collections.abc import Callable
from functools import partial
from math import prod

from atoll_protos.allocator import tune

tune()  # before numpy is imported: page faults come first

import numpy as np  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_protos.job.layout import Layout, Slice, TensorSpec, build_layout  # noqa: E402
from atoll_protos.job.run_file import Merge, Sync  # noqa: E402
from atoll_protos.transfer import arrays  # noqa: E402
from atoll_protos.transfer.arrays import F32, Array  # noqa: E402
from atoll_protos.transfer.codecs import Wire, base_encoding, encoding_of  # noqa: E402
from atoll_syncer.model.slices import SliceTensors, round_master  # noqa: E402
from atoll_syncer.numbers.arrivals import Arrived, Encoded, examine  # noqa: E402
from atoll_syncer.numbers.commit import advance, recipe  # noqa: E402
from atoll_syncer.numbers.merge import norm  # noqa: E402
from atoll_syncer.numbers.workers import Workers  # noqa: E402
from bench.table import interleaved, show  # noqa: E402


def normal(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(count, F32)


def norms(owned: Slice, values: Encoded, workers: Workers) -> list[float]:
    """|v| of every piece of the slice, as a shard takes them of what arrives."""
    return [
        norm(values, range(p.offset, p.offset + p.element_count), workers) for p in owned.pieces
    ]


def model(element_count: int) -> Layout:
    """One slice of a transformer's tensors."""
    shapes: list[tuple[int, ...]] = []
    while (left := element_count - sum(map(prod, shapes))) > 0:
        block: list[tuple[int, ...]] = [(1024, 4096), (1024, 1024), (1024,), (4096, 1024)]
        shapes += block if left > 1 << 23 else [(left,)]
    specs = [
        TensorSpec(name=f"{n:05d}", shape=shape, dtype="float32", merge="rda")
        for n, shape in enumerate(shapes)
    ]
    return build_layout(specs, fragments=1, shards=1)


def case(layout: Layout, offers: list[Arrived], sync: Sync, threads: int) -> Callable[[], object]:
    """One commit's arithmetic, repeatable."""
    steps = recipe(layout, layout.slice(0, 0), sync)
    state = SliceTensors(
        master=normal(steps.element_count),
        momentum=np.full(steps.element_count, 0, F32),
        base=arrays.empty_packed(base_encoding(sync.wire_down), steps.form),
    )
    round_master(state.master, state.base)
    workers = Workers(threads)
    weights = [1.0 + n for n in range(len(offers))]
    return lambda: advance(state, offers, weights, steps, workers, momentum=0.9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=26_000_000)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    threads, workers = arguments.threads, Workers(arguments.threads)
    layout = model(arguments.elements)
    owned = layout.slice(0, 0)
    count = owned.element_count
    left, right = np.full(count, 1, F32), np.full(count, 1, F32)
    cases: dict[str, Callable[[], object]] = {"add": lambda: np.add(left, right, out=left)}
    traffic = {"add": 12.0 * count}
    for wire in Wire:
        encoding = encoding_of(wire)
        offers = [
            examine(
                layout,
                0,
                pb.Transfer(offer=pb.Offer(), encoding=encoding),
                arrays.encode(normal(count, seed), encoding),
                workers,
            )
            for seed in range(arguments.learners)
        ]
        offered = sum(offer.byte_count for offer in offers)
        for merge in Merge:
            name = f"{wire} {merge}"
            cases[name] = case(layout, offers, Sync(fragments=1, merge=merge), threads)
            traffic[name] = offered + (8 + 8 + 2) * count  # master, momentum, base
        cases[f"{wire} norms on arrival"] = partial(norms, owned, offers[0].values, workers)
        traffic[f"{wire} norms on arrival"] = offers[0].byte_count
    for wire in (Wire.INT8, Wire.INT4):
        name = f"bf16 up, {wire} down, Mean"
        sync = Sync(fragments=1, merge=Merge.MEAN, wire_down=wire)
        head = pb.Transfer(offer=pb.Offer(), encoding=pb.BF16)
        data = arrays.encode(normal(count), pb.BF16)
        offers = [examine(layout, 0, head, data, workers)] * arguments.learners
        cases[name] = case(layout, offers, sync, threads)
        traffic[name] = sum(offer.byte_count for offer in offers) + (8 + 8 + 2 + 2) * count
    seconds = interleaved(cases, arguments.rounds)
    bandwidth = traffic["add"] / seconds["add"]
    show(
        f"R4: {count:,} elements, {arguments.learners} learners, {threads} threads",
        ("case", "ms", "GB/s", "R4"),
        [
            (name, s * 1e3, traffic[name] / s / 1e9, traffic[name] / s / bandwidth)
            for name, s in seconds.items()
        ],
    )


if __name__ == "__main__":
    main()
