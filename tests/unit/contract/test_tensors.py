"""Codecs: what is decoded is within the stated bounds of what was encoded, bit for bit alike."""

import gc
import hashlib
import math
import struct
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs, tensors
from atoll_protos.codecs import Form, Wire

ALL = [codec.encoding for codec in codecs.CODECS]
BLOCKED = [(each.encoding, each.block, each.levels) for each in codecs.CODECS if each.scaled]
ODD = [0, 1, 2, 63, 64, 65, 255, 256, 257, 1023, 4097]
VALUES = st.floats(-(2.0**127), 2.0**127, width=32)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def normal(element_count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(element_count, generator=torch.Generator().manual_seed(seed))


def there_and_back(values: torch.Tensor, encoding: pb.Encoding) -> torch.Tensor:
    data = tensors.encode(values, encoding)
    assert len(data) == codecs.encoded_size(values.numel(), encoding)
    return tensors.decode(data, encoding, torch.full_like(values, math.nan))


def blocks(values: torch.Tensor, block: int) -> list[torch.Tensor]:
    return [values[start : start + block] for start in range(0, values.numel(), block)]


@given(st.lists(VALUES, max_size=300))
def test_f32_comes_back_bit_for_bit(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    assert torch.equal(there_and_back(values, pb.F32), values)


@given(st.lists(VALUES, max_size=300))
def test_bf16_is_rounded_to_the_nearest(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    assert torch.equal(there_and_back(values, pb.BF16), values.bfloat16().float())


@pytest.mark.parametrize(("encoding", "block", "levels"), BLOCKED)
@given(numbers=st.lists(VALUES, max_size=600))
def test_an_integer_encoding_is_within_half_a_level_of_its_block(
    encoding: pb.Encoding, block: int, levels: int, numbers: list[float]
) -> None:
    values = torch.tensor(numbers)
    decoded = there_and_back(values, encoding)
    for before, after in zip(blocks(values, block), blocks(decoded, block), strict=True):
        largest = float(before.abs().max())
        error = float((before.double() - after.double()).abs().max())
        assert error <= largest / levels * 0.50001 + 1.2e-38 * levels


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("element_count", ODD)
def test_any_length_comes_back(encoding: pb.Encoding, element_count: int) -> None:
    values = normal(element_count)
    decoded = there_and_back(values, encoding)
    assert decoded.shape == values.shape
    assert torch.allclose(decoded, values, atol={pb.INT4: 0.4, pb.INT8: 0.02}.get(encoding, 0.01))


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("element_count", [1, 64, 257])
def test_zeros_come_back_as_zeros(encoding: pb.Encoding, element_count: int) -> None:
    assert torch.equal(
        there_and_back(torch.zeros(element_count), encoding), torch.zeros(element_count)
    )


@pytest.mark.parametrize(("encoding", "block", "levels"), BLOCKED)
def test_each_blocks_largest_value_takes_the_last_level(
    encoding: pb.Encoding, block: int, levels: int
) -> None:
    values = torch.zeros(3 * block)
    values[1], values[block], values[-1] = -5.0, 0.25, 1e30
    decoded = there_and_back(values, encoding)
    assert torch.allclose(decoded, values, rtol=1e-6)
    assert decoded.count_nonzero() == 3


@pytest.mark.parametrize("encoding", [pb.INT8, pb.INT4])
def test_values_too_small_for_a_scale_become_zero(encoding: pb.Encoding) -> None:
    """A scale below the least normal number would have an infinite inverse."""
    values = torch.tensor([1e-45, -1e-40, 1e-38])
    assert torch.equal(there_and_back(values, encoding), torch.zeros(3))


@pytest.mark.parametrize(
    ("encoding", "error"), [(pb.BF16, 0.0017), (pb.INT8, 0.007), (pb.INT4, 0.107)]
)
def test_errors_on_normal_values_are_as_measured_in_the_transport_notes(
    encoding: pb.Encoding, error: float
) -> None:
    values = normal(1 << 18)
    relative = (there_and_back(values, encoding) - values).norm() / values.norm()
    assert float(relative) == pytest.approx(error, rel=0.1)


def test_int8_bytes_are_scales_then_levels() -> None:
    values = torch.arange(-128, 129, dtype=torch.float32)  # 257: two blocks
    data = tensors.encode(values, pb.INT8)
    assert struct.unpack("<2f", data[:8]) == pytest.approx((128 / 127, 128 / 127))
    assert struct.unpack("257b", data[8:])[:3] == (-127, -126, -125)
    assert data[-1] == 127


def test_int4_bytes_hold_the_even_element_in_the_low_half() -> None:
    data = tensors.encode(torch.tensor([7.0, -7.0, 1.0, -1.0, 3.0]), pb.INT4)
    assert struct.unpack("<f", data[:4]) == (1.0,)
    assert data[4:] == bytes([0x97, 0xF1, 0x03])


@given(
    st.sampled_from(ALL), st.integers(1, 2000), st.lists(st.integers(1, 30), max_size=4), st.data()
)
def test_spans_encode_and_decode_as_the_whole_does(
    encoding: pb.Encoding, element_count: int, cuts: list[int], data: st.DataObject
) -> None:
    values = normal(element_count)
    whole = tensors.encode(values, encoding)
    edges = sorted({0, *(min(256 * cut, element_count) for cut in cuts), element_count})
    parts = bytearray(len(whole))
    for start, stop in data.draw(st.permutations(list(pairwise(edges)))):
        tensors.encode_span(values[start:stop], encoding, element_count, start, parts)
        out = torch.empty(stop - start)
        tensors.decode_span(whole, encoding, element_count, start, out)
        assert torch.equal(
            out, tensors.decode(whole, encoding, torch.empty(element_count))[start:stop]
        )
    assert parts == whole


@pytest.mark.parametrize(("encoding", "block", "levels"), BLOCKED)
def test_long_slices_are_coded_as_if_at_once(
    encoding: pb.Encoding, block: int, levels: int
) -> None:
    """The bounds of runs leave no trace."""
    count = 2 * tensors.RUN + 3 * block + 1
    values = normal(count)
    data = tensors.encode(values, encoding)
    rows = torch.cat([values, torch.zeros(-count % block)]).view(-1, block)
    scales = rows.abs().amax(dim=1) / levels
    expected = (rows * (1 / scales).unsqueeze(1)).round() * scales.unsqueeze(1)
    assert torch.equal(
        tensors.decode(data, encoding, torch.empty(count)), expected.view(-1)[:count]
    )


@pytest.mark.parametrize("encoding", ALL)
def test_encoding_gives_the_same_bytes_with_any_number_of_threads(encoding: pb.Encoding) -> None:
    values = normal(1 << 20)
    first = tensors.encode(values, encoding)
    torch.set_num_threads(2)
    assert tensors.encode(values, encoding) == first


@pytest.mark.parametrize("encoding", ALL)
def test_encoding_leaves_its_input_as_it_was(encoding: pb.Encoding) -> None:
    values = normal(1000)
    tensors.encode(values, encoding)
    assert torch.equal(values, normal(1000))


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
    assert there_and_back(values, encoding).isfinite().all()
    place = data.draw(st.integers(0, element_count - 1))
    values[place] = bad
    assert not there_and_back(values, encoding)[place].isfinite()


@pytest.mark.parametrize("encoding", ALL)
def test_the_largest_value_stays_finite(encoding: pb.Encoding) -> None:
    largest = torch.finfo(torch.bfloat16).max
    assert there_and_back(torch.tensor([largest, -largest]), encoding).isfinite().all()


@pytest.mark.parametrize("encoding", ALL)
def test_bytes_of_another_length_are_never_decoded(encoding: pb.Encoding) -> None:
    data = tensors.encode(normal(100), encoding)
    for wrong in (data + b"\0", data[:-1]):
        with pytest.raises(AssertionError):
            tensors.decode(wrong, encoding, torch.empty(100))


def test_the_bytes_of_a_tensor_are_seen_without_a_copy() -> None:
    values = normal(10)
    view = tensors.byte_view(values)
    assert bytes(view) == struct.pack("<10f", *values.tolist())
    values[0] = 1.0
    assert struct.unpack("<f", view[:4]) == (1.0,)
    assert len(tensors.byte_view(torch.empty(0))) == 0


def test_a_view_keeps_its_tensor_alive() -> None:
    values = normal(1000)
    expected, alive = values.tolist(), weakref.ref(values)
    view = tensors.byte_view(values)
    del values
    gc.collect()
    assert alive() is not None
    assert list(struct.unpack("<1000f", view)) == expected
    del view
    gc.collect()
    assert alive() is None


def test_a_view_of_a_part_begins_at_the_part() -> None:
    values = torch.arange(8, dtype=torch.bfloat16)
    assert tensors.byte_view(values[4:]) == bytes(tensors.byte_view(values))[8:]


def test_only_contiguous_tensors_have_a_byte_view() -> None:
    with pytest.raises(AssertionError):
        tensors.byte_view(torch.zeros(4, 4).t()[1:])


def test_a_tensor_over_bytes_shares_them() -> None:
    data = bytearray(8)
    tensors.from_bytes(data, torch.float32)[1] = 1.0
    assert data == struct.pack("<2f", 0, 1)
    assert tensors.from_bytes(bytearray(), torch.float32).shape == (0,)


@given(st.binary(min_size=2, max_size=100).filter(lambda data: len(data) % 2 == 0))
def test_a_digest_is_the_sha256_of_the_bytes(data: bytes) -> None:
    base = tensors.packed(bytearray(data), pb.BF16, Form(0, len(data) // 2))
    assert base.digest == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("wire", list(Wire))
def test_a_base_is_bf16_unless_the_wire_is_f32_but_for_averaged_buffers(wire: Wire) -> None:
    base = tensors.empty_packed(codecs.base_encoding(wire), Form(3, 5))
    assert base.coded.dtype is (torch.float32 if wire is Wire.F32 else torch.bfloat16)
    assert base.exact.dtype is torch.float32
    assert (base.exact.numel(), base.coded.numel()) == (3, 5)
    base.exact.fill_(1.0)
    base.coded.fill_(2.0)
    assert base.part(range(1, 3)).tolist() == [1.0] * 2
    assert base.part(slice(3, 5)).tolist() == [2.0] * 2
    assert bytes(base.data[:12]) == struct.pack("<3f", 1, 1, 1)
