"""int2: four levels, a scale that is fitted to each block of 64, the same bits everywhere."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import BF16, F32, RUN, Array
from atoll_protos.transfer.codecs import Form

BLOCK = 64
SMALLEST_NORMAL = 2.0**-126
FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.25, 3.0e-37, 3.4e38, -3.4e38, 2.0**-149]),
    st.integers(-600, 600).map(float),
)


def normal(element_count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(element_count).astype(F32)


def decoded(values: Array) -> Array:
    data = arrays.encode(values, pb.INT2)
    assert len(data) == codecs.encoded_size(values.size, pb.INT2)
    return arrays.decode(data, pb.INT2, np.full_like(values, math.nan))


def expected(block: Array) -> tuple[float, list[int]]:
    """Scale and levels of one block by the words of `codecs`, with whole numbers of Python."""
    one = F32.type
    step = np.abs(block).max() / one(512)
    if step < SMALLEST_NORMAL:
        return 0.0, [-3 if value < 0 else 3 for value in block]
    whole = [abs(int(np.rint(value * (one(1) / step)))) for value in block]
    assert max(whole) == 512
    scale = one(0.151) * np.sqrt(one(sum(x * x for x in whole)) / one(len(whole)))
    for _ in range(2):
        levels = [10 if x > one(6.5) * scale else 3 for x in whole]
        pairs = list(zip(whole, levels, strict=True))
        scale = one(sum(x * y for x, y in pairs)) / one(sum(y * y for y in levels))
    signed = [-y if value < 0 else y for value, y in zip(block, levels, strict=True)]
    return float(np.minimum(step * scale, one(2.0**124)).astype(BF16)), signed


def written(values: Array) -> bytes:
    """What `expected` says of each block, as bytes: scales, then two bits a value."""
    found = [expected(values[at : at + BLOCK]) for at in range(0, values.size, BLOCK)]
    codes = [{3: 0, 10: 1, -3: 2, -10: 3}[y] for _, levels in found for y in levels]
    codes += [0] * (-len(codes) % 4)
    scales = np.array([scale for scale, _ in found]).astype(BF16).tobytes()
    quads = zip(*[iter(codes)] * 4, strict=True)
    return scales + bytes(a | b << 2 | c << 4 | d << 6 for a, b, c, d in quads)


@given(st.lists(FLOATS, max_size=150))
def test_the_bytes_are_those_of_the_rule_written_out(numbers: list[float]) -> None:
    values = np.array(numbers, F32)
    with np.errstate(all="ignore"):
        assert bytes(arrays.encode(values, pb.INT2)) == written(values)


@pytest.mark.parametrize("element_count", [1, 2, 3, 63, 64, 65, 127, 257, RUN + 70])
def test_the_bytes_are_those_of_the_rule_also_at_the_ends_of_blocks_and_runs(
    element_count: int,
) -> None:
    values = normal(element_count, seed=element_count)
    assert bytes(arrays.encode(values, pb.INT2)) == written(values)


def test_a_byte_has_four_values_the_first_in_the_lowest_bits_rule_25() -> None:
    data = arrays.encode(np.array([10, -10, 3, -3, 3], F32), pb.INT2)
    assert data.tobytes() == struct.pack("<H", 0x3F80) + bytes([0b10_00_11_01, 0])
    assert Form(1, 65).byte_count(pb.INT2) == 4 + 2 * 2 + 17


@pytest.mark.parametrize("value", [0.0, -0.0, 2.0**-149, -1e-40, 5e-36])
def test_zeros_and_values_too_small_for_a_scale_come_back_as_zeros(value: float) -> None:
    assert not decoded(np.full(70, value, F32)).any()
    assert decoded(np.full(70, 1e-35, F32)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 130])
def test_a_value_that_is_not_finite_spoils_its_block_and_no_other(bad: float, place: int) -> None:
    values = normal(131)
    before = decoded(values)
    values[place] = bad
    after, mine = decoded(values), np.arange(131) // BLOCK == place // BLOCK
    assert np.isnan(after[mine]).all()
    assert after[~mine].tobytes() == before[~mine].tobytes()


def test_the_largest_finite_values_stay_finite() -> None:
    """The outer level can be beyond the largest value."""
    most = float(np.finfo(F32).max)
    for values in ([most], [-most] * 64, [0.9 * most] * 50 + [most] * 14):
        assert np.isfinite(decoded(np.array(values, F32))).all()
