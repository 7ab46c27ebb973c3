"""Values of a slice: packed for the wire, moved by differences, and looked through."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import BF16, F32, RUN, Array
from atoll_protos.transfer.codecs import Codec, Form

ALL = [codec.encoding for codec in codecs.CODECS]
LINEAR = [codec for codec in codecs.CODECS if codec.scaled and not codec.table]
BASES = [pb.F32, pb.BF16]
LENGTHS = [0, 1, 2, 63, 64, 65, 255, 256, 257, 4097, RUN - 1, RUN, RUN + 1, 2 * RUN + 333]
SMALLEST = 2.0**-149  # the smallest denormal f32
FINITE = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, SMALLEST, -SMALLEST, 2.0**-126, 2.0**-120, 3.0e38, -3.4e38]),
    st.integers(-(1 << 20), 1 << 20).map(lambda n: n / 512),  # halves between two bf16 values
)


def array(values: list[float], encoding: pb.Encoding = pb.F32) -> Array:
    with np.errstate(over="ignore"):
        return np.array(values, F32).astype(arrays.FLOATS[encoding])


def normal(element_count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(element_count).astype(F32)


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
def test_a_difference_is_taken_in_f32(
    encoding: pb.Encoding, pairs: list[tuple[float, float]]
) -> None:
    base, theta = array([one for one, _ in pairs], encoding), array([two for _, two in pairs])
    with np.errstate(over="ignore"):
        wanted = base.astype(F32) - theta
    assert arrays.difference(based(base, encoding), theta).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("base_encoding", BASES)
@pytest.mark.parametrize("encoding", ALL)
@pytest.mark.parametrize("element_count", LENGTHS)
def test_a_base_moves_by_the_decoded_difference_rounded_once(
    encoding: pb.Encoding, base_encoding: pb.Encoding, element_count: int
) -> None:
    base = normal(element_count, seed=1).astype(arrays.FLOATS[base_encoding])
    before = base.tobytes()
    data = arrays.encode(normal(element_count, seed=2) * F32.type(0.01), encoding)
    ours = arrays.moved(based(base, base_encoding), data, encoding).coded
    assert ours.dtype == base.dtype
    decoded = arrays.decode(data, encoding, np.empty(element_count, F32))
    assert ours.tobytes() == (decoded + base.astype(F32)).astype(base.dtype).tobytes()
    assert base.tobytes() == before


def test_every_bf16_value_widens_and_what_lies_between_two_rounds_as_in_torch() -> None:
    """Learners round and widen with torch, too: half to even."""
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    ours = arrays.decode(bytes(arrays.byte_view(every)), pb.BF16, np.empty(1 << 16, F32))
    peer = torch.arange(1 << 16, dtype=torch.int32).short().view(torch.bfloat16).float()
    assert ours.tobytes() == peer.numpy().tobytes()
    low = np.arange(1 << 15, dtype=np.uint32) << 16
    halves = np.concatenate([low, low + 0x7FFF, low + 0x8000, low + 0x8001]).view(F32)
    halves = halves[np.isfinite(halves)]
    rounded = torch.from_numpy(halves).bfloat16().view(torch.int16).numpy()
    assert arrays.encode(halves, pb.BF16) == rounded.tobytes()


@pytest.mark.parametrize("codec", LINEAR, ids=lambda c: c.wire)
@pytest.mark.parametrize("factor", [1e-45, 1e-40, 1.2e-38, 1e-36, 1e-20, 1.0, 1e20, 1e38])
def test_a_linear_codec_gives_the_bits_that_torch_gives(codec: Codec, factor: float) -> None:
    """Another library with the same IEEE operations: rule 17 asks for equal bits everywhere."""
    values = (normal((1 << 14) + 5).astype(np.float64).clip(-3, 3) * factor).astype(F32)
    if factor == 1:
        values[:6] = [codec.levels, 0.5, 1.5, 2.5, -0.5, -1.5]  # halves go to even levels
    rows = torch.nn.functional.pad(torch.from_numpy(values), (0, -values.size % codec.block))
    rows = rows.view(-1, codec.block)
    scale = rows.abs().amax(1, keepdim=True) / codec.levels
    scale[scale < torch.finfo(torch.float32).tiny] = 0
    inverse = torch.where(scale > 0, 1 / scale, 0)
    decoded = ((rows * inverse).round().char() * scale).flatten()[: values.size]
    data = arrays.encode(values, codec.encoding)
    ours = arrays.decode(data, codec.encoding, np.empty(values.size, F32))
    assert ours.tobytes() == decoded.numpy().tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 70_000, 99_999])
def test_one_value_that_is_not_finite_is_found(bad: float, place: int) -> None:
    values = np.ones(100_000, np.float32)
    assert arrays.all_finite(values)
    values[place] = bad
    assert not arrays.all_finite(values)
    assert arrays.all_finite(values[:0])
    assert arrays.all_finite(np.full(100_000, 3e38, np.float32))  # although their sum is not
