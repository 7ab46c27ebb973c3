"""Values become bytes and bytes become values: the arithmetic of the codecs, on numpy.

Shards and the transport processes of learners compute with it, and neither needs torch, whose
import takes over a second and 500 MB. What is decoded depends on the bytes alone, and the bytes on
the values alone, not on the machine, the number of threads or how a slice is cut: a base must be
equal on both sides of the wire, bit for bit. Each step is one IEEE operation in f32: subtract;
maximum of the absolute values of a block; divide by the number of levels; 1 / scale; multiply;
round half to even; square root. Sums are of whole numbers and exact, so that no order differs.
Where a value is not finite the bits may differ, but what is decoded from its block is not finite.

Each function does all its steps on one block, which stays in the cache, before the next, with
`out=` into arrays of one block. Results are allocated once, whole, by `numpy.empty`: the first
write to each fresh page traps into the kernel. On so many values numpy lets other threads run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer import codecs
from atoll_protos.transfer.codecs import Codec, Form, Packed
from atoll_protos.transfer.frames import Buffer

Array: TypeAlias = NDArray[Any]  # 1-d and contiguous: of F32, or of BF16 in a base
Base: TypeAlias = Packed[Array]

F32: Final = np.dtype(np.float32)
BF16: Final = np.dtype(ml_dtypes.bfloat16)
FLOATS: Final[Mapping[int, np.dtype[Any]]] = {pb.F32: F32, pb.BF16: BF16}
DTYPES: Final = {"float32": F32, "bfloat16": BF16, "float16": np.dtype(np.float16)}

BYTE_BITS: Final = 8
RUN: Final = 1 << 18  # elements computed at once (measured); a multiple of every codec's block
SCALE_MIN: Final = np.finfo(np.float32).tiny  # below it 1 / scale is infinite
_EDGES: Final = {c.block: np.arange(0, RUN, c.block) for c in codecs.CODECS if c.scaled}

FINE_LEVELS: Final = 512  # to which a scale is fitted: 64 squares add up to 2^24 at most, exactly
NORMAL_SCALE: Final = F32.type(0.151)  # of a root mean square of 1 (see codecs)
FITS: Final = 2
SCALE_MAX: Final = F32.type(2.0**124)  # above it ten times the scale is infinite
_CODES: Final = {  # by a byte with a table's codes: their levels, in four bytes
    codec.encoding: np.array(codec.table, np.int8)[np.arange(256)[:, None] >> (0, 2, 4, 6) & 3]
    .view(np.uint32)
    .ravel()
    for codec in codecs.CODECS
    if codec.table
}


def from_bytes(data: Buffer, encoding: pb.Encoding) -> Array:
    """Return the values that F32 or BF16 bytes are, without a copy: shape [n]."""
    return np.frombuffer(data, dtype=FLOATS[encoding])


def byte_view(values: Array) -> memoryview:
    """Return the bytes of an array, without a copy; the view keeps the array alive."""
    return values.view(np.uint8).data


def packed(data: Buffer, encoding: pb.Encoding, form: Form) -> Base:
    """Return the whole values of a slice over its bytes, without a copy: F32 or BF16."""
    exact, coded = form.cut(data)
    return Packed(
        form=form,
        data=memoryview(data),
        exact=from_bytes(exact, pb.F32),
        coded=from_bytes(coded, encoding),
    )


def empty_packed(encoding: pb.Encoding, form: Form) -> Base:
    """Memory for the whole values of a slice, in F32 or BF16; they are not set yet."""
    return packed(np.empty(form.byte_count(encoding), "u1").data, encoding, form)


def encoding_of(base: Base) -> pb.Encoding:
    """F32 or BF16: how a base travels bit for bit."""
    return pb.F32 if base.coded.dtype == F32 else pb.BF16


def difference(
    base: Base, theta: Array, *, rounded: Sequence[tuple[slice, np.dtype[Any]]] = ()
) -> Array:
    """Return a new F32 [n]: `base - theta`, what was trained since `base`; `theta` is F32 [n].

    In the spans of `rounded` the learner holds the base in a narrower type, so the difference is to
    the base after that rounding; else everybody's offers would carry one and the same rounding.
    """
    assert base.form.element_count == theta.size, (base.form, theta.size)
    found = np.empty(theta.size, F32)
    with np.errstate(all="ignore"):
        for part in (*_runs(base.form.exact), *_runs(theta.size, base.form.exact)):
            held = widened(base.part(part), found[part])
            np.subtract(held, theta[part], out=found[part])
        for span, dtype in rounded:
            for part in _runs(span.stop, span.start):
                held = base.part(part).astype(dtype).astype(F32)
                np.subtract(held, theta[part], out=found[part])
    return found


def all_finite(values: Array) -> bool:
    """F32 [n], read once."""
    with np.errstate(all="ignore"):
        if math.isfinite(float(np.dot(values, values))):
            return True  # a value that is not finite makes the sum so; large ones may as well
    return all(bool(np.isfinite(values[part]).all()) for part in _runs(values.size))


def moved(
    base: Base, data: Buffer, encoding: pb.Encoding, *, to: pb.Encoding | None = None
) -> Base:
    """Return the base that a difference to `base` leads to (rule 17): `data` is of a Publish.

    It is of the type `to`, by default that of `base`. Exact values come whole; the others are
    `base` plus the encoded difference, formed in f32 and rounded once.
    """
    codec, count = codecs.of(encoding), base.form.coded
    to = to or encoding_of(base)
    found = empty_packed(to, base.form)
    exact, change = base.form.cut(data)
    found.exact[:] = from_bytes(exact, pb.F32)
    one, other = np.empty(RUN, F32), np.empty(RUN, F32)
    with np.errstate(all="ignore"):
        for part in _runs(count):
            work = one[: part.stop - part.start]
            decoded = decode_part(change, codec, count, part, work)
            old = widened(base.coded[part], other[: work.size])
            found.coded[part] = np.add(decoded, old, out=work)
    return found


def pack(values: Array, encoding: pb.Encoding, form: Form) -> memoryview:
    """F32 [n], the values of a slice, as the bytes of an offer."""
    data = np.empty(form.byte_count(encoding), "u1")
    data[: form.exact_bytes].view(F32)[:] = values[: form.exact]
    _encode_into(data[form.exact_bytes :], values[form.exact :], encoding)
    return data.data


def encode(values: Array, encoding: pb.Encoding) -> memoryview:
    """Encode F32 [n], laid out as `codecs` says. Raises ValueError for an unknown encoding.

    A value that is not finite stays so, or makes its whole block so: the receiver refuses the norm.
    """
    data = np.empty(codecs.encoded_size(values.size, encoding), "u1")
    _encode_into(data, values, encoding)
    return data.data


def _encode_into(data: Array, values: Array, encoding: pb.Encoding) -> None:
    assert values.dtype == F32, values.dtype
    codec, work = codecs.of(encoding), np.empty(RUN, F32)
    with np.errstate(all="ignore"):
        for part in _runs(values.size):
            encode_part(data, codec, values.size, part, values[part], work)


def encode_part(
    data: Array, codec: Codec, element_count: int, part: slice, values: Array, work: Array
) -> None:
    """Write elements `part`, at most RUN, to where they lie in `data`, uint8 of all elements.

    In an encoding with scales the part begins with a block. `work` is f32, at least as long.
    """
    if not codec.scaled:
        data.view(FLOATS[codec.encoding])[part] = values
        return
    scale, given = _split(data, codec, element_count, part)
    if codec.table:
        _write_codes(values, codec, scale, given)
        return
    rounded = _quantised(values, codec.block, codec.levels, scale, work[: values.size])
    if codec.bits == BYTE_BITS:
        np.copyto(given.view(np.int8), rounded, casting="unsafe")
    else:
        _pack(rounded, given)


def decode(data: Buffer, encoding: pb.Encoding, out: Array) -> Array:
    """Fill `out` (F32 [n]) with the values of `data`, whose length must fit; returns `out`."""
    codec = codecs.of(encoding)
    assert len(data) == codec.byte_count(out.size), (len(data), out.size)
    with np.errstate(all="ignore"):
        for part in _runs(out.size):
            out[part] = decode_part(data, codec, out.size, part, out[part])
    return out


def _runs(stop: int, first: int = 0) -> Iterator[slice]:
    for start in range(first, stop, RUN):
        yield slice(start, min(start + RUN, stop))


def widened(values: Array, out: Array) -> Array:
    """F32 or BF16 values as f32: in `out` where they must be changed."""
    if values.dtype == F32:
        return values
    np.copyto(out, values)
    return out


def _split(data: Array, codec: Codec, element_count: int, part: slice) -> tuple[Array, Array]:
    """Return the scales and the levels of a part, in the bytes of all elements."""
    assert part.start % codec.block == 0, (part, codec)
    edge = codec.scale_bytes(element_count)
    kind = FLOATS[codec.scale]
    scales = data[:edge].view(kind)[part.start // codec.block : -(-part.stop // codec.block)]
    return scales, data[
        edge + part.start * codec.bits // 8 : edge + -(-part.stop * codec.bits // 8)
    ]


def _quantised(values: Array, block: int, levels: int, scale: Array, work: Array) -> Array:
    """Return the levels of a run, as f32 in `work`; fills `scale`."""
    np.maximum.reduceat(np.abs(values, out=work), _EDGES[block][: scale.size], out=scale)
    np.divide(scale, F32.type(levels), out=scale)
    scale[scale < SCALE_MIN] = 0.0
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    _multiply_blocks(values, inverse, block, work)
    return np.rint(work, out=work)


def _write_codes(values: Array, codec: Codec, scale: Array, packed: Array) -> None:
    """Two bits for each value: the outer level, and a minus (see codecs); fills `scale`."""
    rows, step = np.empty((scale.size, codec.block), F32), np.empty(scale.size, F32)
    flat = rows.reshape(-1)
    _quantised(values, codec.block, FINE_LEVELS, step, flat[: values.size])
    flat[values.size :] = 0
    counts = np.full(scale.size, codec.block, F32)
    counts[-1:] -= flat.size - values.size
    is_outer, fitted = _fitted(np.abs(rows, out=rows), counts, *codec.table[:2])
    np.copyto(scale, np.minimum(step * fitted, SCALE_MAX), casting="unsafe")
    bits = np.empty((values.size, 2), np.bool_)
    bits[:, 0] = is_outer.reshape(-1)[: values.size]
    np.less(values, 0, out=bits[:, 1])
    np.copyto(packed, np.packbits(bits, bitorder="little"))


def _fitted(rows: Array, counts: Array, inner: int, outer: int) -> tuple[Array, Array]:
    """Which of whole numbers f32 [blocks, block] are outer levels, and the scales, f32 [blocks].

    Lloyd's algorithm, from the best scale of a normal distribution: the nearest levels, then the
    scale with the least squared error for them.
    """
    sums, scale = np.vecdot(rows, np.ones_like(rows[0])), np.vecdot(rows, rows)
    scale = NORMAL_SCALE * np.sqrt(scale / counts)
    for _ in range(FITS):
        is_outer = rows > (scale * F32.type((inner + outer) / 2))[:, None]
        ones = is_outer.astype(F32)
        scale = inner * sums + (outer - inner) * np.vecdot(rows, ones)
        scale /= inner**2 * counts + (outer**2 - inner**2) * np.vecdot(ones, ones)
    return is_outer, scale


def _multiply_blocks(values: Array, factors: Array, block: int, out: Array) -> None:
    """`out` becomes `values`, each block of them times its factor; the last block may be short."""
    rows = values.size // block
    full = rows * block
    shape = rows, block
    np.multiply(values[:full].reshape(shape), factors[:rows, None], out=out[:full].reshape(shape))
    if full < values.size:
        np.multiply(values[full:], factors[rows], out=out[full:])


def _pack(rounded: Array, packed: Array) -> None:
    """Levels f32[n] -> uint8[n / 2]: the even element in the low half, two's complement."""
    levels = np.zeros(2 * packed.size, np.int8)  # the last is 0 where their number is odd
    np.copyto(levels[: rounded.size], rounded, casting="unsafe")
    pairs = levels.view(np.int16)  # the odd element is the high byte
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


def decode_part(data: Buffer, codec: Codec, element_count: int, part: slice, out: Array) -> Array:
    """As f32, in `out` or as a view of f32 `data`. With scales `part` begins with a block."""
    if not codec.scaled:
        return widened(from_bytes(data, codec.encoding)[part], out)
    scale = levels_part(data, codec, element_count, part, out)
    _multiply_blocks(out, scale, codec.block, out)
    return out


def levels_part(data: Buffer, codec: Codec, element_count: int, part: slice, out: Array) -> Array:
    """Fill `out` (f32) with unscaled levels; `part` begins with a block. Returns its f32 scales."""
    scale, given = _split(np.frombuffer(data, np.uint8), codec, element_count, part)
    if codec.table:
        levels = _CODES[codec.encoding][given].view(np.int8)
    else:
        levels = given.view(np.int8) if codec.bits == BYTE_BITS else _unpacked(given)
    np.copyto(out, levels[: out.size])
    return scale.astype(F32, copy=False)
