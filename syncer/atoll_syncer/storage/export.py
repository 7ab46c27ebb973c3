"""The finished model in Hugging Face layout, assembled from every shard's slices (rule 27).

    shard n:    its final bases --> parts/<run>-shard-<n>.safetensors, with its sha256
    registrar:  all parts and the companion --> config.json and other files of the model,
                model.safetensors (or model-<i>-of-<n>.safetensors ...)
                --> model.safetensors.index.json

The companion (rule 36, storage/companions) says under which keys the values stand. Of an adapter
for PEFT the files are called adapter_model. Each step may be repeated after a crash and then writes
the same files. The index comes last, so a reader that finds it finds the whole model. Parts are
removed after that.
"""

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from atoll_protos import json_text
from atoll_protos.job.companion import ADAPTER, PARTS, STEMS
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.arrays import DTYPES, F32, Array, Base, byte_view
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage import companions
from atoll_syncer.storage.companions import CompanionContents, EntryPlace
from atoll_syncer.storage.files import (
    INDEX,
    READ_BYTES,
    WholeFile,
    remove_leftovers,
    verify,
    whole_file,
)
from atoll_syncer.storage.objects import (
    ITEM_BYTES,
    NAMES,
    NUMPY,
    Entry,
    ObjectError,
    encode_header,
    encode_parts,
    read_header,
)
from atoll_syncer.storage.store import StoreCorrupt, StoreMissing, StoreUnavailable, storage_errors

IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG}
FILE_BYTES_MAX = 5_000_000_000  # the usual limit of a file on the Hub


def index_name(stem: str) -> str:
    return f"{stem}{INDEX}"


INDEXES = tuple(map(index_name, STEMS))  # of a folder, one of them
Indexes = Mapping[str, dict[str, Any]]  # by the index's file, what it says


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
        """Raises StoreUnavailable where the folder cannot be written, long before it is needed."""
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
        companion: Sequence[Iterable[bytes]] = (),
        *,
        tick: int | None = None,
    ) -> Path:
        """Write the model's files and their index from the parts of all shards; returns its path.

        Of `companion`, each by its parts, a later one's tensors replace an earlier one's. `tick` is
        named where the values are not the final ones. Memory stays at READ_BYTES. A call after the
        index is there changes nothing. Raises StoreCorrupt (a part was changed).
        """
        folder = self.folder
        known, used = read_indexes(folder), set[str]()
        index = index_of(known, run)
        if not index:
            for part in parts:
                verify(folder / part.file, part.digest)
            used, contents, trouble = _read_companion(folder, run, companion)
            with storage_errors(folder):
                items = _items(layout, contents, [folder / part.file for part in parts])
                trouble |= _write_files(folder, contents)
                weight_map = _write_model(folder, contents.table.stem, items, self.file_bytes_max)
            about: dict[str, Any] = {"run": run, "absent": {**contents.table.absent, **trouble}}
            about["files"] = sorted(contents.files.keys() - trouble.keys())
            if tick is not None:
                about["tick"] = tick
            index = index_name(contents.table.stem)
            _write_index(folder / index, items, weight_map, about)
            written = {index, *weight_map.values(), *contents.files}
            _remove(folder, stale_names(known, written))
        _remove(folder, {part.file for part in parts} | used)
        for each in (folder, folder / PARTS):
            remove_leftovers(each)
        with suppress(OSError):  # a user's file is in it, or it is gone already
            (folder / PARTS).rmdir()
        return folder / index


def part_name(run: str, shard: int) -> str:
    return f"{PARTS}/{run}-shard-{shard:03d}.safetensors"


def parse_index(data: bytes) -> dict[str, Any]:
    """What an index says; nothing, if it is none."""
    try:
        return json_text.mapping(data)
    except ValueError:
        return {}


def read_indexes(folder: Path) -> Indexes:
    """The indexes that a folder has."""
    found = {}
    for name in INDEXES:
        with storage_errors(folder / name), suppress(FileNotFoundError):
            found[name] = parse_index((folder / name).read_bytes())
    return found


def index_of(known: Indexes, run: str) -> str:
    """The index of a run's model; empty: there is none."""
    runs = {each.get("metadata", {}).get("run"): name for name, each in known.items()}
    return runs.get(run, "")


def stale_names(known: Indexes, written: set[str]) -> set[str]:
    """What the indexes of an earlier run name, and these, as far as it was not written again."""
    named = {name for index in known.values() for name in index.get("weight_map", {}).values()}
    read = {name for name, index in known.items() if index}
    return {name for name in (named | read) - written if Path(name).name == name}


def encode_part(run: str, shard: int, bases: Mapping[int, Array]) -> list[Buffer]:
    """A shard's part of an export, as a file has it, from its bases by fragment."""
    tensors = {_slice_name(fragment): base for fragment, base in sorted(bases.items())}
    return encode_parts(tensors, {"run": run, "shard": str(shard)})


def as_learners_hold(base: Base) -> Array:
    """A base [n] in its own type; a slice with averaged buffers comes in f32."""
    return np.concatenate((base.exact, base.coded.astype(F32))) if base.form.exact else base.coded


def _remove(folder: Path, names: set[str]) -> None:
    for name in names:
        with storage_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


def _read_companion(
    folder: Path, run: str, companion: Sequence[Iterable[bytes]]
) -> tuple[set[str], CompanionContents, dict[str, str]]:
    """The names of the files that it takes meanwhile, what they hold, and why nothing, if so."""
    names, trouble = [], dict[str, str]()
    try:
        for number, each in enumerate(companion):
            name = f"{PARTS}/{run}-companion-{number}.safetensors"
            if companions.join(folder / name, each):
                names.append(name)
        contents = companions.read([folder / name for name in names])
    except (ObjectError, StoreCorrupt, StoreMissing) as error:
        contents, trouble = CompanionContents(), {"what does not travel": str(error)}
    return set(names), contents, trouble


def _items(layout: Layout, contents: CompanionContents, parts: Sequence[Path]) -> list[Item]:
    """All tensors of the export, by key: what the companion names, and what it leaves out."""
    places = _places(layout, parts)
    numbers = {tensor.name: i for i, tensor in enumerate(layout.tensors)}
    keys = {key: name for key, name in contents.table.keys.items() if name in numbers}
    keys |= {name: name for name in numbers.keys() - set(keys.values())}
    items = [
        Item(key=key, dtype=each.entry.dtype, shape=each.entry.shape, places=[each])
        for key, each in contents.tensors.items()
        if key not in keys
    ]
    for key, name in keys.items():
        tensor = layout.tensors[numbers[name]]
        dtype, found = NAMES[DTYPES[tensor.dtype]], places[numbers[name]]
        items.append(Item(key=key, dtype=dtype, shape=tuple(tensor.shape), places=found))
    return sorted(items, key=lambda item: item.key)


def _write_files(folder: Path, contents: CompanionContents) -> dict[str, str]:
    """Returns why a file is not written: a folder of its name, say, is no reason to wait."""
    trouble: dict[str, str] = {}
    for name, place in contents.files.items():
        try:
            with whole_file(folder / name) as file:
                _copy(place, place.entry.dtype, file)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in IN_THE_WAY:
                raise
            trouble[name] = str(error)
    return trouble


def _write_model(
    folder: Path, stem: str, items: Sequence[Item], file_bytes_max: int
) -> dict[str, str]:
    """Write all files of the model; returns the file of each tensor."""
    plan = [list(items)] if stem == ADAPTER else _plan(items, file_bytes_max)
    weight_map: dict[str, str] = {}
    for number, planned in enumerate(plan, start=1):
        which = f"-{number:05d}-of-{len(plan):05d}" if len(plan) > 1 else ""
        name = f"{stem}{which}.safetensors"
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
    """The values of an entry, as `dtype`."""
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
