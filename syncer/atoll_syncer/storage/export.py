"""The values of all shards as safetensors, under the names of the layout (rule 27).

    shard n:    its final bases --> parts/<run>-shard-<n>.safetensors, with its sha256
    registrar:  all parts --> model.safetensors (or model-<i>-of-<n>.safetensors ...)
                          --> model.safetensors.index.json

Each step may be repeated after a crash and then writes the same files. The index comes last, so a
reader that finds it finds the whole model. Parts are removed after that.

For a bucket the registrar makes the model in a folder of this machine, SCRATCH/final-<run>. A file
that was sent leaves it, so after a crash or trouble the next call continues. What is read or sent
is never in memory as a whole.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from atoll_protos import documents
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.arrays import DTYPES, F32, Array, Base, byte_view
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.files import (
    INDEX_SUFFIX,
    READ_BYTES,
    StoreCorrupt,
    StoreMissing,
    StoreUnavailable,
    WholeFile,
    files_in_order,
    remove_leftovers,
    storage_errors,
    verify,
    whole_file,
)
from atoll_syncer.storage.object_store import (
    AWAY,
    PARTS_AT_ONCE,
    PIECE_BYTES,
    ObjectStore,
    pieces,
)
from atoll_syncer.storage.objects import (
    ITEM_BYTES,
    NAMES,
    NUMPY,
    Entry,
    encode_header,
    encode_parts,
    read_header,
)

FILE_BYTES_MAX: Final = 5_000_000_000  # the usual limit of a file on the Hub
STEM: Final = "model"  # of the files' names
INDEX: Final = f"{STEM}{INDEX_SUFFIX}"
PARTS: Final = "parts"  # the folder of what shards write, until the export is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPlace:
    """Where the bytes of one entry of a part lie."""

    path: Path
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart:
    """Slices of one shard: a file, relative to the export's folder, and its sha256."""

    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One tensor of the export: where its values lie, in order, in types that may be others."""

    key: str
    dtype: str  # as the format names it
    shape: tuple[int, ...]
    places: Sequence[EntryPlace]

    @property
    def byte_count(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class Export:
    """The export in one folder. Its methods raise StoreFull and StoreUnavailable: try again."""

    def __init__(self, folder: Path, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self.folder, self.file_bytes_max = folder, file_bytes_max

    def check(self) -> None:
        """Raise StoreUnavailable where the folder cannot be written, long before it is needed."""
        with storage_errors(self.folder):
            nearest = next(each for each in (self.folder, *self.folder.parents) if each.exists())
            if not nearest.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def write_part(self, run: str, shard: int, bases: Mapping[int, Array]) -> ExportPart:
        """Write bases of a shard, by fragment; the same call writes the same file again."""
        name = part_name(run, shard)
        with whole_file(self.folder / name) as file:
            for part in encode_part(run, shard, bases):
                file.write(part)
        return ExportPart(file=name, digest=file.digest)

    def assemble(
        self,
        run: str,
        layout: Layout,
        parts: Sequence[ExportPart],
        *,
        tick: int | None = None,
    ) -> Path:
        """Write the model's files and their index from the parts of all shards; returns its path.

        `tick` is named where the values are not the final ones. Memory stays at READ_BYTES. A call
        after the index is there changes nothing. Raises StoreCorrupt (a part was changed).
        """
        folder = self.folder
        known = read_index(folder)
        if run_of(known) != run:
            for part in parts:
                verify(folder / part.file, part.digest)
            with storage_errors(folder):
                items = _items(layout, [folder / part.file for part in parts])
                weight_map = _write_model(folder, items, self.file_bytes_max)
            about: dict[str, Any] = {"run": run} if tick is None else {"run": run, "tick": tick}
            _write_index(folder / INDEX, items, weight_map, about)
            _remove(folder, stale_names(known, {INDEX, *weight_map.values()}))
        _remove(folder, {part.file for part in parts})
        for each in (folder, folder / PARTS):
            remove_leftovers(each)
        with suppress(OSError):  # a user's file is in it, or it is gone already
            (folder / PARTS).rmdir()
        return folder / INDEX


def part_name(run: str, shard: int) -> str:
    return f"{PARTS}/{run}-shard-{shard:03d}.safetensors"


def parse_index(data: bytes) -> dict[str, Any]:
    """Return what an index says; nothing, if it is none."""
    try:
        return documents.mapping(data)
    except ValueError:
        return {}


def read_index(folder: Path) -> dict[str, Any]:
    """Return what the index of a folder says; nothing, if there is none."""
    with storage_errors(folder / INDEX), suppress(FileNotFoundError):
        return parse_index((folder / INDEX).read_bytes())
    return {}


def run_of(index: Mapping[str, Any]) -> str:
    """Return the run whose model an index names; empty: none."""
    return str(index.get("metadata", {}).get("run", ""))


def stale_names(known: Mapping[str, Any], written: set[str]) -> set[str]:
    """Return what the index of an earlier run names, as far as it was not written again."""
    named = set(known.get("weight_map", {}).values())
    return {name for name in named - written if Path(name).name == name}


def encode_part(run: str, shard: int, bases: Mapping[int, Array]) -> list[Buffer]:
    """Return a shard's part of an export, as a file has it, from its bases by fragment."""
    tensors = {_slice_name(fragment): base for fragment, base in sorted(bases.items())}
    return encode_parts(tensors, {"run": run, "shard": str(shard)})


def as_learners_hold(base: Base) -> Array:
    """Return a base [n] in its own type; a slice with averaged buffers comes in f32."""
    return np.concatenate((base.exact, base.coded.astype(F32))) if base.form.exact else base.coded


def _remove(folder: Path, names: set[str]) -> None:
    for name in names:
        with storage_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


def _items(layout: Layout, parts: Sequence[Path]) -> list[Item]:
    """All tensors of the export, in the order of their names."""
    items = [
        Item(
            key=tensor.name,
            dtype=NAMES[DTYPES[tensor.dtype]],
            shape=tuple(tensor.shape),
            places=places,
        )
        for tensor, places in zip(layout.tensors, _places(layout, parts), strict=True)
    ]
    return sorted(items, key=lambda item: item.key)


def _write_model(folder: Path, items: Sequence[Item], file_bytes_max: int) -> dict[str, str]:
    """Write all files of the model; returns the file of each tensor."""
    plan = _plan(items, file_bytes_max)
    weight_map: dict[str, str] = {}
    for number, planned in enumerate(plan, start=1):
        which = f"-{number:05d}-of-{len(plan):05d}" if len(plan) > 1 else ""
        name = f"{STEM}{which}.safetensors"
        shapes = {item.key: (item.dtype, item.shape) for item in planned}
        with whole_file(folder / name) as file:
            file.write(encode_header(shapes, {"format": "pt"}))
            for item in planned:
                for place in item.places:
                    _copy(place, item.dtype, file)
        weight_map |= dict.fromkeys(shapes, name)
    return weight_map


def _write_index(
    index: Path, items: Sequence[Item], weight_map: Mapping[str, str], about: Mapping[str, Any]
) -> None:
    metadata = {"total_size": sum(item.byte_count for item in items), **about}
    content = {"metadata": metadata, "weight_map": weight_map}
    with whole_file(index) as file:
        file.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")


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


def _places(layout: Layout, parts: Sequence[Path]) -> list[list[EntryPlace]]:
    """By tensor, where its elements lie, in order; every element lies somewhere once."""
    slices: dict[tuple[int, str], EntryPlace] = {}
    for path in parts:
        with path.open("rb") as file:
            header = read_header(file)
        for name, entry in header.entries.items():
            slices[int(header.metadata["shard"]), name] = EntryPlace(path=path, entry=entry)
    found: list[dict[int, EntryPlace]] = [{} for _ in layout.tensors]  # by first element
    for owned in layout.slices:
        place = slices[owned.shard, _slice_name(owned.fragment)]
        dtype, offset = place.entry.dtype, place.entry.start
        for piece in owned.pieces:
            start, offset = offset, offset + piece.element_count * ITEM_BYTES[dtype]
            shape = (piece.element_count,)
            entry = Entry(dtype=dtype, shape=shape, start=start, stop=offset)
            found[piece.tensor][piece.start] = EntryPlace(path=place.path, entry=entry)
        assert offset == place.entry.stop, (owned.shard, owned.fragment)
    for tensor, runs in zip(layout.tensors, found, strict=True):
        stop = 0
        for start, place in sorted(runs.items()):
            assert start == stop, tensor.name
            stop += place.entry.shape[0]
        assert stop == tensor.element_count, tensor.name
    return [[place for _, place in sorted(runs.items())] for runs in found]


def _copy(place: EntryPlace, dtype: str, out: WholeFile) -> None:
    """Copy the values of an entry, as `dtype`."""
    entry = place.entry
    with place.path.open("rb") as file:
        file.seek(entry.start)
        for start in range(entry.start, entry.stop, READ_BYTES):
            data = file.read(min(READ_BYTES, entry.stop - start))
            if dtype == entry.dtype:
                out.write(data)
            else:
                with np.errstate(all="ignore"):
                    values = np.frombuffer(data, NUMPY[entry.dtype]).astype(NUMPY[dtype])
                out.write(byte_view(values))


class BucketExport:
    """See the module. The methods are those of Export, and raise what they raise."""

    def __init__(self, store: ObjectStore, scratch: Path) -> None:
        self._store, self.folder = store, scratch

    def check(self) -> None:
        """Raise StoreUnavailable where it cannot be made or sent, long before it is needed."""
        Export(self.folder).check()
        name = f"atoll-{secrets.token_hex(8)}.tmp"
        self._store.write(name, b"a probe")
        self._store.read(name)
        self._store.delete(name)

    def write_part(self, run: str, shard: int, bases: Mapping[int, Array]) -> ExportPart:
        """Send bases of a shard, by fragment; the same call sends the same object again."""
        parts, digest = encode_part(run, shard, bases), hashlib.sha256()
        for part in parts:
            digest.update(part)
        sent = ExportPart(file=part_name(run, shard), digest=digest.hexdigest())
        self._store.send(pieces(parts, PIECE_BYTES), sent.file)
        return sent

    def assemble(
        self,
        run: str,
        layout: Layout,
        parts: Sequence[ExportPart],
        *,
        tick: int | None = None,
    ) -> str:
        """As Export does it, below the URL; returns the URL of the index."""
        known = self._read_index()
        made = Export(self.folder / f"final-{run}")
        if run_of(known) != run:
            if run_of(read_index(made.folder)) != run:
                self._fetch(made.folder, [part.file for part in parts])
                try:
                    made.assemble(run, layout, parts, tick=tick)
                except StoreCorrupt:  # a part that is sent again is read again
                    shutil.rmtree(made.folder, ignore_errors=True)
                    raise
            self._delete(sorted(stale_names(known, self._send(made.folder))))
        self._delete([part.file for part in parts])
        shutil.rmtree(made.folder, ignore_errors=True)
        return f"{self._store.url}/{INDEX}"

    def _fetch(self, folder: Path, names: Sequence[str]) -> None:
        """Read objects into files of their names. A file that is there is whole."""
        missing = [name for name in names if not (folder / name).exists()]
        with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
            list(threads.map(partial(self._fetch_one, folder), missing))

    def _fetch_one(self, folder: Path, name: str) -> None:
        """Fetch one; what should be there and is not is tried again."""
        try:
            with whole_file(folder / name) as file:
                for piece in self._store.pieces(name):
                    file.write(piece)
        except StoreMissing as missing:
            raise StoreUnavailable(missing.path, missing.reason, AWAY) from missing

    def _send(self, folder: Path) -> set[str]:
        """Send the files of a folder, which leave it, the index last; returns what it names."""
        index = read_index(folder)
        for path in files_in_order(folder):
            self._store.send(path, path.relative_to(folder).as_posix())
            path.unlink()
        return {INDEX, *index["weight_map"].values()}

    def _read_index(self) -> dict[str, Any]:
        with suppress(StoreMissing):
            return parse_index(bytes(self._store.read(INDEX)))
        return {}

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._store.delete(name)
