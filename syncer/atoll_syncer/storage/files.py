"""Files that appear whole: written under a temporary name, hashed, synced, then renamed.

Unlike an entry of the log, such a file may be replaced: two writers of one name write the same
bytes, since the content is a function of the run. So rename(2) is enough here.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.folders import make_folder, sync_folder
from atoll_syncer.storage.store import StoreCorrupt, storage_errors

READ_BYTES = 4 << 20
INDEX = ".safetensors.index.json"  # how the name of a model's index ends


class WholeFile:
    """A file being written; `digest` is the sha256 of what was written so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: Buffer) -> None:
        self._file.write(data)
        self._digest.update(data)


@contextmanager
def whole_file(path: Path) -> Iterator[WholeFile]:
    """Durable at the end, and until then what it was. Raises StoreFull and StoreUnavailable."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with storage_errors(path):
        make_folder(path.parent)
        try:
            with temporary.open("wb") as file:
                yield WholeFile(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def files_in_order(folder: Path) -> list[Path]:
    """Of a model that is made: what others may read last, its index."""
    with storage_errors(folder):
        files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: (path.name.endswith(INDEX), path))


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes; their writers start from the beginning."""
    with storage_errors(folder):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def verify(path: Path, digest: str) -> None:
    """Read the file through; raises StoreCorrupt when its sha256 is not `digest`."""
    found = hashlib.sha256()
    with storage_errors(path), path.open("rb") as file:
        while data := file.read(READ_BYTES):
            found.update(data)
    if found.hexdigest() != digest:
        reason = f"its sha256 is {found.hexdigest()}, not {digest}"
        raise StoreCorrupt(str(path), reason, "write it again from the slices")
