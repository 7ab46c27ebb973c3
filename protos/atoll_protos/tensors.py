"""Tensors become bytes and bytes become tensors: the arithmetic of the codecs, on torch.

The only module of the contract that imports torch; `codecs` holds the table of the codecs and
describes the bytes. All functions work on CPU tensors and keep to one rule: what is decoded
depends on the bytes alone, and the bytes on the values alone, not on the number of threads or on
how a slice is cut into spans. So a shard and its learners come to the same base, bit for bit.
"""

import ctypes
from collections.abc import Mapping
from typing import Final

import torch
from torch.nn.functional import pad

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs
from atoll_protos.codecs import Codec, Form, Packed, encoded_size
from atoll_protos.layout import DTYPES as BYTES_OF_DTYPES

BYTE_BITS: Final = 8
RUN: Final = 1 << 19  # elements coded at once: few calls, temporaries that stay in the cache
SCALE_MIN: Final = torch.finfo(torch.float32).tiny  # below it 1 / scale is infinite

FLOATS: Final[Mapping[pb.Encoding, torch.dtype]] = {
    pb.F32: torch.float32,
    pb.BF16: torch.bfloat16,
}
DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, name) for name in BYTES_OF_DTYPES}

SAFETENSORS: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}  # as files in this format name them


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; the view keeps the tensor alive."""
    assert tensor.is_contiguous(), tensor.shape
    assert tensor.device.type == "cpu", tensor.device
    byte_count = tensor.numel() * tensor.element_size()
    if byte_count == 0:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * byte_count).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def from_bytes(data: bytearray | memoryview, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over writable bytes, without a copy: shape [n] of `dtype`."""
    return torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)


def packed(data: bytearray | memoryview, encoding: pb.Encoding, form: Form) -> Packed[torch.Tensor]:
    """The whole values of a slice over its writable bytes, without a copy: F32 or BF16."""
    exact, coded = form.cut(data)
    return Packed(
        form=form,
        data=memoryview(data),
        exact=from_bytes(exact, torch.float32),
        coded=from_bytes(coded, FLOATS[encoding]),
    )


def empty_packed(encoding: pb.Encoding, form: Form) -> Packed[torch.Tensor]:
    """Memory for the whole values of a slice, in F32 or BF16; they are not set yet."""
    data = torch.empty(form.byte_count(encoding), dtype=torch.uint8)
    return packed(byte_view(data), encoding, form)


def encoding_of(base: Packed[torch.Tensor]) -> pb.Encoding:
    """F32 or BF16: how a base travels bit for bit."""
    return pb.F32 if base.coded.dtype is torch.float32 else pb.BF16


def encode(values: torch.Tensor, encoding: pb.Encoding) -> bytearray:
    """The bytes of f32[n], laid out as `codecs` says. Raises ValueError for an unknown encoding.

    A value that is not finite stays so, or makes its whole block so: the norm of what is decoded
    is then not finite either, and the receiver refuses the transfer.
    """
    data = bytearray(encoded_size(values.numel(), encoding))
    encode_span(values, encoding, values.numel(), 0, data)
    return data


def encode_span(
    values: torch.Tensor, encoding: pb.Encoding, element_count: int, start: int, data: bytearray
) -> None:
    """Write f32[m] as elements start..start+m of `element_count` into `data`, the whole's bytes.

    In an encoding with scales `start` must be a multiple of the codec's block, and so must the
    end, unless it is the whole's.
    """
    assert len(data) == encoded_size(element_count, encoding), (len(data), element_count)
    if encoding in FLOATS:
        stop = start + values.numel()
        from_bytes(data, FLOATS[encoding])[start:stop].copy_(values)
        return
    codec = codecs.of(encoding)
    block = codec.block
    assert start % block == 0, (start, block)
    scales, rest = _split(data, element_count, codec)
    for first in range(0, values.numel(), RUN):
        part = values[first : first + RUN]
        begin, stop = start + first, start + first + part.numel()
        levels = _quantise(part, block, codec.levels, scales[begin // block :])
        if codec.bits == BYTE_BITS:
            rest[begin:stop].view(torch.int8).copy_(levels[: part.numel()])
        else:
            packed = rest[begin // 2 : -(-stop // 2)]
            packed.copy_(_packed(levels)[: packed.numel()])


def decode(data: bytearray | memoryview, encoding: pb.Encoding, out: torch.Tensor) -> torch.Tensor:
    """Fill `out` (f32[n]) with the values of `data`, whose length must fit; returns `out`."""
    return decode_span(data, encoding, out.numel(), 0, out)


def decode_span(
    data: bytearray | memoryview,
    encoding: pb.Encoding,
    element_count: int,
    start: int,
    out: torch.Tensor,
) -> torch.Tensor:
    """Fill `out` (f32[m]) with elements start..start+m of `element_count`; returns `out`.

    In an encoding with scales `start` must be a multiple of the codec's block.
    """
    assert len(data) == encoded_size(element_count, encoding), (len(data), element_count)
    if encoding in FLOATS:
        return out.copy_(from_bytes(data, FLOATS[encoding])[start : start + out.numel()])
    codec = codecs.of(encoding)
    block = codec.block
    assert start % block == 0, (start, block)
    scales, rest = _split(data, element_count, codec)
    for first in range(0, out.numel(), RUN):
        part = out[first : first + RUN]
        begin, stop = start + first, start + first + part.numel()
        if codec.bits == BYTE_BITS:
            part.copy_(rest[begin:stop].view(torch.int8))
        else:
            part.copy_(_unpacked(rest[begin // 2 : -(-stop // 2)])[: part.numel()])
        _scale(part, scales[begin // block :], block)
    return out


def _split(
    data: bytearray | memoryview, element_count: int, codec: Codec
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the scales (f32) and of the rest (uint8)."""
    whole = from_bytes(data, torch.uint8)
    scale_bytes = codec.scale_bytes(element_count)
    return whole[:scale_bytes].view(torch.float32), whole[scale_bytes:]


def _quantise(values: torch.Tensor, block: int, levels: int, scales: torch.Tensor) -> torch.Tensor:
    """Linear and symmetric per block: f32 round(values / scale), filled up to whole blocks.

    Fills the first of `scales`; |result| <= levels.
    """
    short = -values.numel() % block
    rows = (pad(values, (0, short)) if short else values).view(-1, block)
    scale = scales[: len(rows)]
    torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_(), out=scale)
    scale.div_(levels).masked_fill_(scale < SCALE_MIN, 0.0)
    inverse = torch.where(scale > 0, 1 / scale, 0.0).unsqueeze(1)
    return (rows * inverse).round_().view(-1)


def _packed(levels: torch.Tensor) -> torch.Tensor:
    """Whole levels f32[2n] -> uint8[n]: the even element in the low half, two's complement."""
    pairs = levels.to(torch.int8).view(torch.int16)  # the odd element is the high byte
    high = (pairs >> 4).bitwise_and_(0xF0)
    return pairs.bitwise_and_(0x0F).bitwise_or_(high)


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """uint8[n] -> int8[2n]; a half-byte's sign is its highest bit."""
    pairs = packed.to(torch.int16)
    pairs.bitwise_or_(pairs << 4).bitwise_and_(0x0F0F)
    return pairs.view(torch.int8).bitwise_xor_(8).sub_(8)


def _scale(values: torch.Tensor, scales: torch.Tensor, block: int) -> None:
    full = values.numel() // block * block
    values[:full].view(-1, block).mul_(scales[: full // block].unsqueeze(1))
    if full < values.numel():
        values[full:].mul_(scales[full // block])
