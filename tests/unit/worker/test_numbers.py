"""The transport's numbers: what is sent is the base less theta, and the base stays what it is."""

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import (
    WIRES_DOWN,
    Wire,
    base_encoding,
    encoded_size,
    encoding_of,
)
from atoll_worker.link.shared_memory import SharedMemory, memory_plan
from atoll_worker.transport.carrier import Numbers
from unit.worker.fixtures import both_ends

COUNT = 64
DIFFERENCE = pb.Publish(difference=True)
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def layout(*tensors: tuple[int, str, str]) -> Layout:
    """One slice, of tensors a, b and so on: their counts, dtypes and ways of merging."""
    specs = [
        TensorSpec(name=name, shape=(count,), dtype=dtype, merge=merge)
        for name, (count, dtype, merge) in zip("abc", tensors, strict=False)
    ]
    return build_layout(specs, 1, 1)


ONE = layout((COUNT, "float32", "rda"))


def numbers(wire: Wire, of: Layout = ONE) -> tuple[Numbers, SharedMemory]:
    down = wire if wire in WIRES_DOWN else Wire.INT4
    sync = Sync(fragments=1, period=4, wire_up=wire, wire_down=down)
    shared, _ = both_ends(memory_plan(of, sync, observer=False))
    return Numbers(shared, sync, of), shared


def based(values: np.ndarray[Any, Any], wire_down: Wire, of: Layout = ONE) -> arrays.Base:
    """The values as a base of the one slice."""
    form, encoding = of.slices[0].form, base_encoding(wire_down)
    base = arrays.packed(bytearray(form.byte_count(encoding)), encoding, form)
    base.exact[:], base.coded[:] = values[: form.exact], values[form.exact :]
    return base


def random(seed: int = 0, count: int = COUNT) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("held_on", [Wire.INT8, Wire.F32])
def test_a_difference_is_added_to_the_base_that_is_held_and_gives_one_as_all_others_are(
    held_on: Wire,
) -> None:
    """The base may be a last version, which is f32, if the job becomes longer (rule 17)."""
    made, shared = numbers(Wire.INT8)
    held = based(np.linspace(0.1, 1, COUNT), held_on)
    before = held.coded.tolist()
    made.place(0, 0, held)
    assert (shared.adopt(0, 0), shared.adopt_encoding(0, 0)) == (held.data, base_encoding(held_on))
    data = bytearray(arrays.encode(np.full(COUNT, 3.0, np.float32), pb.INT8))
    decoded = made.decode(0, DIFFERENCE, pb.INT8, data, held)
    assert decoded.coded.dtype == ml_dtypes.bfloat16
    wanted = (held.coded.astype(np.float32) + 3).astype(ml_dtypes.bfloat16)
    assert decoded.coded.tolist() == wanted.tolist()
    assert held.coded.tolist() == before
    made.place(0, 0, decoded)
    assert (shared.adopt(0, 0), shared.adopt_encoding(0, 0)) == (decoded.data, pb.BF16)


# ------------------------------------------------------------ what a learner does not hold exactly


@pytest.mark.parametrize(
    "of",
    [
        layout((COUNT, "bfloat16", "rda")),
        layout((COUNT, "float16", "rda")),
        layout((8, "float32", "rda"), (16, "bfloat16", "rda"), (40, "float16", "average")),
    ],
)
@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_a_learner_that_has_trained_nothing_offers_nothing_also_in_16_bits_rule_16(
    of: Layout, wire_down: Wire
) -> None:
    """[Else every learner offers the rounding of its parameters, and pulls the masters back.]"""
    made, shared = numbers(wire_down, of)
    base = based(random(), wire_down, of)
    held = np.concatenate((base.exact, base.coded.astype(np.float32)))
    for piece in of.slices[0].pieces:  # each tensor has a rounding of its own
        part = slice(piece.offset, piece.offset + piece.element_count)
        dtype = arrays.DTYPES[of.tensors[piece.tensor].dtype]
        held[part] = held[part].astype(dtype).astype(np.float32)
    shared.capture(0, 0)[:] = held.tobytes()
    assert not made.difference(0, 0, base).any()
    shared.capture(0, 0)[:] = (held - 0.25).tobytes()
    assert made.difference(0, 0, base) == pytest.approx(np.full(COUNT, 0.25), abs=1e-6)


@pytest.mark.parametrize("wire", list(Wire))
def test_a_buffer_is_held_and_offered_in_f32_on_every_wire_rule_18(wire: Wire) -> None:
    """[Rotary frequencies rounded to bf16 turn position 4096 by more than a radian.]"""
    of = layout((COUNT, "float32", "rda"), (5, "float32", "average"))
    made, shared = numbers(wire, of)
    own = random(1, COUNT + 5)
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
    of = layout((COUNT, "float32", "average"))
    made, _ = numbers(wire, of)
    comes = random(1) * np.float32(1e-4)
    data, held = bytearray(comes.tobytes()), based(random(0), wire, of)
    found = made.decode(0, DIFFERENCE, encoding_of(wire), data, held)
    assert found.exact.tobytes() == found.data == comes.tobytes()
