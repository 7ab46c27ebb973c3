"""Arrays as safetensors bytes and back, without a copy on the way out.

The library's own writer makes a copy of all tensors in memory, or writes the file itself. Here the
parts go to the store, which writes and hashes them as they lie.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import BinaryIO, Final

import numpy as np

from atoll_protos import documents
from atoll_protos.transfer.arrays import BF16, F32, Array, byte_view
from atoll_protos.transfer.frames import Buffer

ITEM_BYTES: Final = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}  # of every type that a learner's tensor may have


NUMPY: Final = {"F32": F32, "BF16": BF16, "F16": np.dtype(np.float16), "U8": np.dtype(np.uint8)}


NAMES: Final = {dtype: name for name, dtype in NUMPY.items()}


HEADER_BYTES_MAX = 100 << 20


ALIGNMENT = 64


class ObjectError(Exception):
    """These bytes are not a safetensors file of this program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a file: where its bytes lie, counted from the file's first byte."""

    dtype: str  # as the format names it
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectHeader:
    """A file's header."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    byte_count: int  # of the whole file


def encode_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the bytes before the tensors', which follow in the mapping's order without gaps."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    stop = 0
    for name, (dtype, shape) in tensors.items():
        start, stop = stop, stop + prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, stop)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def encode_parts(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> list[Buffer]:
    """Return a file's bytes in parts: the header, then views of the memory of arrays [n]."""
    shapes = {name: (NAMES[each.dtype], each.shape) for name, each in arrays.items()}
    return [encode_header(shapes, metadata), *map(byte_view, arrays.values())]


def decode_header(data: Buffer) -> ObjectHeader:
    """Parse the header that a file's first bytes hold; raises ObjectError."""
    view = memoryview(data)
    try:
        (header_bytes,) = struct.unpack_from("<Q", view)
        if header_bytes > HEADER_BYTES_MAX or 8 + header_bytes > len(view):
            raise ObjectError(f"a header of {header_bytes} bytes does not fit")
        header = documents.mapping(bytes(view[8 : 8 + header_bytes]))
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        entries = {name: _entry(fields, 8 + header_bytes) for name, fields in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ObjectError(f"not a safetensors header: {error!r}") from error
    end = max((entry.stop for entry in entries.values()), default=8 + header_bytes)
    return ObjectHeader(entries=entries, metadata=metadata, byte_count=end)


def read_header(file: BinaryIO) -> ObjectHeader:
    """Parse the header of an open file; raises ObjectError."""
    file.seek(0)
    first = file.read(8)
    header_bytes = int.from_bytes(first, "little")
    return decode_header(first + file.read(min(header_bytes, HEADER_BYTES_MAX)))


def decode(data: bytearray) -> tuple[dict[str, Array], Mapping[str, str]]:
    """Return arrays over its memory. Raises ObjectError, and KeyError for an unknown type."""
    contents = decode_header(data)
    if contents.byte_count != len(data):
        raise ObjectError(f"{len(data)} bytes where the header says {contents.byte_count}")
    view = memoryview(data)
    try:
        arrays = {
            name: np.frombuffer(view[each.start : each.stop], NUMPY[each.dtype]).reshape(each.shape)
            for name, each in contents.entries.items()
        }
    except ValueError as error:
        raise ObjectError(f"no array has such a shape: {error}") from error
    return arrays, contents.metadata


def _entry(fields: Mapping[str, object], data_start: int) -> Entry:
    """One tensor's entry, checked. Raises ObjectError, and KeyError for an unknown dtype."""
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not (isinstance(shape, list) and isinstance(offsets, list)):
        raise ObjectError("an entry without shape or offsets")
    if any(type(each) is not int for each in (*shape, *offsets)):
        raise ObjectError("an entry whose shape or offsets are no whole numbers")
    start, stop = offsets
    entry = Entry(
        dtype=str(dtype),
        shape=tuple(shape),
        start=data_start + start,
        stop=data_start + stop,
    )
    if start < 0 or min(entry.shape, default=0) < 0:
        raise ObjectError(f"an entry at {start} with shape {entry.shape}")
    if stop - start != prod(entry.shape) * ITEM_BYTES[entry.dtype]:
        raise ObjectError(f"{stop - start} bytes for {dtype} {shape}")
    return entry
