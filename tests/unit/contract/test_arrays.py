"""The numpy arithmetic of the codecs gives the bits that torch's gives."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays, codecs, tensors
from atoll_protos.arrays import BF16, F32, RUN, Array
from atoll_protos.codecs import Form

ALL = [codec.encoding for codec in codecs.CODECS]
SCALED = [codec.encoding for codec in codecs.CODECS if codec.scaled]
BASES = [pb.F32, pb.BF16]
LENGTHS = [0, 1, 2, 63, 64, 65, 255, 256, 257, 4097, RUN - 1, RUN, RUN + 1, 2 * RUN + 333]
SMALLEST = 2.0**-149  # the smallest denormal f32
FINITE = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, SMALLEST, -SMALLEST, 2.0**-126, 2.0**-120, 3.0e38, -3.4e38]),
    st.integers(-(1 << 20), 1 << 20).map(lambda n: n / 512),  # halves between two bf16 values
)
NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])


def array(values: list[float], encoding: pb.Encoding = pb.F32) -> Array:
    with np.errstate(over="ignore"):
        return np.array(values, F32).astype(arrays.FLOATS[encoding])


def torch_of(values: Array) -> torch.Tensor:
    data = bytearray(arrays.byte_view(values))
    return tensors.from_bytes(data, torch.float32 if values.dtype == F32 else torch.bfloat16)


def bits(values: Array | torch.Tensor) -> bytes:
    if isinstance(values, np.ndarray):
        return bytes(arrays.byte_view(values))
    return bytes(tensors.byte_view(values))


def normal(element_count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(element_count).astype(F32)


def changed(base: torch.Tensor, data: memoryview, encoding: pb.Encoding) -> torch.Tensor:
    """The next base, as a shard computes it."""
    difference = tensors.decode(data, encoding, torch.empty(base.numel()))
    return difference.add_(base.float()).to(base.dtype)


@pytest.mark.parametrize("encoding", ALL)
@given(numbers=st.lists(FINITE, max_size=600))
def test_encoded_bytes_are_those_of_torch(encoding: pb.Encoding, numbers: list[float]) -> None:
    values = array(numbers)
    assert arrays.encode(values, encoding) == tensors.encode(torch_of(values), encoding)


@pytest.mark.parametrize("encoding", ALL)
@given(numbers=st.lists(FINITE, max_size=600))
def test_decoded_values_are_those_of_torch(encoding: pb.Encoding, numbers: list[float]) -> None:
    data = tensors.encode(torch.tensor(numbers), encoding)
    ours = arrays.decode(data, encoding, np.empty(len(numbers), F32))
    assert bits(ours) == bits(tensors.decode(data, encoding, torch.empty(len(numbers))))


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("element_count", LENGTHS)
def test_any_length_gives_the_bits_of_torch(encoding: pb.Encoding, element_count: int) -> None:
    values = normal(element_count, seed=element_count)
    data = arrays.encode(values, encoding)
    assert data == tensors.encode(torch_of(values), encoding)
    decoded = arrays.decode(data, encoding, np.full(element_count, math.nan, F32))
    assert bits(decoded) == bits(tensors.decode(data, encoding, torch.empty(element_count)))


@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("factor", [1e-45, 1e-40, 1.2e-38, 1e-36, 1e-20, 1e20, 1e38])
def test_any_magnitude_gives_the_bits_of_torch(encoding: pb.Encoding, factor: float) -> None:
    with np.errstate(over="ignore"):
        values = (normal(1 << 14).astype(np.float64).clip(-3, 3) * factor).astype(F32)
    data = arrays.encode(values, encoding)
    assert data == tensors.encode(torch_of(values), encoding)


@pytest.mark.parametrize("encoding", ALL)
@given(
    numbers=st.lists(FINITE, min_size=1, max_size=300),
    bad=NOT_FINITE,
    place=st.integers(0, 299),
)
def test_what_is_not_finite_is_not_finite_when_it_is_decoded(
    encoding: pb.Encoding, numbers: list[float], bad: float, place: int
) -> None:
    place %= len(numbers)
    numbers[place] = bad
    data = arrays.encode(array(numbers), encoding)
    for decoded in (
        arrays.decode(data, encoding, np.zeros(len(numbers), F32)),
        tensors.decode(data, encoding, torch.zeros(len(numbers))).numpy(),
    ):
        assert not np.isfinite(decoded[place])


def based(values: arrays.Array, encoding: pb.Encoding) -> arrays.Base:
    """A base without averaged buffers."""
    return arrays.packed(arrays.byte_view(values), encoding, Form(0, values.size))


@pytest.mark.parametrize("encoding", ALL)
@given(exact=st.lists(FINITE, max_size=9), coded=st.lists(FINITE, max_size=300))
def test_the_first_values_of_a_slice_travel_in_f32_and_the_others_as_the_codec_says(
    encoding: pb.Encoding, exact: list[float], coded: list[float]
) -> None:
    form = Form(len(exact), len(coded))
    data = arrays.pack(array([*exact, *coded]), encoding, form)
    assert len(data) == form.byte_count(encoding)
    first, rest = form.cut(data)
    assert bytes(first) == array(exact).tobytes()
    assert bytes(rest) == bytes(arrays.encode(array(coded), encoding))


@pytest.mark.parametrize("base_encoding", BASES)
@pytest.mark.parametrize("encoding", ALL)
def test_a_difference_moves_the_others_and_brings_the_first_whole(
    encoding: pb.Encoding, base_encoding: pb.Encoding
) -> None:
    form, comes = Form(7, 300), normal(307, seed=3)
    before = arrays.packed(bytearray(form.byte_count(base_encoding)), base_encoding, form)
    before.exact[:], before.coded[:] = normal(7), normal(300)
    data = arrays.pack(comes, encoding, form)
    after = arrays.moved(before, data, encoding)
    assert after.exact.tobytes() == comes[:7].tobytes()
    peer = based(before.coded.copy(), base_encoding)
    rest = arrays.moved(peer, form.cut(data)[1], encoding)
    assert after.coded.tobytes() == rest.coded.tobytes()


@pytest.mark.parametrize("encoding", BASES)
@given(pairs=st.lists(st.tuples(FINITE, FINITE), max_size=300))
def test_a_difference_has_the_bits_of_torch(
    encoding: pb.Encoding, pairs: list[tuple[float, float]]
) -> None:
    base, theta = array([one for one, _ in pairs], encoding), array([two for _, two in pairs])
    wanted = torch_of(base).float() - torch_of(theta)
    assert bits(arrays.difference(based(base, encoding), theta)) == bits(wanted)


@pytest.mark.parametrize("base_encoding", BASES)
@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("element_count", LENGTHS)
def test_a_base_moves_to_the_bits_that_a_shard_computes(
    encoding: pb.Encoding, base_encoding: pb.Encoding, element_count: int
) -> None:
    base = normal(element_count, seed=1).astype(arrays.FLOATS[base_encoding])
    before = bits(base)
    data = arrays.encode(normal(element_count, seed=2) * F32.type(0.01), encoding)
    ours = arrays.moved(based(base, base_encoding), data, encoding).coded
    assert ours.dtype == base.dtype
    assert bits(ours) == bits(changed(torch_of(base), data, encoding))
    assert bits(base) == before


def test_every_bf16_value_widens_exactly() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    ours = arrays.decode(bytes(arrays.byte_view(every)), pb.BF16, np.empty(1 << 16, F32))
    assert bits(ours) == bits(torch_of(every).float())


def test_values_between_two_bf16_neighbours_round_half_to_even() -> None:
    low = np.arange(1 << 15, dtype=np.uint32) << 16
    halves = np.concatenate([low, low + 0x7FFF, low + 0x8000, low + 0x8001]).view(F32)
    halves = halves[np.isfinite(halves)]
    assert arrays.encode(halves, pb.BF16) == tensors.encode(torch_of(halves), pb.BF16)


def test_bytes_and_views_share_memory() -> None:
    values = normal(8)
    view = arrays.byte_view(values)
    assert len(view) == 32
    again = arrays.from_bytes(view, pb.F32)
    values[3] = 7.0
    assert again[3] == 7.0
    assert arrays.encoding_of(based(again, pb.F32)) == pb.F32
    assert arrays.encoding_of(based(array([1.0], pb.BF16), pb.BF16)) == pb.BF16


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 70_000, 99_999])
def test_one_value_that_is_not_finite_is_found(bad: float, place: int) -> None:
    values = np.ones(100_000, np.float32)
    assert arrays.all_finite(values)
    values[place] = bad
    assert not arrays.all_finite(values)
    assert arrays.all_finite(values[:0])


def test_large_values_are_finite() -> None:
    assert arrays.all_finite(np.full(100_000, 3e38, np.float32))
