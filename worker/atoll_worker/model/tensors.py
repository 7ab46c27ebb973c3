"""Torch's types by their names, and tensors over bytes without a copy; no arithmetic."""

import ctypes
from collections.abc import Mapping
from typing import Final

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import Form, Packed

FLOATS: Final[Mapping[pb.Encoding, torch.dtype]] = {
    pb.F32: torch.float32,
    pb.BF16: torch.bfloat16,
}
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

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
}  # as files in this format name them; a shard knows their sizes (storage/objects)


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
