"""What arrives whole is examined: values that are not finite never count, whatever the wire."""

import math
import random
import struct

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays, codecs, tensors
from atoll_protos.layout import TensorSpec, build_layout
from atoll_syncer.numbers.arrivals import Arrived, TransferError, examine

torch.set_num_threads(1)

ENCODINGS = [pb.F32, pb.BF16, pb.INT8, pb.INT4]
NOT_FINITE = [math.nan, math.inf, -math.inf]
TENSORS = [
    TensorSpec(name="embedding", shape=(37, 5), dtype="float32", merge="mean"),
    TensorSpec(name="weight", shape=(33, 21), dtype="float32", merge="rda"),
    TensorSpec(name="bias", shape=(33,), dtype="float32", merge="mean"),
    TensorSpec(name="scale", shape=(), dtype="float32", merge="rda"),
    TensorSpec(name="running_mean", shape=(7,), dtype="float32", merge="average"),
]
LAYOUT = build_layout(TENSORS, fragments=1, shards=1)
FORM = LAYOUT.slice(0, 0).form
COUNT = FORM.element_count
PLACES = st.integers(0, COUNT - 1)


def packed(values: torch.Tensor, encoding: pb.Encoding) -> bytearray:
    return bytearray(arrays.pack(values.numpy(), encoding, FORM))


def offered(data: bytearray, encoding: pb.Encoding) -> Arrived:
    return examine(LAYOUT, 0, pb.Transfer(offer=pb.Offer(slice=0), encoding=encoding), data)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bad", NOT_FINITE)
@given(place=PLACES)
@example(place=0)
@example(place=COUNT - 1)
def test_an_offer_with_one_value_that_is_not_finite_is_refused(
    encoding: pb.Encoding, bad: float, place: int
) -> None:
    values = torch.linspace(-1.0, 1.0, COUNT)
    assert all(map(math.isfinite, offered(packed(values, encoding), encoding).norms))
    values[place] = bad
    with pytest.raises(TransferError, match="slice 0: values are not finite"):
        offered(packed(values, encoding), encoding)


def test_the_tensors_whose_values_are_not_finite_are_named() -> None:
    values = torch.zeros(COUNT)
    pieces = {LAYOUT.tensors[each.tensor].name: each for each in LAYOUT.slice(0, 0).pieces}
    for name in ("weight", "running_mean"):
        values[pieces[name].offset + 3] = math.nan
    with pytest.raises(TransferError) as caught:
        offered(packed(values, pb.BF16), pb.BF16)
    assert str(caught.value) == "slice 0: values are not finite: running_mean, weight"
    with pytest.raises(TransferError, match=r", \.\.\.$"):
        offered(packed(torch.full((COUNT,), math.nan), pb.BF16), pb.BF16)


@pytest.mark.parametrize("encoding", [pb.F32, pb.BF16])
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_whole_values_that_are_not_finite_are_refused(encoding: pb.Encoding, bad: float) -> None:
    """A seed, and a version that a learner holds: its digest is right all the same."""
    values = torch.ones(COUNT)
    values[COUNT // 2] = bad
    data = packed(values, encoding)
    version = pb.Version(run="run", number=1, epoch=1)
    version.digest = codecs.digest(data)
    held = pb.Held(version=pb.SliceVersion(slice=0, version=version))
    for head in (pb.Transfer(seed=pb.Seed(slice=0)), pb.Transfer(held=held)):
        head.encoding = encoding
        with pytest.raises(TransferError, match="slice 0: values are not finite"):
            examine(LAYOUT, 0, head, data)


@pytest.mark.parametrize("encoding", [pb.INT8, pb.INT4])
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("scale", NOT_FINITE)
@given(data=st.data())
def test_a_scale_that_is_not_finite_is_refused_whatever_its_levels(
    encoding: pb.Encoding, level: int, scale: float, data: st.DataObject
) -> None:
    """Nobody's encoder writes levels of 0 under such a scale; a peer may send them."""
    block = codecs.of(encoding).block
    payload = packed(torch.full((COUNT,), float(level)), encoding)
    place = FORM.exact_bytes + 4 * data.draw(st.integers(0, (FORM.coded - 1) // block))
    payload[place : place + 4] = struct.pack("<f", scale)
    with pytest.raises(TransferError, match="slice 0: values are not finite"):
        offered(payload, encoding)


@pytest.mark.parametrize("encoding", [pb.INT8, pb.INT4])
def test_a_finite_scale_whose_levels_overflow_is_refused(encoding: pb.Encoding) -> None:
    payload = packed(torch.ones(COUNT), encoding)
    payload[FORM.exact_bytes : FORM.exact_bytes + 4] = struct.pack("<f", 3.3e38)
    with pytest.raises(TransferError, match="slice 0: values are not finite"):
        offered(payload, encoding)


@given(st.sampled_from(ENCODINGS), st.randoms(use_true_random=False))
def test_bytes_are_refused_exactly_when_they_decode_to_values_that_are_not_finite(
    encoding: pb.Encoding, numbers: random.Random
) -> None:
    data = bytearray(numbers.randbytes(FORM.byte_count(encoding)))
    exact, coded = FORM.cut(data)
    values = tensors.decode(coded, encoding, torch.empty(FORM.coded))
    every = torch.cat((tensors.from_bytes(exact, torch.float32), values))
    finite = bool(every.isfinite().all())
    if finite:
        assert offered(data, encoding).byte_count == len(data)
    else:
        with pytest.raises(TransferError, match="not finite"):
            offered(data, encoding)


def test_large_but_finite_values_are_values() -> None:
    """Their squares are beyond f32."""
    arrived = offered(packed(torch.full((COUNT,), 1e30), pb.F32), pb.F32)
    pieces = LAYOUT.slice(0, 0).pieces
    expected = [1e30 * piece.element_count**0.5 for piece in pieces]
    assert arrived.norms == pytest.approx(expected)


def test_sizes_and_kinds_are_checked() -> None:
    with pytest.raises(TransferError, match="not an offer"):
        examine(LAYOUT, 0, pb.Transfer(publish=pb.Publish()), bytearray())
    with pytest.raises(TransferError, match="slice 0: 3 bytes, not"):
        offered(bytearray(3), pb.F32)
    with pytest.raises(TransferError, match="slice 0: encoding 0 is unknown"):
        examine(LAYOUT, 0, pb.Transfer(offer=pb.Offer(slice=0)), bytearray(3))
    with pytest.raises(TransferError, match="must come as f32 or bf16"):
        examine(LAYOUT, 0, pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.INT8), bytearray(3))
