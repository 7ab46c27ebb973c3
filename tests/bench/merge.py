"""Memory traffic of merge + outer step + rounding over that of `add_`.

In tests/: python -m bench.merge
"""

import argparse
import os
from collections.abc import Callable
from functools import partial

from atoll_protos.allocator import tune

tune()  # before torch is imported: page faults come first

import torch  # noqa: E402

import atoll_protos.v1.atoll_pb2 as pb  # noqa: E402
from atoll_protos import tensors  # noqa: E402
from atoll_protos.codecs import Wire, base_encoding, encoding_of  # noqa: E402
from atoll_protos.layout import Layout, TensorSpec, build_layout  # noqa: E402
from atoll_protos.run import Merge, Sync  # noqa: E402
from atoll_syncer.model.slices import SliceTensors, round_master  # noqa: E402
from atoll_syncer.numbers.arrivals import Arrived, examine, slice_norms  # noqa: E402
from atoll_syncer.numbers.commit import advance, recipe  # noqa: E402
from atoll_syncer.numbers.merge import Scratch  # noqa: E402
from bench.table import interleaved, show  # noqa: E402


def model(element_count: int) -> Layout:
    """One slice of a transformer's tensors."""
    shapes: list[tuple[int, ...]] = []
    while (left := element_count - sum(map(torch.Size.numel, map(torch.Size, shapes)))) > 0:
        block: list[tuple[int, ...]] = [(1024, 4096), (1024, 1024), (1024,), (4096, 1024)]
        shapes += block if left > 1 << 23 else [(left,)]
    specs = [
        TensorSpec(name=f"{n:05d}", shape=shape, dtype="float32", merge="rda")
        for n, shape in enumerate(shapes)
    ]
    return build_layout(specs, fragments=1, shards=1)


def case(layout: Layout, offers: list[Arrived], sync: Sync) -> Callable[[], object]:
    """One commit's arithmetic, repeatable."""
    steps = recipe(layout, layout.slice(0, 0), sync)
    master = torch.randn(steps.element_count)
    state = SliceTensors(
        master=master,
        momentum=torch.zeros(steps.element_count),
        base=tensors.empty_packed(base_encoding(sync.wire_down), steps.form),
    )
    round_master(master, state.base)
    scratch = Scratch(steps.sum_elements)
    weights = [1.0 + n for n in range(len(offers))]
    return lambda: advance(state, offers, weights, steps, scratch, momentum=0.9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=26_000_000)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    layout = model(arguments.elements)
    owned = layout.slice(0, 0)
    count = owned.element_count
    left, right = torch.ones(count), torch.ones(count)
    cases: dict[str, Callable[[], object]] = {"add_": lambda: left.add_(right)}
    traffic = {"add_": 12.0 * count}
    for wire in Wire:
        encoding = encoding_of(wire)
        offers = [
            examine(
                layout,
                0,
                pb.Transfer(offer=pb.Offer(), encoding=encoding),
                tensors.encode(torch.randn(count), encoding),
            )
            for _ in range(arguments.learners)
        ]
        offered = sum(offer.byte_count for offer in offers)
        for merge in Merge:
            name = f"{wire} {merge}"
            cases[name] = case(layout, offers, Sync(fragments=1, merge=merge))
            traffic[name] = offered + (8 + 8 + 2) * count  # master, momentum, base
        cases[f"{wire} norms on arrival"] = partial(slice_norms, owned, offers[0].values)
        traffic[f"{wire} norms on arrival"] = offers[0].byte_count
    for wire in (Wire.INT8, Wire.INT4):
        name = f"bf16 up, {wire} down, Mean"
        sync = Sync(fragments=1, merge=Merge.MEAN, wire_down=wire)
        head = pb.Transfer(offer=pb.Offer(), encoding=pb.BF16)
        data = tensors.encode(torch.randn(count), pb.BF16)
        offers = [examine(layout, 0, head, data)] * arguments.learners
        cases[name] = case(layout, offers, sync)
        traffic[name] = sum(offer.byte_count for offer in offers) + (8 + 8 + 2 + 2) * count
    seconds = interleaved(cases, arguments.rounds)
    bandwidth = traffic["add_"] / seconds["add_"]
    show(
        f"R4: {count:,} elements, {arguments.learners} learners, one thread of {os.cpu_count()}",
        ("case", "ms", "GB/s", "R4"),
        [
            (name, s * 1e3, traffic[name] / s / 1e9, traffic[name] / s / bandwidth)
            for name, s in seconds.items()
        ],
    )


if __name__ == "__main__":
    main()
