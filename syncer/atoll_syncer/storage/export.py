"""The finished model in Hugging Face layout, assembled from every shard's slices (rule 27).

    shard n:    its final bases --> parts/<run>-shard-<n>.safetensors, with its sha256
    registrar:  all parts --> model-<i>-of-<n>.safetensors ... --> model.safetensors.index.json

Each step may be repeated after a crash and then writes the same files. The index comes last, so
a reader that finds it finds the whole model. Parts are removed after that.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

from atoll_protos.layout import Layout, TensorSpec
from atoll_protos.tensors import DTYPES, byte_view
from atoll_syncer.storage.files import READ_BYTES, WholeFile, remove_leftovers, verify, whole_file
from atoll_syncer.storage.objects import encode_header, encode_parts, read_header
from atoll_syncer.storage.store import storage_errors

PARTS = "parts"
INDEX = "model.safetensors.index.json"
FILE_BYTES_MAX = 5_000_000_000  # the usual limit of a file on the Hub


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One shard's final slices: a file, relative to the export's folder, and its sha256."""

    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Elements [start, stop) of a tensor lie in `part` from byte `offset` on."""

    start: int
    stop: int
    part: int  # shard
    offset: int
    dtype: torch.dtype


def write_part(folder: Path, run: str, shard: int, bases: Mapping[int, torch.Tensor]) -> Part:
    """Write one shard's final bases, by fragment; the same call writes the same file again.

    Raises StoreFull and StoreUnavailable; try again.
    """
    tensors = {_slice_name(fragment): base for fragment, base in sorted(bases.items())}
    name = f"{PARTS}/{run}-shard-{shard:03d}.safetensors"
    with whole_file(folder / name) as file:
        for part in encode_parts(tensors, {"run": run, "shard": str(shard)}):
            file.write(part)
    return Part(file=name, digest=file.digest)


def assemble(
    folder: Path,
    run: str,
    layout: Layout,
    parts: Sequence[Part],
    *,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Path:
    """Write the model's files and their index from the parts of all shards, in shard order.

    Streams one tensor after the other, so memory stays at READ_BYTES. Each file gets its name
    when it is whole. A call after the index is there changes nothing, and a call after a crash
    starts from the beginning. Returns the path of the index.
    Raises StoreFull and StoreUnavailable (try again) and StoreCorrupt (a part was changed).
    """
    index = folder / INDEX
    before = _read_index(index)
    if before.get("metadata", {}).get("run") != run:
        for part in parts:
            verify(folder / part.file, part.digest)
        with ExitStack() as stack, storage_errors(folder):
            files = [stack.enter_context((folder / part.file).open("rb")) for part in parts]
            weight_map = _write_model(folder, layout, files, file_bytes_max)
        _write_index(index, run, layout, weight_map)
        stale = set(before.get("weight_map", {}).values()) - set(weight_map.values())
        _remove(folder, {name for name in stale if Path(name).name == name})
    _remove(folder, {part.file for part in parts})
    for written in (folder, folder / PARTS):
        remove_leftovers(written)
    with suppress(OSError):  # a user's file is in it, or it is gone already
        (folder / PARTS).rmdir()
    return index


class Export:
    """The export of one shard's process: both steps with their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Raises StoreUnavailable where the folder cannot be written, long before it is needed."""
        with storage_errors(self.folder):
            nearest = next(each for each in (self.folder, *self.folder.parents) if each.exists())
            if not nearest.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def write_part(self, run: str, shard: int, bases: Mapping[int, torch.Tensor]) -> Part:
        """See `write_part`."""
        return write_part(self.folder, run, shard, bases)

    def assemble(self, run: str, layout: Layout, parts: Sequence[Part]) -> None:
        """See `assemble`."""
        assemble(self.folder, run, layout, parts)


def _remove(folder: Path, names: set[str]) -> None:
    """Remove files by their names in the folder; a file that is gone is no error."""
    for name in names:
        with storage_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


def _write_model(
    folder: Path, layout: Layout, parts: Sequence[BinaryIO], file_bytes_max: int
) -> dict[str, str]:
    """Write all files of the model; returns the file of each tensor."""
    extents = _extents(layout, parts)
    plan = _plan(layout.tensors, file_bytes_max)
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(plan, start=1):
        name = f"model-{number:05d}-of-{len(plan):05d}.safetensors"
        with whole_file(folder / name) as file:
            file.write(_header([layout.tensors[i] for i in tensors]))
            for i in tensors:
                _copy_tensor(DTYPES[layout.tensors[i].dtype], extents[i], parts, file)
        weight_map |= {layout.tensors[i].name: name for i in tensors}
    return weight_map


def _write_index(index: Path, run: str, layout: Layout, weight_map: Mapping[str, str]) -> None:
    """Write which file holds which tensor; `run` says whose model the folder holds."""
    total = sum(_byte_count(tensor) for tensor in layout.tensors)
    content = {"metadata": {"total_size": total, "run": run}, "weight_map": dict(weight_map)}
    with whole_file(index) as file:
        file.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")


def _read_index(index: Path) -> dict[str, Any]:
    """The index that is there already, if it is one."""
    if not index.exists():
        return {}
    with storage_errors(index):
        data = index.read_bytes()
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _slice_name(fragment: int) -> str:
    return f"slice-{fragment:05d}"


def _byte_count(tensor: TensorSpec) -> int:
    return prod(tensor.shape) * DTYPES[tensor.dtype].itemsize


def _plan(tensors: Sequence[TensorSpec], file_bytes_max: int) -> list[list[int]]:
    """Tensors by file, in the model's order; a tensor above the limit gets a file of its own."""
    plan: list[list[int]] = [[]]
    room = file_bytes_max
    for i, tensor in enumerate(tensors):
        if plan[-1] and _byte_count(tensor) > room:
            plan.append([])
            room = file_bytes_max
        plan[-1].append(i)
        room -= _byte_count(tensor)
    return plan


def _header(tensors: Sequence[TensorSpec]) -> bytes:
    """The header of one file of the model, as the transformers library expects it."""
    shapes = {tensor.name: (DTYPES[tensor.dtype], tuple(tensor.shape)) for tensor in tensors}
    return encode_header(shapes, {"format": "pt"})


def _extents(layout: Layout, parts: Sequence[BinaryIO]) -> dict[int, list[Extent]]:
    """Where the elements of each tensor lie, in order; every element lies somewhere once."""
    headers = [read_header(part) for part in parts]
    extents: dict[int, list[Extent]] = {i: [] for i in range(len(layout.tensors))}
    for owned in layout.slices:
        entry = headers[owned.shard].entries[_slice_name(owned.fragment)]
        offset = entry.start
        for piece in owned.pieces:
            extents[piece.tensor].append(
                Extent(
                    start=piece.start,
                    stop=piece.stop,
                    part=owned.shard,
                    offset=offset,
                    dtype=entry.dtype,
                )
            )
            offset += (piece.stop - piece.start) * entry.dtype.itemsize
        assert offset == entry.stop, (owned.shard, owned.fragment)
    for i, tensor in enumerate(layout.tensors):
        extents[i].sort(key=lambda extent: extent.start)
        stops = [0, *(extent.stop for extent in extents[i])]
        assert [extent.start for extent in extents[i]] == stops[:-1], tensor.name
        assert stops[-1] == prod(tensor.shape), tensor.name
    return extents


def _copy_tensor(
    dtype: torch.dtype, extents: Sequence[Extent], parts: Sequence[BinaryIO], out: WholeFile
) -> None:
    """Append one tensor in the model's dtype, read from the parts in pieces of READ_BYTES."""
    for extent in extents:
        stop = extent.offset + (extent.stop - extent.start) * extent.dtype.itemsize
        parts[extent.part].seek(extent.offset)
        for start in range(extent.offset, stop, READ_BYTES):
            data = bytearray(parts[extent.part].read(min(READ_BYTES, stop - start)))
            values = torch.frombuffer(data, dtype=extent.dtype).to(dtype)
            out.write(byte_view(values))
