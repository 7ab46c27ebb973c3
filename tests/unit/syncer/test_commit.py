"""Which rule of merging each tensor of a slice takes, and what a value taken back begins with."""

from dataclasses import replace
from pathlib import Path

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Merge as MergeKind
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model.effects import StoreHeld
from atoll_syncer.model.log import SliceTensors, round_master
from atoll_syncer.numbers.commit import advance, advance_finite, examine, recipe
from atoll_syncer.numbers.workers import Workers
from unit.syncer.values_side import LAYOUT, Bench

ALONE = Workers(1)


def floats(*values: float) -> Array:
    return np.array(values, F32)


def test_matrices_take_the_mean_length_and_embeddings_the_plain_mean_rule_18() -> None:
    """Two differences at a right angle: their mean has the length 1/sqrt(2), RDA has 1."""
    sync = Sync(
        fragments=1,
        merge=MergeKind.RADIAL_DIRECTIONAL,
        outer_learning_rate=1.0,
        outer_momentum=0.0,
        wire_up=Wire.F32,
        wire_down=Wire.F32,
    )
    specs = [
        TensorSpec(name="embedding", shape=(1, 2), dtype="float32", merge="mean"),
        TensorSpec(name="matrix", shape=(1, 2), dtype="float32", merge="rda"),
    ]
    layout = build_layout(specs, 1, 1)
    offers = []
    for values in ([1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]):
        head = pb.Transfer(offer=pb.Offer(slice=0), encoding=pb.F32)
        offers.append(examine(layout, 0, head, arrays.byte_view(floats(*values)), ALONE))
    base = arrays.empty_packed(pb.F32, layout.slice(0, 0).form)
    state = SliceTensors(master=floats(0, 0, 0, 0), momentum=floats(0, 0, 0, 0), base=base)
    round_master(state.master, base)
    steps = recipe(layout, layout.slice(0, 0), sync)
    made = advance(state, offers, [1.0, 1.0], steps, ALONE, momentum=0.0)
    embedding, matrix = made.base.coded[:2], made.base.coded[2:]
    assert np.allclose(embedding, -0.5)
    assert np.allclose(matrix, -(0.5**0.5))


def test_a_version_taken_back_ends_the_momentum_that_was_there_rule_22(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    bench.round(0, 3)
    part = bench.values.slices[0]
    assert part.momentum.any()
    data = bytearray(bench.values.bases()[0].data)
    version = pb.Version(run="run", number=1, epoch=1, digest=bench.entries[-1].digest)
    held = pb.Held(version=pb.SliceVersion(slice=0, version=version))
    arrived = examine(LAYOUT, 0, pb.Transfer(held=held, encoding=pb.BF16), data, ALONE)
    bench.values.keep(4, 0, arrived)
    bench.values.begin_held(StoreHeld(0, 4, 2), "run", 2).compute()
    assert not part.momentum.any()


def far_out(*offers: list[float], **state: list[float]) -> tuple[SliceTensors, frozenset[int]]:
    """One commit of two tensors of two values, with a step that multiplies by 100."""
    sync = Sync(fragments=1, merge=MergeKind.MEAN, wire_up=Wire.F32, wire_down=Wire.F32)
    specs = [
        TensorSpec(name=name, shape=(2,), dtype="float32", merge="rda") for name in ("one", "two")
    ]
    layout = build_layout(specs, 1, 1)
    arrived = []
    for values in offers:
        head = pb.Transfer(offer=pb.Offer(slice=0), encoding=pb.F32)
        arrived.append(examine(layout, 0, head, arrays.byte_view(floats(*values)), ALONE))
    known = {"master": [0.0] * 4, "momentum": [0.0] * 4, **state}
    base = arrays.empty_packed(pb.F32, layout.slice(0, 0).form)
    before = SliceTensors(
        master=floats(*known["master"]), momentum=floats(*known["momentum"]), base=base
    )
    round_master(before.master, base)
    steep = replace(recipe(layout, layout.slice(0, 0), sync), learning_rate=100.0)
    weights = [1.0] * len(arrived)
    _, left_out = advance_finite(before, arrived, weights, steep, ALONE, momentum=0.9)
    return before, left_out


def test_the_momentum_counts_where_a_version_may_leave_f32_rule_12() -> None:
    """The offer is small; what earlier steps have left would carry the master out of f32."""
    state, left_out = far_out([1.0] * 4, momentum=[9e36] * 4)
    assert left_out == {0}
    assert not state.master.any()
    assert np.array_equal(state.momentum, floats(*[9e36] * 4))


def test_the_longest_offer_of_any_tensor_is_left_out_first_rule_12() -> None:
    state, left_out = far_out([2.0, 0.0, 1.0, 0.0], [1.0, 0.0, 3e38, 0.0])
    assert left_out == {1}
    assert np.isfinite(state.master).all()
