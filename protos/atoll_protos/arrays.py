"""The arithmetic of the codecs on numpy arrays, for a process that needs no torch.

The transport process of a learner encodes differences and decodes published values, and does
nothing else with numbers. For that it need not import torch, which takes over a second and 500 MB
in each process and again at each restart. This module computes what `tensors` computes, with the
same bits: a base must be equal on both sides of the wire, and a shard uses torch.

Why the bits are equal
----------------------
Both libraries do each step as one IEEE operation in f32, in the same order: subtract; maximum of
the absolute values of a block; divide by the number of levels; 1 / scale; multiply; round half to
even. There is no sum, whose order could differ. f32 becomes bf16 by rounding half to even, in
`ml_dtypes` as in torch. tests/unit/contract/test_arrays.py compares the bits. Where a value is not
finite the bits may differ, but what is decoded from its block is not finite in either library.

Why it is written in blocks
---------------------------
A pass over a large array runs at the speed of memory, one over 64 Ki elements at the speed of the
cache. So each function does all its steps on one block before the next, with `out=` into arrays
of one block that are allocated once per call. Writing to fresh memory is slower still (the first
write to each page traps into the kernel), so results are allocated once, whole, by `numpy.empty`.

bf16 values are arrays of `BF16`. Their widening to f32 is a shift by 16 bits, which numpy does
faster on integers than `ml_dtypes` does on values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs
from atoll_protos.codecs import Codec, Form, Packed
from atoll_protos.frames import Buffer

Array: TypeAlias = NDArray[Any]  # 1-d and contiguous: of F32, or of BF16 in a base
Base: TypeAlias = Packed[Array]

F32: Final = np.dtype(np.float32)
BF16: Final = np.dtype(ml_dtypes.bfloat16)
FLOATS: Final[Mapping[int, np.dtype[Any]]] = {pb.F32: F32, pb.BF16: BF16}
DTYPES: Final = {"float32": F32, "bfloat16": BF16, "float16": np.dtype(np.float16)}

BYTE_BITS: Final = 8
RUN: Final = 1 << 16  # elements computed at once; a multiple of every codec's block
SCALE_MIN: Final = np.finfo(np.float32).tiny  # below it 1 / scale is infinite
_EDGES: Final = {c.block: np.arange(0, RUN, c.block) for c in codecs.CODECS if c.scaled}


def from_bytes(data: Buffer, encoding: pb.Encoding) -> Array:
    """The values that F32 or BF16 bytes are, without a copy: shape [n]."""
    return np.frombuffer(data, dtype=FLOATS[encoding])


def byte_view(values: Array) -> memoryview:
    """The bytes of an array, without a copy; the view keeps the array alive."""
    return values.view(np.uint8).data


def packed(data: Buffer, encoding: pb.Encoding, form: Form) -> Base:
    """The whole values of a slice over its bytes, without a copy: F32 or BF16."""
    exact, coded = form.cut(data)
    return Packed(
        form=form,
        data=memoryview(data),
        exact=from_bytes(exact, pb.F32),
        coded=from_bytes(coded, encoding),
    )


def encoding_of(base: Base) -> pb.Encoding:
    """F32 or BF16: how a base travels bit for bit."""
    return pb.F32 if base.coded.dtype == F32 else pb.BF16


def difference(
    base: Base, theta: Array, *, rounded: Sequence[tuple[slice, np.dtype[Any]]] = ()
) -> Array:
    """What was trained since `base`: `base - theta`, a new array F32 [n]; `theta` is F32 [n].

    In the spans of `rounded` the learner holds the base in a narrower type, so the difference is
    to the base after that rounding; else everybody's offers would carry one and the same rounding.
    """
    assert base.form.element_count == theta.size, (base.form, theta.size)
    found = np.empty(theta.size, F32)
    with np.errstate(all="ignore"):
        for part in (*_runs(base.form.exact), *_runs(theta.size, base.form.exact)):
            held = _widened(base.part(part), found[part])
            np.subtract(held, theta[part], out=found[part])
        for span, dtype in rounded:
            for part in _runs(span.stop, span.start):
                held = base.part(part).astype(dtype).astype(F32)
                np.subtract(held, theta[part], out=found[part])
    return found


def all_finite(values: Array) -> bool:
    """Whether no value is infinite or NaN; F32 [n], read once."""
    with np.errstate(all="ignore"):
        if math.isfinite(float(np.dot(values, values))):
            return True  # a value that is not finite makes the sum so; large ones may as well
    return all(bool(np.isfinite(values[part]).all()) for part in _runs(values.size))


def moved(
    base: Base, data: Buffer, encoding: pb.Encoding, *, to: pb.Encoding | None = None
) -> Base:
    """The base that a difference to `base` leads to: `data` is what a Publish carries.

    It is of the type `to`, which is that of `base` unless given. Exact values come whole. The
    others are `base` plus the encoded difference, formed in f32 and rounded once
    (docs/protocol.md, rule 17).
    """
    codec, count = codecs.of(encoding), base.form.coded
    to = to or encoding_of(base)
    found = packed(np.empty(base.form.byte_count(to), "u1").data, to, base.form)
    exact, change = base.form.cut(data)
    found.exact[:] = from_bytes(exact, pb.F32)
    one, other = np.empty(RUN, F32), np.empty(RUN, F32)
    with np.errstate(all="ignore"):
        for part in _runs(count):
            work = one[: part.stop - part.start]
            decoded = _decode_run(change, codec, count, part, work)
            old = _widened(base.coded[part], other[: work.size])
            found.coded[part] = np.add(decoded, old, out=work)
    return found


def pack(values: Array, encoding: pb.Encoding, form: Form) -> memoryview:
    """F32 [n], the values of a slice, as the bytes of an offer."""
    data = np.empty(form.byte_count(encoding), "u1")
    data[: form.exact_bytes].view(F32)[:] = values[: form.exact]
    _encode_into(data[form.exact_bytes :], values[form.exact :], encoding)
    return data.data


def encode(values: Array, encoding: pb.Encoding) -> memoryview:
    """F32 [n] as bytes laid out as `codecs` says: the bytes that `tensors.encode` gives."""
    data = np.empty(codecs.encoded_size(values.size, encoding), "u1")
    _encode_into(data, values, encoding)
    return data.data


def _encode_into(data: Array, values: Array, encoding: pb.Encoding) -> None:
    """Fill `data` (uint8) with the encoded values."""
    assert values.dtype == F32, values.dtype
    codec = codecs.of(encoding)
    if encoding in FLOATS:
        given = data.view(FLOATS[encoding])
        for part in _runs(values.size):
            given[part] = values[part]
        return
    scales, rest = _split(data, codec, values.size)
    work, levels = np.empty(RUN, F32), np.empty(RUN + 1, np.int8)
    with np.errstate(all="ignore"):
        for part in _runs(values.size):
            stop = -(-part.stop // codec.block)
            scale = scales[part.start // codec.block : stop]
            given = rest[part.start * codec.bits // 8 : -(-part.stop * codec.bits // 8)]
            rounded = _quantised(values[part], codec, scale, work[: part.stop - part.start])
            if codec.bits == BYTE_BITS:
                np.copyto(given.view(np.int8), rounded, casting="unsafe")
            else:
                _pack(rounded, levels, given)


def decode(data: Buffer, encoding: pb.Encoding, out: Array) -> Array:
    """Fill `out` (F32 [n]) with the values of `data`, whose length must fit; returns `out`."""
    codec = codecs.of(encoding)
    assert len(data) == codec.byte_count(out.size), (len(data), out.size)
    with np.errstate(all="ignore"):
        for part in _runs(out.size):
            out[part] = _decode_run(data, codec, out.size, part, out[part])
    return out


def _runs(stop: int, first: int = 0) -> Iterator[slice]:
    for start in range(first, stop, RUN):
        yield slice(start, min(start + RUN, stop))


def _widened(values: Array, out: Array) -> Array:
    """F32 or BF16 values as f32: in `out` where they must be changed."""
    if values.dtype == F32:
        return values
    bits = out.view(np.uint32)
    np.copyto(bits, values.view(np.uint16))
    np.left_shift(bits, 16, out=bits)
    return out


def _split(data: Array, codec: Codec, element_count: int) -> tuple[Array, Array]:
    """Views of the scales (f32) and of the rest (uint8)."""
    edge = codec.scale_bytes(element_count)
    return data[:edge].view(F32), data[edge:]


def _quantised(values: Array, codec: Codec, scale: Array, work: Array) -> Array:
    """The levels of a run, as f32 in `work`; fills `scale`."""
    np.maximum.reduceat(np.abs(values, out=work), _EDGES[codec.block][: scale.size], out=scale)
    np.divide(scale, F32.type(codec.levels), out=scale)
    scale[scale < SCALE_MIN] = 0.0
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    _multiply_blocks(values, inverse, codec.block, work)
    return np.rint(work, out=work)


def _multiply_blocks(values: Array, factors: Array, block: int, out: Array) -> None:
    """`out` becomes `values`, each block of them times its factor; the last block may be short."""
    rows = values.size // block
    full = rows * block
    shape = rows, block
    np.multiply(values[:full].reshape(shape), factors[:rows, None], out=out[:full].reshape(shape))
    if full < values.size:
        np.multiply(values[full:], factors[rows], out=out[full:])


def _pack(rounded: Array, levels: Array, packed: Array) -> None:
    """Levels f32[n] -> uint8[n / 2]: the even element in the low half, two's complement."""
    count = rounded.size
    np.copyto(levels[:count], rounded, casting="unsafe")
    levels[count] = 0  # the high half of the last byte where their number is odd
    pairs = levels[: count + count % 2].view(np.int16)  # the odd element is the high byte
    high = pairs >> 4
    high &= 0xF0
    pairs &= 0x0F
    pairs |= high
    np.copyto(packed, pairs, casting="unsafe")


def _unpacked(packed: Array) -> Array:
    """uint8[n] -> int8[2n]; a half-byte's sign is its highest bit."""
    pairs = packed.astype(np.int16)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    levels = pairs.view(np.int8)
    levels ^= 8
    levels -= 8
    return levels


def _decode_run(data: Buffer, codec: Codec, element_count: int, part: slice, out: Array) -> Array:
    """Elements `part` of the whole, as f32: in `out`, or as a view of f32 `data`."""
    whole = np.frombuffer(data, np.uint8)
    if not codec.scaled:
        return _widened(whole.view(FLOATS[codec.encoding])[part], out)
    scales, rest = _split(whole, codec, element_count)
    given = rest[part.start * codec.bits // 8 : -(-part.stop * codec.bits // 8)]
    is_whole = codec.bits == BYTE_BITS
    levels = given.view(np.int8) if is_whole else _unpacked(given)[: out.size]
    np.copyto(out, levels)
    scale = scales[part.start // codec.block : -(-part.stop // codec.block)]
    _multiply_blocks(out, scale, codec.block, out)
    return out
