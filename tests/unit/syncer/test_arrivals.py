"""What arrives whole is examined: values that are not finite never count, whatever the wire."""

import math
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import F32, Array
from atoll_syncer.numbers.commit import Arrived, TransferError, examine
from atoll_syncer.numbers.merge import weighted_mean
from atoll_syncer.numbers.workers import ROWS, Scratch, Workers

ALONE = Workers(1)
ENCODINGS = [codec.encoding for codec in codecs.CODECS]
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


def packed(values: Array, encoding: pb.Encoding) -> bytearray:
    return bytearray(arrays.pack(values, encoding, FORM))


def offered(data: bytearray, encoding: pb.Encoding) -> Arrived:
    return examine(LAYOUT, 0, pb.Transfer(offer=pb.Offer(slice=0), encoding=encoding), data, ALONE)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bad", NOT_FINITE)
@given(place=PLACES)
@example(place=0)
@example(place=COUNT - 1)
def test_an_offer_with_one_value_that_is_not_finite_is_refused(
    encoding: pb.Encoding, bad: float, place: int
) -> None:
    values = np.linspace(-1.0, 1.0, COUNT, dtype=F32)
    assert all(map(math.isfinite, offered(packed(values, encoding), encoding).norms))
    values[place] = bad
    with pytest.raises(TransferError, match="slice 0: values are not finite"):
        offered(packed(values, encoding), encoding)


def test_the_tensors_whose_values_are_not_finite_are_named() -> None:
    values = np.zeros(COUNT, F32)
    pieces = {LAYOUT.tensors[each.tensor].name: each for each in LAYOUT.slice(0, 0).pieces}
    for name in ("weight", "running_mean"):
        values[pieces[name].offset + 3] = math.nan
    with pytest.raises(TransferError) as caught:
        offered(packed(values, pb.BF16), pb.BF16)
    assert str(caught.value) == "slice 0: values are not finite: running_mean, weight"
    with pytest.raises(TransferError, match=r", \.\.\.$"):
        offered(packed(np.full(COUNT, math.nan, F32), pb.BF16), pb.BF16)


@pytest.mark.parametrize("encoding", [pb.F32, pb.BF16])
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_whole_values_that_are_not_finite_are_refused(encoding: pb.Encoding, bad: float) -> None:
    """A seed, and a version that a learner holds: its digest is right all the same."""
    values = np.ones(COUNT, F32)
    values[COUNT // 2] = bad
    data = packed(values, encoding)
    version = pb.Version(run="run", number=1, epoch=1)
    version.digest = codecs.digest(data)
    held = pb.Held(version=pb.SliceVersion(slice=0, version=version))
    for head in (pb.Transfer(seed=pb.Seed(slice=0)), pb.Transfer(held=held)):
        head.encoding = encoding
        with pytest.raises(TransferError, match="slice 0: values are not finite"):
            examine(LAYOUT, 0, head, data, ALONE)


@pytest.mark.parametrize("encoding", [pb.INT8, pb.INT4, pb.INT2])
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("scale", [*NOT_FINITE, 3.3e38])
@given(data=st.data())
def test_a_scale_that_is_not_finite_or_too_large_is_refused_whatever_its_levels(
    encoding: pb.Encoding, level: int, scale: float, data: st.DataObject
) -> None:
    """Nobody's encoder writes levels of 0 under such a scale; a peer may send them."""
    codec = codecs.of(encoding)
    payload = packed(np.full(COUNT, level, F32), encoding)
    number, size = data.draw(st.integers(0, (FORM.coded - 1) // codec.block)), codec.scale_bytes(1)
    place = FORM.exact_bytes + size * number
    payload[place : place + size] = np.array(scale, arrays.FLOATS[codec.scale]).tobytes()
    if scale == 3.3e38 and not level and not codec.table:  # int2 has no level of 0
        assert offered(payload, encoding)  # zeros
        return
    with pytest.raises(TransferError, match="slice 0: values are not finite"):
        offered(payload, encoding)


@given(st.sampled_from(ENCODINGS), st.randoms(use_true_random=False))
def test_bytes_are_refused_exactly_when_they_decode_to_values_that_are_not_finite(
    encoding: pb.Encoding, numbers: random.Random
) -> None:
    data = bytearray(numbers.randbytes(FORM.byte_count(encoding)))
    exact, coded = FORM.cut(data)
    values = arrays.decode(coded, encoding, np.empty(FORM.coded, F32))
    finite = np.isfinite(arrays.from_bytes(exact, pb.F32)).all() and np.isfinite(values).all()
    if finite:
        assert offered(data, encoding).byte_count == len(data)
    else:
        with pytest.raises(TransferError, match="not finite"):
            offered(data, encoding)


def test_large_but_finite_values_are_values() -> None:
    """Their squares are beyond f32."""
    arrived = offered(packed(np.full(COUNT, 1e30, F32), pb.F32), pb.F32)
    pieces = LAYOUT.slice(0, 0).pieces
    expected = [1e30 * piece.element_count**0.5 for piece in pieces]
    assert arrived.norms == pytest.approx(expected)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_norm_is_of_the_tensors_own_values(encoding: pb.Encoding) -> None:
    """Most of these tensors begin and end within a block of the integer codecs."""
    data = packed(np.random.default_rng(1).standard_normal(COUNT, F32), encoding)
    exact, coded = FORM.cut(data)
    decoded = arrays.decode(coded, encoding, np.empty(FORM.coded, F32))
    values = np.concatenate((arrays.from_bytes(exact, pb.F32), decoded)).astype(float)
    expected = [
        float(np.linalg.norm(values[piece.offset : piece.offset + piece.element_count]))
        for piece in LAYOUT.slice(0, 0).pieces
    ]
    assert offered(data, encoding).norms == pytest.approx(expected, rel=1e-6)


def test_sizes_and_kinds_are_checked() -> None:
    with pytest.raises(TransferError, match="not an offer"):
        examine(LAYOUT, 0, pb.Transfer(publish=pb.Publish()), bytearray(), ALONE)
    for encoding in ENCODINGS:
        data = packed(np.zeros(COUNT, F32), encoding)
        for wrong in (data[:-1], data + b"\0", data[:0]):
            with pytest.raises(
                TransferError, match=f"slice 0: {len(wrong)} bytes, not {len(data)}"
            ):
                offered(wrong, encoding)
    with pytest.raises(TransferError, match="slice 0: encoding 0 is unknown"):
        examine(LAYOUT, 0, pb.Transfer(offer=pb.Offer(slice=0)), bytearray(3), ALONE)
    with pytest.raises(TransferError, match="must come as f32 or bf16"):
        examine(
            LAYOUT, 0, pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.INT8), bytearray(3), ALONE
        )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("learners", [1, 3, ROWS + 2])
def test_every_tensor_is_merged_from_its_own_values(encoding: pb.Encoding, learners: int) -> None:
    """Most of these tensors begin and end within a block of the integer codecs."""
    generator = np.random.default_rng(learners)
    payloads = [
        packed(generator.standard_normal(COUNT, F32) * F32.type(10**n), encoding)
        for n in range(learners)
    ]
    expected = np.zeros(COUNT)
    for payload in payloads:
        exact, coded = FORM.cut(payload)
        values = arrays.decode(coded, encoding, np.empty(FORM.coded, F32))
        expected += np.concatenate((arrays.from_bytes(exact, pb.F32), values)) / learners
    merged = np.full(COUNT, math.nan, F32)

    def take(block: range, values: Array, _: Scratch) -> None:
        merged[block.start : block.stop] = values

    deltas = [offered(payload, encoding).values for payload in payloads]
    for piece in LAYOUT.slice(0, 0).pieces:
        span = range(piece.offset, piece.offset + piece.element_count)
        weighted_mean(deltas, [1.0] * learners, span, ALONE, take)
    np.testing.assert_allclose(merged, expected, rtol=1e-5, atol=1e-6 * 10**learners)
