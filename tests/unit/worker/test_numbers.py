"""The transport's numbers: what is sent is the base less theta, and the base stays what it is."""

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.codecs import Wire, base_encoding, encoded_size, encoding_of
from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.parts import ALL, Share, part_spans
from atoll_protos.run import Sync
from atoll_worker.link import memory
from atoll_worker.link.socket import memory_plan
from atoll_worker.transport.numbers import ArrayNumbers

COUNT = 64


def layout(dtype: str = "float32", merge: str = "rda") -> Layout:
    """One tensor."""
    return build_layout([TensorSpec(name="t", shape=(COUNT,), dtype=dtype, merge=merge)], 1, 1)


def numbers(
    wire_down: Wire, of: Layout | None = None, share: Share = ALL
) -> tuple[ArrayNumbers, memory.Memory]:
    sync = Sync(fragments=1, period=4, wire_up=wire_down, wire_down=wire_down)
    of = of or layout()
    plan = memory_plan(of, sync, observer=False, share=share)
    descriptor = memory.create()
    memory.resize(descriptor, plan)
    shared = memory.attach(plan, descriptor)
    os.close(descriptor)
    return ArrayNumbers(shared, sync, of), shared


@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_an_offer_leaves_the_base_as_it_is_so_that_it_can_be_offered_again(wire_down: Wire) -> None:
    made, shared = numbers(wire_down)
    base = based(np.arange(COUNT), wire_down)
    before = bytes(base.data)
    shared.capture(0, 0)[:] = np.full(COUNT, 2.0, np.float32).tobytes()
    first = made.difference(0, 0, base)
    assert bytes(base.data) == before
    assert first.tolist() == [number - 2.0 for number in range(COUNT)]
    assert made.difference(0, 0, base).tobytes() == first.tobytes()


def test_a_difference_keeps_its_values_when_the_region_is_captured_again() -> None:
    made, shared = numbers(Wire.F32)
    difference = made.difference(0, 0, based(np.zeros(COUNT), Wire.F32))
    shared.capture(0, 0)[:] = np.ones(COUNT, np.float32).tobytes()
    assert not difference.any()


def test_a_difference_is_added_to_the_base_that_is_held() -> None:
    made, _ = numbers(Wire.INT8)
    held = based(np.ones(COUNT), Wire.INT8)
    data = bytearray(arrays.encode(np.full(COUNT, 3.0, np.float32), pb.INT8))
    decoded = made.decode(0, pb.Publish(difference=True), pb.INT8, data, held)
    assert decoded.coded.dtype == ml_dtypes.bfloat16
    assert decoded.coded.tolist() == [4.0] * COUNT
    assert held.coded.tolist() == [1.0] * COUNT


def test_a_difference_to_a_last_version_which_is_f32_gives_a_base_as_all_others_are() -> None:
    """The job may become longer after all (rule 17)."""
    made, shared = numbers(Wire.INT8)
    held = based(np.linspace(0.1, 1, COUNT), Wire.F32)
    made.place(0, 0, held)
    assert shared.adopt(0, 0) == held.data
    assert shared.adopt_encoding(0, 0) == pb.F32
    data = bytearray(arrays.encode(np.full(COUNT, 3.0, np.float32), pb.INT8))
    decoded = made.decode(0, pb.Publish(difference=True), pb.INT8, data, held)
    assert decoded.coded.dtype == ml_dtypes.bfloat16
    assert decoded.coded.tolist() == (held.coded + 3).astype(ml_dtypes.bfloat16).tolist()
    made.place(0, 0, decoded)
    assert shared.adopt_encoding(0, 0) == pb.BF16
    assert shared.adopt(0, 0) == decoded.data


def test_a_base_and_a_seed_go_bit_for_bit() -> None:
    made, shared = numbers(Wire.BF16)
    base = based(np.random.default_rng(0).random(COUNT), Wire.BF16)
    encoding, data = made.encode_base(base)
    assert encoding == pb.BF16
    again = made.decode(0, pb.Publish(), encoding, bytearray(data), None)
    assert again.data == base.data
    made.place(0, 0, base)
    assert shared.adopt(0, 0) == base.data
    shared.capture(0, 0)[:] = base.coded.astype(np.float32).tobytes()
    encoding, data = made.encode_seed(0, 0)
    assert encoding == pb.F32
    assert bytes(data) == base.coded.astype(np.float32).tobytes()


# ------------------------------------------------------------ what a learner does not hold exactly


def based(values: np.ndarray[Any, Any], wire_down: Wire, of: Layout | None = None) -> arrays.Base:
    """The values as a base of the one slice."""
    form, encoding = (of or layout()).slices[0].form, base_encoding(wire_down)
    base = arrays.packed(bytearray(form.byte_count(encoding)), encoding, form)
    base.exact[:], base.coded[:] = values[: form.exact], values[form.exact :]
    return base


def random(seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(COUNT).astype(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_a_learner_that_has_trained_nothing_offers_nothing_also_in_16_bits_rule_16(
    dtype: str, wire_down: Wire
) -> None:
    """[Else every learner offers the rounding of its parameters, and pulls the masters back.]"""
    made, shared = numbers(wire_down, layout(dtype))
    base = based(random(), wire_down)
    held = base.coded.astype(arrays.DTYPES[dtype]).astype(np.float32)
    shared.capture(0, 0)[:] = held.tobytes()
    assert not made.difference(0, 0, base).any()
    shared.capture(0, 0)[:] = (held - 0.25).tobytes()
    assert made.difference(0, 0, base).tolist() == [0.25] * COUNT


@pytest.mark.parametrize("wire", [Wire.F32, Wire.BF16, Wire.INT8, Wire.INT4])
def test_a_buffer_is_held_and_offered_in_f32_on_every_wire_rule_18(wire: Wire) -> None:
    """[Rotary frequencies rounded to bf16 turn position 4096 by more than a radian.]"""
    of = build_layout(
        [
            TensorSpec(name="a.weight", shape=(COUNT,), dtype="float32", merge="rda"),
            TensorSpec(name="b.running_mean", shape=(5,), dtype="float32", merge="average"),
        ],
        *(1, 1),
    )
    made, shared = numbers(wire, of)
    own = np.random.default_rng(1).standard_normal(COUNT + 5).astype(np.float32)
    base = based(own, wire, of)
    assert base.exact.tobytes() == own[:5].tobytes()
    shared.capture(0, 0)[:] = own.tobytes()
    assert not made.difference(0, 0, base)[:5].any()
    change = np.linspace(1e-6, 1.0, 5, dtype=np.float32)
    shared.capture(0, 0)[:] = np.concatenate((own[:5] - change, own[5:])).tobytes()
    difference = made.difference(0, 0, base)
    assert difference[:5].tobytes() == (own[:5] - (own[:5] - change)).tobytes()
    encoding, data = made.encode_difference(0, 0, difference)
    assert len(data) == 20 + encoded_size(COUNT, encoding)
    assert bytes(data[:20]) == difference[:5].tobytes()


@pytest.mark.parametrize("wire", [Wire.INT8, Wire.INT4])
def test_a_difference_brings_buffers_whole_so_that_no_sum_rounds_them_rule_17(wire: Wire) -> None:
    of = layout(merge="average")
    made, _ = numbers(wire, of)
    held, comes = based(random(0), wire, of), random(1) * np.float32(1e-4)
    data = bytearray(comes.tobytes())
    found = made.decode(0, pb.Publish(difference=True), encoding_of(wire), data, held)
    assert found.exact.tobytes() == comes.tobytes()
    assert found.data == comes.tobytes()


def test_the_rounding_is_that_of_each_tensor_in_a_slice_of_several() -> None:
    specs = [
        TensorSpec(name="a", shape=(8,), dtype="float32", merge="rda"),
        TensorSpec(name="b", shape=(16,), dtype="bfloat16", merge="rda"),
        TensorSpec(name="c", shape=(40,), dtype="float16", merge="average"),
    ]
    of = build_layout(specs, 1, 1)
    made, shared = numbers(Wire.F32, of)
    values = random()
    base = based(values, Wire.F32, of)
    held = values.copy()
    for piece in of.slices[0].pieces:
        part = slice(piece.offset, piece.offset + piece.element_count)
        dtype = arrays.DTYPES[of.tensors[piece.tensor].dtype]
        held[part] = values[part].astype(dtype).astype(np.float32)
    shared.capture(0, 0)[:] = held.tobytes()
    assert not made.difference(0, 0, base).any()
    shared.capture(0, 0)[:] = (held + 1).tobytes()
    assert made.difference(0, 0, base) == pytest.approx(np.full(COUNT, -1.0), abs=1e-3)


@pytest.mark.parametrize("wire", [Wire.F32, Wire.INT8, Wire.INT4])
def test_numbers_of_a_share_are_its_piece_of_the_numbers_of_the_slice(wire: Wire) -> None:
    specs = [
        TensorSpec(name="buffer", shape=(40,), dtype="float32", merge="average"),
        TensorSpec(name="half", shape=(600,), dtype="float16", merge="rda"),
        TensorSpec(name="wide", shape=(500,), dtype="float32", merge="rda"),
    ]
    of, bad = build_layout(specs, 1, 1), 500
    form = of.slice(0, 0).form
    random = np.random.default_rng(7)
    theta = random.standard_normal(form.element_count).astype(np.float32)
    theta[bad] = np.inf
    values = random.standard_normal(form.element_count).astype(np.float32)
    held = arrays.pack(values, base_encoding(wire), form)
    whole, shared = numbers(wire, of)
    shared.capture(0, 0)[:] = theta.tobytes()
    base = arrays.packed(held, base_encoding(wire), form)
    expected = whole.difference(0, 0, base)
    names: list[str] = []
    for lane in range(3):
        share = Share(lane, lane + 1, 3)
        made, own = numbers(wire, of, share)
        span = share.elements(form)
        own.capture(0, 0)[:] = theta[span.start : span.stop].tobytes()
        part = b"".join(
            held[each.start : each.stop] for each in part_spans(form, base_encoding(wire), 3)[lane]
        )
        found = made.decode(0, pb.Publish(), base_encoding(wire), bytearray(part), None)
        difference = made.difference(0, 0, found)
        assert difference.tobytes() == expected[span.start : span.stop].tobytes()
        names += made.not_finite(0, 0, difference)
        encoding, data = made.encode_difference(0, 0, difference)
        assert len(data) == share.form(form).byte_count(encoding)
    assert names == ["half"]
