"""The transport's numbers: what is sent is the base less theta, and the base stays what it is."""

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.codecs import Wire, base_encoding
from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.run import Sync
from atoll_worker.link import memory
from atoll_worker.link.socket import memory_plan
from atoll_worker.transport.numbers import ArrayNumbers

COUNT = 64


def layout(dtype: str = "float32", merge: str = "rda") -> Layout:
    """One tensor."""
    return build_layout([TensorSpec(name="t", shape=(COUNT,), dtype=dtype, merge=merge)], 1, 1)


def numbers(wire_down: Wire, of: Layout | None = None) -> tuple[ArrayNumbers, memory.Memory]:
    sync = Sync(fragments=1, period=4, wire_up=Wire.F32, wire_down=wire_down)
    of = of or layout()
    plan = memory_plan(of, sync, observer=False)
    descriptor = memory.create()
    memory.resize(descriptor, plan)
    shared = memory.attach(plan, descriptor)
    os.close(descriptor)
    return ArrayNumbers(shared, sync, of), shared


@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_an_offer_leaves_the_base_as_it_is_so_that_it_can_be_offered_again(wire_down: Wire) -> None:
    made, shared = numbers(wire_down)
    base = np.arange(COUNT).astype(arrays.FLOATS[base_encoding(wire_down)])
    before = base.tobytes()
    shared.capture(0, 0)[:] = np.full(COUNT, 2.0, np.float32).tobytes()
    first = made.difference(0, 0, base)
    assert base.tobytes() == before
    assert first.tolist() == [number - 2.0 for number in range(COUNT)]
    assert made.difference(0, 0, base).tobytes() == first.tobytes()


def test_a_difference_keeps_its_values_when_the_region_is_captured_again() -> None:
    made, shared = numbers(Wire.F32)
    difference = made.difference(0, 0, np.zeros(COUNT, np.float32))
    shared.capture(0, 0)[:] = np.ones(COUNT, np.float32).tobytes()
    assert not difference.any()


def test_a_difference_is_added_to_the_base_that_is_held() -> None:
    made, _ = numbers(Wire.INT8)
    held = np.ones(COUNT, ml_dtypes.bfloat16)
    data = bytearray(arrays.encode(np.full(COUNT, 3.0, np.float32), pb.INT8))
    decoded = made.decode(pb.Publish(difference=True), pb.INT8, data, held)
    assert decoded.dtype == ml_dtypes.bfloat16
    assert decoded.tolist() == [4.0] * COUNT
    assert held.tolist() == [1.0] * COUNT


def test_a_base_and_a_seed_go_bit_for_bit() -> None:
    made, shared = numbers(Wire.BF16)
    base = np.random.default_rng(0).random(COUNT).astype(ml_dtypes.bfloat16)
    encoding, data = made.encode_base(base)
    assert encoding == pb.BF16
    again = made.decode(pb.Publish(), encoding, bytearray(data), None)
    assert again.tobytes() == base.tobytes()
    made.place(0, 0, base)
    assert shared.adopt(0, 0) == base.tobytes()
    shared.capture(0, 0)[:] = base.astype(np.float32).tobytes()
    encoding, data = made.encode_seed(0, 0)
    assert encoding == pb.F32
    seed = made.decode(pb.Publish(), encoding, bytearray(data), None)
    assert seed.tobytes() == base.astype(np.float32).tobytes()


# ------------------------------------------------------------ what a learner does not hold exactly


def random(seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(COUNT).astype(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_a_learner_that_has_trained_nothing_offers_nothing_also_in_16_bits_rule_16(
    dtype: str, wire_down: Wire
) -> None:
    """[Else every learner offers the rounding of its parameters, and pulls the masters back.]"""
    made, shared = numbers(wire_down, layout(dtype))
    base = random().astype(arrays.FLOATS[base_encoding(wire_down)])
    held = base.astype(arrays.DTYPES[dtype]).astype(np.float32)
    shared.capture(0, 0)[:] = held.tobytes()
    assert not made.difference(0, 0, base).any()
    shared.capture(0, 0)[:] = (held - 0.25).tobytes()
    assert made.difference(0, 0, base).tolist() == [0.25] * COUNT


@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16, Wire.INT4])
def test_a_buffer_that_does_not_change_offers_nothing_though_its_base_is_rounded_rule_18(
    wire_down: Wire,
) -> None:
    made, shared = numbers(wire_down, layout(merge="average"))
    own = random()
    base = own.astype(arrays.FLOATS[base_encoding(wire_down)])
    shared.capture(0, 0)[:] = own.tobytes()
    assert not made.difference(0, 0, base).any()
    changed = own.copy()
    changed[3] += 1.0
    shared.capture(0, 0)[:] = changed.tobytes()
    found = made.difference(0, 0, base)
    assert np.flatnonzero(found).tolist() == [3]
    assert found[3] == np.float32(base[3]) - changed[3]


def test_a_parameter_offers_the_rounding_of_its_base_for_only_a_buffer_keeps_its_own() -> None:
    made, shared = numbers(Wire.BF16, layout(merge="mean"))
    own = random()
    base = own.astype(ml_dtypes.bfloat16)
    shared.capture(0, 0)[:] = own.tobytes()
    assert made.difference(0, 0, base).tobytes() == (base.astype(np.float32) - own).tobytes()


def test_the_rounding_is_that_of_each_tensor_in_a_slice_of_several() -> None:
    specs = [
        TensorSpec(name="a", shape=(8,), dtype="float32", merge="rda"),
        TensorSpec(name="b", shape=(16,), dtype="bfloat16", merge="rda"),
        TensorSpec(name="c", shape=(40,), dtype="float16", merge="average"),
    ]
    of = build_layout(specs, 1, 1)
    made, shared = numbers(Wire.F32, of)
    base = random()
    held = base.copy()
    for piece in of.slices[0].pieces:
        part = slice(piece.offset, piece.offset + piece.element_count)
        dtype = arrays.DTYPES[of.tensors[piece.tensor].dtype]
        held[part] = base[part].astype(dtype).astype(np.float32)
    shared.capture(0, 0)[:] = held.tobytes()
    assert not made.difference(0, 0, base).any()
    shared.capture(0, 0)[:] = (held + 1).tobytes()
    assert made.difference(0, 0, base) == pytest.approx(np.full(COUNT, -1.0), abs=1e-3)
