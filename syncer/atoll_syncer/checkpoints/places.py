"""Places of checkpoints: a folder that every shard reaches, or a folder of a bucket.

A place has folders step-N with small files, and in them the parts of the shards, each of which has
the form of a store (storage/store). An object comes into a part without being read where the file
system can link it, or the bucket's server can copy it.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from atoll_syncer.storage.files import files_in_order, whole_file
from atoll_syncer.storage.store import (
    FileStore,
    Store,
    StoreFull,
    StoreMissing,
    epoch_of,
    read_object,
    storage_errors,
)

STEP: Final = re.compile(r"step-([0-9]+)/?")
FILE: Final = "file://"
COPY_BYTES_MAX: Final = 4 << 30  # S3 copies at most 5 GB with one request
FREE_SHARE_MIN: Final = 0.05
DAMAGED: Final = "the next checkpoint has other objects; see what the shard's log says of its store"


class Place(Protocol):
    """Every method may raise StoreFull and StoreUnavailable. Names are relative to `url`."""

    url: str

    def steps(self) -> list[int]:
        """The numbers of the folders step-N, ascending."""

    def part(self, name: str) -> Store:
        """A folder as a store; nothing is asked or made."""

    def make_part(self, name: str) -> Store:
        """The same, ready to be written."""

    def read(self, name: str) -> bytes:
        """A small file. Raises StoreMissing."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file as a whole, whatever it held."""

    def take(self, store: Store, part: str, name: str) -> int:
        """Bring an object of a shard's store into a part; returns its size in bytes."""

    def bring(self, made: Path, name: str) -> None:
        """Bring a model's files, which leave the folder `made`, into a folder; the index last."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""


def copied(store: Store, part: Store, name: str) -> int:
    """Copy an object by reading and writing it; returns its size. Raises what `read_object` does.

    Its name is its content's, so `put` gives it the same one.
    """
    data = read_object(store, name, DAMAGED)
    stored = part.put([data], epoch_of(name) or 0)
    assert stored == name, (stored, name)
    return len(data)


class FolderPlace:
    """See Place."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"{FILE}{folder}"

    def steps(self) -> list[int]:
        with storage_errors(self.folder), suppress(FileNotFoundError):
            return numbers_of(os.listdir(self.folder))
        return []

    def part(self, name: str) -> FileStore:
        return FileStore(self.folder / name)

    def make_part(self, name: str) -> FileStore:
        made = self.part(name)
        made.open()
        return made

    def read(self, name: str) -> bytes:
        path = self.folder / name
        with storage_errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                remedy = "give the place of a checkpoint"
                raise StoreMissing(os.fspath(path), "is not there", remedy) from None

    def write(self, name: str, data: bytes) -> None:
        with whole_file(self.folder / name) as file:
            file.write(data)

    def take(self, store: Store, part: str, name: str) -> int:
        target = self.part(part)
        size = target.adopt(store, name) if isinstance(store, FileStore) else None
        return copied(store, target, name) if size is None else size

    def bring(self, made: Path, name: str) -> None:
        for path in files_in_order(made):
            target = self.folder / name / path.relative_to(made)
            with storage_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)

    def remove(self, name: str) -> None:
        path = self.folder / name
        with storage_errors(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            with suppress(OSError):  # others have parts there
                path.parent.rmdir()


def check_room(place: Place) -> None:
    """Raises StoreFull where what may be left out would soon take the room of a volume's others."""
    if not isinstance(place, FolderPlace):
        return
    with storage_errors(place.folder):
        volume = shutil.disk_usage(place.folder)
    if volume.free < FREE_SHARE_MIN * volume.total:
        reason = f"less than {FREE_SHARE_MIN:.0%} of its volume is free"
        raise StoreFull(os.fspath(place.folder), reason, "make room there")


def numbers_of(names: list[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(STEP.fullmatch, names) if found)
