"""The finished model in Hugging Face layout, assembled from every shard's slices (rule 27).

    shard n:    its final bases --> parts/<run>-shard-<n>.safetensors, with its sha256
    registrar:  all parts and the companion --> config.json and other files of the model,
                model.safetensors (or model-<i>-of-<n>.safetensors ...)
                --> model.safetensors.index.json

The values come from the shards. The companion (rule 36, storage/companions) says under which keys
they stand, and has the tensors that do not travel: so the files load into the learner's own model,
strictly. Keys of tied tensors each have the values. Of an adapter for PEFT the files are called
adapter_model. Without a companion the keys are the names of the tensors that travel.

Each step may be repeated after a crash and then writes the same files. The index comes last, so
a reader that finds it finds the whole model. Parts are removed after that.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.companion import ADAPTER, MODEL, PARTS, STEMS
from atoll_protos.layout import Layout
from atoll_protos.tensors import DTYPES, FLOATS, byte_view
from atoll_syncer.storage import companions
from atoll_syncer.storage.companions import Contents, Place
from atoll_syncer.storage.files import READ_BYTES, WholeFile, remove_leftovers, verify, whole_file
from atoll_syncer.storage.objects import ObjectError, encode_header, encode_parts, read_header
from atoll_syncer.storage.store import StoreCorrupt, StoreMissing, StoreUnavailable, storage_errors

INDEX = f"{MODEL}.safetensors.index.json"
IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG}
FILE_BYTES_MAX = 5_000_000_000  # the usual limit of a file on the Hub


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One shard's final slices: a file, relative to the export's folder, and its sha256."""

    file: str
    digest: str


class PartFile:
    """A part that is written slice by slice, in any order: what `write_part` writes at once.

    Raises StoreFull and StoreUnavailable, everywhere.
    """

    def __init__(
        self, folder: Path, run: str, shard: int, layout: Layout, encoding: pb.Encoding
    ) -> None:
        self.name = f"{PARTS}/{run}-shard-{shard:03d}.safetensors"
        self.path = folder / self.name
        self._dtypes = {  # in which every version fits, the last one too
            owned.fragment: torch.float32
            if owned.form.exact
            else FLOATS[layout.final_encoding(owned, encoding)]
            for owned in layout.shard_slices(shard)
        }
        shapes = {
            _slice_name(owned.fragment): (self._dtypes[owned.fragment], (owned.element_count,))
            for owned in layout.shard_slices(shard)
        }
        header = encode_header(shapes, {"run": run, "shard": str(shard)})
        self._offsets: dict[str, int] = {}
        offset = len(header)
        for name, (each, (count,)) in shapes.items():
            self._offsets[name] = offset
            offset += count * each.itemsize
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(header)
            os.truncate(self.path, offset)

    def write(self, fragment: int, values: torch.Tensor) -> None:
        """The values of one slice, [n] in f32 or bf16."""
        values = values.to(self._dtypes[fragment]).contiguous()
        with storage_errors(self.path), self.path.open("r+b") as file:
            file.seek(self._offsets[_slice_name(fragment)])
            file.write(byte_view(values))

    def done(self) -> Part:
        """All slices are written."""
        digest = hashlib.sha256()
        with storage_errors(self.path), self.path.open("rb") as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
        return Part(file=self.name, digest=digest.hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Elements [start, stop) of a tensor lie in `part` from byte `offset` on."""

    start: int
    stop: int
    part: int  # shard
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One tensor of the export: the values of one that travels, or the bytes of a companion's."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: Sequence[Extent] | Place

    @property
    def byte_count(self) -> int:
        """In the export."""
        return prod(self.shape) * self.dtype.itemsize


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
    companion: Sequence[Iterable[bytes]] = (),
    *,
    file_bytes_max: int = FILE_BYTES_MAX,
    tick: int | None = None,
) -> Path:
    """Write the model's files and their index from the parts of all shards, in shard order.

    `companion` are the run's companions, each by its parts; a later one's tensors replace an
    earlier one's. `tick` is named in the index, where the values are not the final ones.

    Streams one tensor after the other, so memory stays at READ_BYTES. Each file gets its name
    when it is whole. A call after the index is there changes nothing, and a call after a crash
    starts from the beginning. Returns the path of the index.
    Raises StoreFull and StoreUnavailable (try again) and StoreCorrupt (a part was changed).
    """
    known = {stem: _read_index(_index(folder, stem)) for stem in STEMS}
    done = [stem for stem in STEMS if known[stem].get("metadata", {}).get("run") == run]
    if done:
        index, used = _index(folder, done[0]), set[str]()
    else:
        for part in parts:
            verify(folder / part.file, part.digest)
        used, contents, trouble = _read_companion(folder, run, companion)
        with ExitStack() as stack, storage_errors(folder):
            files = [stack.enter_context((folder / part.file).open("rb")) for part in parts]
            items = _items(layout, contents, files)
            trouble |= _write_files(folder, contents)
            weight_map = _write_model(folder, contents.table.stem, items, files, file_bytes_max)
        about: dict[str, Any] = {"run": run, "absent": {**contents.table.absent, **trouble}}
        there = sorted(contents.files.keys() - trouble.keys())
        about |= {"files": there, **({} if tick is None else {"tick": tick})}
        index = _index(folder, contents.table.stem)
        _write_index(index, items, weight_map, about)
        _remove_stale(folder, known, index, {*weight_map.values(), *contents.files})
    _remove(folder, {part.file for part in parts} | used)
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

    def assemble(
        self, run: str, layout: Layout, parts: Sequence[Part], companion: Sequence[Iterable[bytes]]
    ) -> None:
        """See `assemble`."""
        assemble(self.folder, run, layout, parts, companion)


def _remove(folder: Path, names: set[str]) -> None:
    """Remove files by their names in the folder; a file that is gone is no error."""
    for name in names:
        with storage_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


def _remove_stale(
    folder: Path, known: Mapping[str, Mapping[str, Any]], index: Path, written: set[str]
) -> None:
    """Remove what the index of an earlier run names, and that index where it has another name."""
    for stem, before in known.items():
        old = set(before.get("weight_map", {}).values())
        stale = {name for name in old - written if Path(name).name == name}
        if before and _index(folder, stem) != index:
            stale.add(_index(folder, stem).name)
        _remove(folder, stale)


def _read_companion(
    folder: Path, run: str, companion: Sequence[Iterable[bytes]]
) -> tuple[set[str], Contents, dict[str, str]]:
    """The names of the files that it takes meanwhile, what they hold, and why nothing, if so."""
    names, trouble = [], dict[str, str]()
    try:
        for number, each in enumerate(companion):
            name = f"{PARTS}/{run}-companion-{number}.safetensors"
            if companions.join(folder / name, each):
                names.append(name)
        contents = companions.read([folder / name for name in names])
    except (ObjectError, StoreCorrupt, StoreMissing) as error:
        contents, trouble = Contents(), {"what does not travel": str(error)}
    return set(names), contents, trouble


def _items(layout: Layout, contents: Contents, parts: Sequence[BinaryIO]) -> list[Item]:
    """All tensors of the export, by key: what the companion names, and what it leaves out."""
    extents = _extents(layout, parts)
    numbers = {tensor.name: i for i, tensor in enumerate(layout.tensors)}
    keys = {key: name for key, name in contents.table.keys.items() if name in numbers}
    keys |= {name: name for name in numbers.keys() - set(keys.values())}
    items = [
        Item(key=key, dtype=each.entry.dtype, shape=each.entry.shape, source=each)
        for key, each in contents.tensors.items()
        if key not in keys
    ]
    for key, name in keys.items():
        tensor = layout.tensors[numbers[name]]
        dtype, shape = DTYPES[tensor.dtype], tuple(tensor.shape)
        items.append(Item(key=key, dtype=dtype, shape=shape, source=extents[numbers[name]]))
    return sorted(items, key=lambda item: item.key)


def _write_files(folder: Path, contents: Contents) -> dict[str, str]:
    """config.json, a tokenizer: small files, as the learner gave them; returns why one is not.

    What stands in the way of one, as a folder of its name, is no reason to wait.
    Raises StoreFull and StoreUnavailable.
    """
    trouble: dict[str, str] = {}
    for name, place in contents.files.items():
        try:
            with whole_file(folder / name) as file:
                _copy_bytes(place, file)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in IN_THE_WAY:
                raise
            trouble[name] = str(error)
    return trouble


def _write_model(
    folder: Path,
    stem: str,
    items: Sequence[Item],
    parts: Sequence[BinaryIO],
    file_bytes_max: int,
) -> dict[str, str]:
    """Write all files of the model; returns the file of each tensor."""
    plan = [list(items)] if stem == ADAPTER else _plan(items, file_bytes_max)
    weight_map: dict[str, str] = {}
    for number, planned in enumerate(plan, start=1):
        which = f"-{number:05d}-of-{len(plan):05d}" if len(plan) > 1 else ""
        name = f"{stem}{which}.safetensors"
        with whole_file(folder / name) as file:
            file.write(_header(planned))
            for item in planned:
                if isinstance(item.source, Place):
                    _copy_bytes(item.source, file)
                else:
                    _copy_values(item.dtype, item.source, parts, file)
        weight_map |= {item.key: name for item in planned}
    return weight_map


def _write_index(
    index: Path, items: Sequence[Item], weight_map: Mapping[str, str], about: Mapping[str, Any]
) -> None:
    """Write which file holds which tensor; `run` says whose model the folder holds."""
    metadata = {"total_size": sum(item.byte_count for item in items), **about}
    content = {"metadata": metadata, "weight_map": dict(weight_map)}
    with whole_file(index) as file:
        file.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")


def _index(folder: Path, stem: str) -> Path:
    return folder / f"{stem}.safetensors.index.json"


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


def _plan(items: Sequence[Item], file_bytes_max: int) -> list[list[Item]]:
    """Tensors by file, in their order; a tensor above the limit gets a file of its own."""
    plan: list[list[Item]] = [[]]
    room = file_bytes_max
    for item in items:
        if plan[-1] and item.byte_count > room:
            plan.append([])
            room = file_bytes_max
        plan[-1].append(item)
        room -= item.byte_count
    return plan


def _header(items: Sequence[Item]) -> bytes:
    """The header of one file of the model, as the transformers library expects it."""
    return encode_header({item.key: (item.dtype, item.shape) for item in items}, {"format": "pt"})


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


def _copy_values(
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


def _copy_bytes(place: Place, out: WholeFile) -> None:
    """Append one entry of a companion, in pieces of READ_BYTES."""
    with place.path.open("rb") as file:
        file.seek(place.entry.start)
        for start in range(place.entry.start, place.entry.stop, READ_BYTES):
            out.write(file.read(min(READ_BYTES, place.entry.stop - start)))
