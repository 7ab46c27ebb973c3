"""The one place where tensors become bytes and bytes become tensors: codecs of the wire."""

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Final

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.run import Wire

INT8_BLOCK: Final = 256
INT4_BLOCK: Final = 64
BLOCKS_AT_ONCE: Final = 1024

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def base_dtype(wire_down: Wire) -> torch.dtype:
    """Of a base as both sides hold it: f32 on an f32 wire, else bf16 (PROTOCOL.md, rule 17)."""
    return torch.float32 if wire_down is Wire.F32 else torch.bfloat16


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
    return torch.frombuffer(data, dtype=dtype)


def digest(tensor: torch.Tensor) -> str:
    """sha256 of a tensor's bytes, hexadecimal: the digest of a version's base."""
    return hashlib.sha256(byte_view(tensor)).hexdigest()


def encoded_size(element_count: int, encoding: pb.Encoding) -> int:
    """Bytes that so many values take; raises ValueError for an unknown encoding."""
    match encoding:
        case pb.F32:
            return 4 * element_count
        case pb.BF16:
            return 2 * element_count
        case pb.INT8:
            return 4 * -(-element_count // INT8_BLOCK) + element_count
        case pb.INT4:
            return 4 * -(-element_count // INT4_BLOCK) + -(-element_count // 2)
    raise ValueError(f"encoding {encoding} is unknown")


def encode(values: torch.Tensor, encoding: pb.Encoding) -> bytearray:
    """f32[n] as bytes. Integer encodings: f32 scales of all blocks, then the values.

    int8 has blocks of 256 and levels -127..127; int4 blocks of 64, levels -7..7, two in a byte
    (the even element in the low half). Values must be finite.
    """
    data = bytearray(encoded_size(values.numel(), encoding))
    if not data:
        return data
    match encoding:
        case pb.F32:
            from_bytes(data, torch.float32).copy_(values)
        case pb.BF16:
            from_bytes(data, torch.bfloat16).copy_(values)
        case pb.INT8:
            scales, levels = _split(data, values.numel(), INT8_BLOCK)
            _quantise(values, INT8_BLOCK, 127, scales, levels.view(torch.int8))
        case _:
            scales, packed = _split(data, values.numel(), INT4_BLOCK)
            wide = torch.empty(2 * packed.numel(), dtype=torch.int8)
            wide[-1] = 0
            _quantise(values, INT4_BLOCK, 7, scales, wide[: values.numel()])
            nibbles = wide.bitwise_and_(15).view(torch.uint8).view(-1, 2)
            torch.bitwise_or(nibbles[:, 0], nibbles[:, 1] << 4, out=packed)
    return data


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

    In an integer encoding `start` must be a multiple of the block (256 or 64).
    """
    stop = start + out.numel()
    match encoding:
        case pb.F32:
            return out.copy_(from_bytes(data, torch.float32)[start:stop])
        case pb.BF16:
            return out.copy_(from_bytes(data, torch.bfloat16)[start:stop])
        case pb.INT8:
            scales, levels = _split(data, element_count, INT8_BLOCK)
            out.copy_(levels.view(torch.int8)[start:stop])
            return _scale(out, scales[start // INT8_BLOCK :], INT8_BLOCK)
    scales, packed = _split(data, element_count, INT4_BLOCK)
    nibbles = packed[start // 2 : -(-stop // 2)]
    wide = torch.stack((nibbles & 15, nibbles >> 4), dim=1).view(-1)[: out.numel()]
    out.copy_((wide ^ 8).view(torch.int8) - 8)
    return _scale(out, scales[start // INT4_BLOCK :], INT4_BLOCK)


def is_finite(values: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    return bool(torch.isfinite(values).all())


def encoded_is_finite(data: bytearray, encoding: pb.Encoding, element_count: int) -> bool:
    """Whether encoded values are all finite: in integer encodings only scales can be otherwise."""
    match encoding:
        case pb.F32:
            return is_finite(from_bytes(data, torch.float32))
        case pb.BF16:
            return is_finite(from_bytes(data, torch.bfloat16))
    block = INT8_BLOCK if encoding == pb.INT8 else INT4_BLOCK
    return is_finite(_split(data, element_count, block)[0])


def _split(
    data: bytearray | memoryview, element_count: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the scales (f32) and of the rest (uint8)."""
    whole = from_bytes(data, torch.uint8)
    scale_bytes = 4 * -(-element_count // block)
    return whole[:scale_bytes].view(torch.float32), whole[scale_bytes:]


def _quantise(
    values: torch.Tensor, block: int, levels: int, scales: torch.Tensor, out: torch.Tensor
) -> None:
    """Linear and symmetric per block: out = round(values / scale), |out| <= levels."""
    run = block * BLOCKS_AT_ONCE
    for start in range(0, values.numel(), run):
        part = values[start : start + run]
        full = part.numel() // block * block
        first = start // block
        for offset, rows in ((0, part[:full].view(-1, block)), (full, part[full:].view(1, -1))):
            if not rows.numel():
                continue
            number = first + offset // block
            scale = scales[number : number + rows.shape[0]]
            torch.amax(rows.abs(), dim=1, out=scale)
            scale.div_(levels)
            inverse = torch.where(scale > 0, 1 / scale, 0.0).unsqueeze(1)
            target = out[start + offset : start + offset + rows.numel()].view(rows.shape)
            target.copy_((rows * inverse).round_().clamp_(-levels, levels))


def _scale(values: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    full = values.numel() // block * block
    values[:full].view(-1, block).mul_(scales[: full // block].unsqueeze(1))
    if full < values.numel():
        values[full:].mul_(scales[full // block])
    return values
