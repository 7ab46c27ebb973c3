"""Codecs: what is decoded is within the stated bounds of what was encoded, bit for bit alike."""

import hashlib
import math
import struct
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import BF16, F32, Array
from atoll_protos.transfer.codecs import Codec, Form, Wire

ALL = [codec.encoding for codec in codecs.CODECS]
LINEAR = [
    (each.encoding, each.block, each.levels)
    for each in codecs.CODECS
    if each.scaled and not each.table  # see test_two_bits
]
ODD = [0, 1, 2, 63, 64, 65, 255, 256, 257, 1023, 4097]
TOLERANCE = {pb.INT2: 2.5, pb.INT4: 0.4, pb.INT8: 0.02}  # on normal values
VALUES = st.floats(-(2.0**127), 2.0**127, width=32)


def normal(element_count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(element_count).astype(F32)


def there_and_back(values: Array, encoding: pb.Encoding) -> Array:
    data = arrays.encode(values, encoding)
    assert len(data) == codecs.encoded_size(values.size, encoding)
    return arrays.decode(data, encoding, np.full_like(values, math.nan))


@given(st.lists(VALUES, max_size=300))
def test_f32_comes_back_bit_for_bit_and_bf16_rounded_to_the_nearest(numbers: list[float]) -> None:
    values = np.array(numbers, F32)
    assert np.array_equal(there_and_back(values, pb.F32), values)
    assert np.array_equal(there_and_back(values, pb.BF16), values.astype(BF16).astype(F32))


@pytest.mark.parametrize(("encoding", "block", "levels"), LINEAR)
@given(numbers=st.lists(VALUES, min_size=1, max_size=600))
def test_an_integer_encoding_is_within_half_a_level_of_its_block(
    encoding: pb.Encoding, block: int, levels: int, numbers: list[float]
) -> None:
    values = np.array(numbers, F32)
    decoded = there_and_back(values, encoding)
    for first in range(0, values.size, block):
        before, after = (each[first : first + block].astype(float) for each in (values, decoded))
        largest, error = np.abs(before).max(), np.abs(before - after).max()
        assert error <= largest / levels * 0.50001 + 1.2e-38 * levels


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("element_count", ODD)
def test_any_length_comes_back(encoding: pb.Encoding, element_count: int) -> None:
    values = normal(element_count)
    decoded = there_and_back(values, encoding)
    assert np.array_equal(values, normal(element_count))  # as it was
    assert np.allclose(decoded, values, atol=TOLERANCE.get(encoding, 0.01))
    zeros = np.zeros(element_count, F32)
    assert np.array_equal(there_and_back(zeros, encoding), zeros)


@pytest.mark.parametrize(("encoding", "block", "levels"), LINEAR)
def test_each_blocks_largest_value_takes_the_last_level_but_where_it_is_too_small(
    encoding: pb.Encoding, block: int, levels: int
) -> None:
    values = np.zeros(3 * block, F32)
    values[1], values[block], values[-1] = -5.0, 0.25, 1e30
    decoded = there_and_back(values, encoding)
    assert np.allclose(decoded, values, rtol=1e-6)
    assert np.count_nonzero(decoded) == 3
    # a scale below the least normal number would have an infinite inverse
    small = np.array([1e-45, -1e-40, 1e-38], F32)
    assert not there_and_back(small, encoding).any()


def test_int8_bytes_are_scales_then_levels() -> None:
    values = np.arange(-128, 129, dtype=F32)  # 257: two blocks
    data = arrays.encode(values, pb.INT8)
    assert struct.unpack("<2f", data[:8]) == pytest.approx((128 / 127, 128 / 127))
    assert struct.unpack("257b", data[8:])[:3] == (-127, -126, -125)
    assert data[-1] == 127


def test_int4_bytes_hold_the_even_element_in_the_low_half() -> None:
    data = arrays.encode(np.array([7.0, -7.0, 1.0, -1.0, 3.0], F32), pb.INT4)
    assert struct.unpack("<f", data[:4]) == (1.0,)
    assert data[4:] == bytes([0x97, 0xF1, 0x03])


@given(
    st.sampled_from(ALL), st.integers(1, 2000), st.lists(st.integers(1, 30), max_size=4), st.data()
)
def test_spans_are_decoded_as_the_whole_is(
    encoding: pb.Encoding, element_count: int, cuts: list[int], data: st.DataObject
) -> None:
    values = normal(element_count)
    whole = arrays.encode(values, encoding)
    edges = sorted({0, *(min(256 * cut, element_count) for cut in cuts), element_count})
    codec, again = codecs.of(encoding), np.zeros(len(whole), np.uint8)
    decoded = arrays.decode(whole, encoding, np.empty(element_count, F32))
    for start, stop in data.draw(st.permutations(list(pairwise(edges)))):
        part, out, work = slice(start, stop), *np.empty((2, stop - start), F32)
        found = arrays.decode_part(whole, codec, element_count, part, out)
        assert np.array_equal(found, decoded[part])
        arrays.encode_part(again, codec, element_count, part, values[part], work)
    assert again.tobytes() == whole


@pytest.mark.parametrize(("encoding", "block", "levels"), LINEAR)
def test_long_slices_are_coded_as_if_at_once(
    encoding: pb.Encoding, block: int, levels: int
) -> None:
    """The bounds of runs leave no trace."""
    count = 2 * arrays.RUN + 3 * block + 1
    values = normal(count)
    data = arrays.encode(values, encoding)
    rows = np.pad(values, (0, -count % block)).reshape(-1, block)
    scales = np.abs(rows).max(axis=1, keepdims=True) / F32.type(levels)
    expected = np.rint(rows * (1 / scales)) * scales
    decoded = arrays.decode(data, encoding, np.empty(count, F32))
    assert np.array_equal(decoded, expected.reshape(-1)[:count])


@pytest.mark.parametrize("encoding", ALL)
@given(
    element_count=st.integers(1, 1000),
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
    data=st.data(),
)
def test_a_value_that_is_not_finite_does_not_become_finite(
    encoding: pb.Encoding, element_count: int, bad: float, data: st.DataObject
) -> None:
    values = normal(element_count)
    assert np.isfinite(there_and_back(values, encoding)).all()
    largest = (2 - 2.0**-7) * 2.0**127  # of bf16
    assert np.isfinite(there_and_back(np.array([largest, -largest], F32), encoding)).all()
    place = data.draw(st.integers(0, element_count - 1))
    values[place] = bad
    assert not np.isfinite(there_and_back(values, encoding)[place])


@pytest.mark.parametrize("wire", list(Wire))
def test_a_base_is_bf16_unless_the_wire_is_f32_but_for_averaged_buffers(wire: Wire) -> None:
    base = arrays.empty_packed(codecs.base_encoding(wire), Form(3, 5))
    assert base.coded.dtype == (F32 if wire is Wire.F32 else BF16)
    assert base.exact.dtype == F32
    assert (base.exact.size, base.coded.size) == (3, 5)
    base.exact[:], base.coded[:] = 1.0, 2.0
    assert base.part(range(1, 3)).tolist() == [1.0] * 2
    assert base.part(slice(3, 5)).tolist() == [2.0] * 2
    assert bytes(base.data[:12]) == struct.pack("<3f", 1, 1, 1)
    assert base.digest == hashlib.sha256(base.data).hexdigest()


@pytest.mark.parametrize("codec", codecs.CODECS, ids=lambda codec: codec.wire)
def test_every_name_and_number_has_one_row_with_the_sizes_of_the_contract(codec: Codec) -> None:
    scaled = {pb.INT8: 8 + 32 / 256, pb.INT4: 4 + 32 / 64, pb.INT2: 2 + 16 / 64}
    bits = {pb.F32: 32, pb.BF16: 16, **scaled}[codec.encoding]
    assert codecs.encoded_size(1 << 20, codec.encoding) * 8 == bits * (1 << 20)
    assert codecs.encoded_size(0, codec.encoding) == 0
    assert pb.Encoding.Name(codec.encoding) == codec.wire.upper()
    assert codecs.encoding_of(codec.wire) == codec.encoding
    assert codecs.of(codec.encoding) is codec
    assert [each.wire for each in codecs.CODECS] == list(Wire)
    assert [pb.ENCODING_UNSPECIFIED, *ALL] == pb.Encoding.values()
    assert codecs.base_encoding(codec.wire) == (pb.F32 if codec.wire is Wire.F32 else pb.BF16)
    # rule 18: averaged buffers take four bytes in every encoding
    size = Form(3, 65).byte_count(codec.encoding)
    assert size == 12 + codecs.encoded_size(65, codec.encoding)


def test_a_short_block_has_a_scale_and_a_half_byte_takes_a_whole_one() -> None:
    assert codecs.encoded_size(257, pb.INT8) == 2 * 4 + 257
    assert codecs.encoded_size(65, pb.INT4) == 2 * 4 + 33
    assert codecs.encoded_size(65, pb.INT2) == 2 * 2 + 17
    for unknown in (9, pb.ENCODING_UNSPECIFIED):
        with pytest.raises(ValueError, match=f"encoding {unknown} is unknown"):
            Form(3, 65).byte_count(cast(pb.Encoding, unknown))
