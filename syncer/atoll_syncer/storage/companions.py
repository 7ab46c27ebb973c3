"""The companion at the registrar: its parts as objects, and a whole one as a file (rule 36).

Each part that arrives becomes one object, which is a safetensors file with the part's bytes in it.
So it is durable and named by its content like every other object, and one that no entry came to
name is removed like every other object (storage/versions).

The export reads the parts back and joins them to one file again, which is itself in safetensors
format (atoll_protos/companion). It came from a learner: what does not hold what it should is no
companion, and is never a reason to fail.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from atoll_protos.companion import FILE, METADATA, TENSOR, Table, check_files
from atoll_protos.errors import SpecError
from atoll_protos.frames import Buffer
from atoll_protos.tensors import byte_view, from_bytes
from atoll_syncer.storage.files import whole_file
from atoll_syncer.storage.objects import Entry, ObjectError, decode, encode_parts, read_header
from atoll_syncer.storage.store import Store, StoreCorrupt, read_object, storage_errors

BYTES = "bytes"
LOST = "restore the storage; without it the export has only the tensors that travel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose part an object holds; the epoch says which term may remove it."""

    run: str
    epoch: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the bytes of one entry of a companion lie."""

    path: Path
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All companions of a run together: tensors by their key in the export, files by their path."""

    table: Table = field(default_factory=Table)
    tensors: Mapping[str, Place] = field(default_factory=dict)
    files: Mapping[str, Place] = field(default_factory=dict)


def write_part(store: Store, origin: Origin, data: Buffer) -> str:
    """The object's name. Raises StoreFull and StoreUnavailable."""
    metadata = {key: str(value) for key, value in dataclasses.asdict(origin).items()}
    return store.put(encode_parts({BYTES: from_bytes(bytearray(data), torch.uint8)}, metadata))


def read_part(store: Store, name: str) -> bytes:
    """The bytes of a part. Raises StoreMissing and StoreCorrupt (lost), StoreUnavailable."""
    data = read_object(store, name, LOST)
    try:
        content, _ = decode(data)
        return bytes(byte_view(content[BYTES]))
    except (ObjectError, KeyError) as error:
        raise StoreCorrupt(name, f"not a part of a companion: {error!r}", LOST) from error


def read_parts(store: Store, names: Sequence[str]) -> Iterator[bytes]:
    """The parts of a companion, in order, as they are asked for."""
    return (read_part(store, name) for name in names)


def join(path: Path, parts: Iterable[bytes]) -> bool:
    """Write the parts as one file; False, and no file, where there are none.

    Raises StoreFull and StoreUnavailable, and what reading the parts raises.
    """
    first = next(iterator := iter(parts), None)
    if first is None:
        return False
    with whole_file(path) as file:
        file.write(first)
        for part in iterator:
            file.write(part)
    return True


def read(paths: Sequence[Path]) -> Contents:
    """What the files hold, a later one instead of an earlier one; the first one's table counts.

    Raises ObjectError for a file that is no companion, StoreUnavailable.
    """
    tables: list[Table] = []
    tensors: dict[str, Place] = {}
    files: dict[str, Place] = {}
    for path in paths:
        with storage_errors(path), path.open("rb") as file:
            found = read_header(file)
        if found.byte_count != path.stat().st_size:
            raise ObjectError(f"{path.name}: {found.byte_count} bytes in its header")
        try:
            tables.append(Table.from_json(found.metadata[METADATA]))
            for name, entry in found.entries.items():
                place = Place(path=path, entry=entry)
                if name.startswith(TENSOR):
                    tensors[name.removeprefix(TENSOR)] = place
                elif name.startswith(FILE):
                    files[name.removeprefix(FILE)] = place
            check_files(files)
        except (KeyError, ValueError, SpecError) as error:
            raise ObjectError(f"{path.name} is no companion: {error!r}") from error
    return Contents(table=tables[0] if tables else Table(), tensors=tensors, files=files)
