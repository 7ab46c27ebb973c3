"""The companion at the registrar: its parts as objects, and a whole one as a file (rule 36).

Each part is a safetensors file with the part's bytes in it: durable, named by its content, and
removed where no entry names it, like every other object (storage/versions). It came from a learner:
what does not hold what it should is no companion, and never a reason to fail.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from atoll_protos.errors import SpecError
from atoll_protos.job.companion import FILE, METADATA, TENSOR, ExportTable, check_files
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.files import whole_file
from atoll_syncer.storage.objects import Entry, ObjectError, decode, encode_parts, read_header
from atoll_syncer.storage.store import Store, StoreCorrupt, read_object, storage_errors

BYTES = "bytes"
LOST = "restore the storage; without it the export has only the tensors that travel"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPlace:
    """Where the bytes of one entry of a companion lie."""

    path: Path
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionContents:
    """All companions of a run together: tensors by their key in the export, files by their path."""

    table: ExportTable = field(default_factory=ExportTable)
    tensors: Mapping[str, EntryPlace] = field(default_factory=dict)
    files: Mapping[str, EntryPlace] = field(default_factory=dict)


def write_part(store: Store, run: str, epoch: int, part: int, data: Buffer) -> str:
    """`epoch` says which term may remove it. Raises StoreFull and StoreUnavailable."""
    metadata = {"run": run, "epoch": str(epoch), "part": str(part)}
    return store.put(encode_parts({BYTES: np.frombuffer(data, np.uint8)}, metadata), epoch)


def read_part(store: Store, name: str) -> bytes:
    """The bytes of a part. Raises StoreMissing and StoreCorrupt (lost), StoreUnavailable."""
    data = read_object(store, name, LOST)
    try:
        content, _ = decode(data)
        return content[BYTES].tobytes()
    except (ObjectError, KeyError) as error:
        raise StoreCorrupt(name, f"not a part of a companion: {error!r}", LOST) from error


def read_parts(store: Store, names: Sequence[str]) -> Iterator[bytes]:
    return (read_part(store, name) for name in names)


def join(path: Path, parts: Iterable[bytes]) -> bool:
    """False, and no file, without parts. Raises StoreFull, StoreUnavailable and what `parts` do."""
    iterator = iter(parts)
    for first in iterator:
        with whole_file(path) as file:
            for part in chain((first,), iterator):
                file.write(part)
        return True
    return False


def read(paths: Sequence[Path]) -> CompanionContents:
    """What the files hold, a later one instead of an earlier one; the first one's table counts.

    Raises ObjectError for a file that is no companion, StoreUnavailable.
    """
    tables: list[ExportTable] = []
    tensors: dict[str, EntryPlace] = {}
    files: dict[str, EntryPlace] = {}
    for path in paths:
        with storage_errors(path), path.open("rb") as file:
            found = read_header(file)
        if found.byte_count != path.stat().st_size:
            raise ObjectError(f"{path.name}: {found.byte_count} bytes in its header")
        try:
            tables.append(ExportTable.from_json(found.metadata[METADATA]))
            for name, entry in found.entries.items():
                place = EntryPlace(path=path, entry=entry)
                if name.startswith(TENSOR):
                    tensors[name.removeprefix(TENSOR)] = place
                elif name.startswith(FILE):
                    files[name.removeprefix(FILE)] = place
            check_files(files)
        except (KeyError, ValueError, SpecError) as error:
            raise ObjectError(f"{path.name} is no companion: {error!r}") from error
    return CompanionContents(
        table=tables[0] if tables else ExportTable(), tensors=tensors, files=files
    )
