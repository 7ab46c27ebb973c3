"""Durable names and bytes: conditional create, and objects named by their digest (rule 19).

A store gives three guarantees, and the protocol rests on them:

- `create` is atomic and conditional: of several makers of one name exactly one gets True, and a
  reader sees all of the bytes or no name at all.
- When `create` or `put` returns, the bytes and the name survive a power cut.
- An object's name is its sha256, so writing it twice is harmless and damage is always noticed.

`FileStore` writes a temporary file, fsyncs it, gives it its name by link(2), and fsyncs the folder,
without which the name could be lost: also when the name was there, since its maker may have been
killed before. open(O_CREAT | O_EXCL) would show the name before its content; rename(2) replaces a
name, so two makers would both succeed. link(2) fails if the name is there. A network file system
that lost its answer may report EEXIST for our own link: comparing inodes shows it. On an object
store conditional PUTs give the same guarantees (storage/object_store).

A `whole_file` may be replaced: two writers of one name write the same bytes. So rename(2) is
enough.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from atoll_protos.transfer.frames import Buffer


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, durably. Raises OSError.

    The name of a folder is durable only after an fsync of the folder above it. It is done also for
    a folder that is there: its maker may have been killed before it came to that. Only then may the
    folder above be one that this user cannot open, such as that of a mount.
    """
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            if not each.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            with suppress(PermissionError):
                sync_folder(each.parent)
        else:
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FILE: Final = "file://"
LOG = "log/"
OBJECTS = "objects/"
SNAPSHOTS = "snapshots/"
OBJECT_NAME: Final = re.compile(rf"{OBJECTS}\d+-[0-9a-f]{{64}}\.safetensors", re.ASCII)
# Made by `open`, each time with other bytes: without it no name is believed to be missing.
MARK = "atoll.json"
TEMPORARY = "tmp/"
WRITE_BYTES = 8 << 20  # at most so much per write(2), so that a full disk shows early
FRESH_SECONDS = 10.0  # a temporary file that is not locked yet
UNLOCKED_SECONDS = 3600.0  # no process needs an hour for one, where locks are not supported
DAMAGED: Final = "the next checkpoint has other objects; see what the shard's log says of its store"
NEEDS_COPY: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}  # of link(2)


class StoreError(Exception):
    """The store could not do what was asked; `path` says where, `remedy` what to do."""

    kind = "unavailable"
    is_permanent = False  # only another path or another setting helps, not time

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path, self.reason, self.remedy = path, reason, remedy


class StoreFull(StoreError):  # noqa: N818 - its base says error
    """No room: trailers wait until there is some; try again (rule 23)."""

    kind = "full"


class StoreUnavailable(StoreError):  # noqa: N818 - its base says error
    """Any other trouble of the storage: try again (rule 23)."""


class StoreEmptied(StoreUnavailable):
    """The store's folder is there and its mark is gone: somebody has emptied or exchanged it."""


class StoreMissing(StoreError):  # noqa: N818 - its base says error
    """No object or entry has this name."""

    kind = "missing"


class StoreCorrupt(StoreError):  # noqa: N818 - its base says error
    """The bytes are not what their name says: permanent."""

    kind = "corrupt"


class Objects(Protocol):
    """What takes objects; see Store."""

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        """Store the joined parts durably; returns the name that `epoch` and their sha256 give."""


class Store(Objects, Protocol):
    """What the log and the tensors need of a disk or an object store.

    Every method may raise StoreFull or StoreUnavailable; then it may be tried again. Where this
    process has not opened the store, a name is missing also with the whole folder.
    """

    @property
    def keeps_entries(self) -> bool:
        """Whether no entry of the log is ever deleted (storage/journal)."""

    @property
    def heartbeat_seconds(self) -> float:
        """How often the owner of the shard renews its heartbeat."""

    def open(self) -> None:
        """Make what is missing of the store, and see whether it does what is needed."""

    def create(self, name: str, data: bytes) -> bool:
        """Make `name` hold `data`, durably and atomically; False: the name is taken."""

    def replace(self, name: str, data: bytes) -> None:
        """Make `name` hold `data` atomically, whatever it held; need not survive a power cut."""

    def read(self, name: str) -> bytearray:
        """Return the bytes of `name`; raises StoreMissing."""

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Return the names in folder `prefix` (it ends in a slash) behind `after`, sorted."""

    def delete(self, name: str) -> None:
        """Remove `name`; a name that is not there is removed already."""

    def adopt(self, source: "Store", name: str) -> bool:
        """Give an object of another store a name here without reading it; False: that cannot be."""

    def tidy(self) -> None:
        """Remove what killed writers left half-written; no live writer notices."""


def emptied(place: str, how: str = "is not there") -> StoreEmptied:
    return StoreEmptied(place, f"{MARK} {how}", "put back what was there, if you can")


def new_mark() -> bytes:
    return b'{"mark": "%s"}' % secrets.token_hex(8).encode()


def compare_marks(place: str, opened: bytes, found: bytes) -> None:
    """Raise StoreEmptied: who slept meanwhile would add to a log that began anew without it."""
    if opened not in (b"", found):
        raise emptied(place, "is that of a store which was emptied and begun anew")


def object_name(epoch: int, digest: str) -> str:
    """`epoch` is that of the writer's term, from which a later one knows what nobody can name."""
    return f"{OBJECTS}{epoch}-{digest}.safetensors"


def epoch_of(name: str) -> int | None:
    """Return the epoch in which an object was written; None for a file of another program."""
    epoch, _, _ = name.removeprefix(OBJECTS).partition("-")
    return int(epoch) if epoch.isdecimal() else None


def read_object(store: Store, name: str, remedy: str) -> bytearray:
    """Return an object's bytes, which must be those of its name; `remedy` if they are not.

    Raises StoreMissing and StoreCorrupt (they are lost), StoreUnavailable (try again).
    """
    if not OBJECT_NAME.fullmatch(name):
        raise StoreCorrupt(ascii(name), "it is no name of an object", remedy)
    data = store.read(name)
    if not name.endswith(f"-{hashlib.sha256(data).hexdigest()}.safetensors"):
        raise StoreCorrupt(name, "its bytes have changed", remedy)
    return data


def copy_object(source: Store, target: Store, name: str) -> None:
    """Give an object a name in another store, too. Raises what `read_object` does."""
    if not target.adopt(source, name):
        stored = target.put([read_object(source, name, DAMAGED)], epoch_of(name) or 0)
        assert stored == name, (stored, name)  # its content's


class FileStore:
    """A folder as a store, on a file system with hard links; see the module."""

    keeps_entries: Final = False
    heartbeat_seconds: Final = 1.0

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, f"{FILE}{root}"
        self._mark = b""  # as this process has opened it

    def below(self, name: str) -> "FileStore":
        """Return a folder in it as a store, which need not be there."""
        return FileStore(self.root / name)

    def open(self) -> None:
        """Raise StoreFull and StoreUnavailable, also where the folders could not be used later."""
        for folder in (LOG, OBJECTS, SNAPSHOTS, TEMPORARY):
            with storage_errors(self.root):
                make_folder(self.root / folder)
            self.names(folder)
        with storage_errors(self.root / TEMPORARY), self._temporary([b""], durable=False) as made:
            for folder in (LOG, OBJECTS, SNAPSHOTS):
                with storage_errors(self.root / folder):
                    probe = self.root / folder / f".{made.name}"
                    os.link(made, probe)
                    probe.unlink()
        self.create(MARK, new_mark())
        self._mark = bytes(self.read(MARK))
        self.tidy()

    def create(self, name: str, data: bytes) -> bool:
        """See Store. False may also mean that an earlier try of the same caller got through."""
        path = self._path(name)
        with storage_errors(path), self._temporary([data]) as temporary:
            return _link(temporary, path)

    def replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with storage_errors(path), self._temporary([data], durable=False) as temporary:
            temporary.rename(path)

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        """See Store. Hashes in a second thread while the bytes go to the disk."""
        digest = hashlib.sha256()

        def hash_parts() -> None:
            for part in parts:
                digest.update(part)

        hashing = threading.Thread(target=hash_parts)
        hashing.start()
        try:
            with storage_errors(self.root / OBJECTS), self._temporary(parts) as temporary:
                hashing.join()
                name = object_name(epoch, digest.hexdigest())
                _link(temporary, self._path(name))
        finally:
            hashing.join()
        return name

    def adopt(self, source: Store, name: str) -> bool:
        """See Store: on one file system."""
        path = self._path(name)
        with storage_errors(path):
            try:
                if isinstance(source, FileStore):
                    _link(source._path(name), path)
                    return True
            except OSError as error:
                if error.errno not in NEEDS_COPY:
                    raise
            return False

    def write(self, name: str, data: bytes) -> None:
        """Make `name` hold `data` durably, whatever it held; the store need not be open."""
        with whole_file(self.root / name) as file:
            file.write(data)

    def send(self, source: Path, name: str) -> None:
        """Move a file here."""
        target = self.root / name
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(source, target)

    def folders(self) -> list[str]:
        """Return the names of what is directly in it."""
        with storage_errors(self.root), suppress(FileNotFoundError):
            return os.listdir(self.root)
        return []

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, and one above it that is empty."""
        path = self.root / name
        with storage_errors(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            with suppress(OSError):  # others have parts there
                path.parent.rmdir()

    def read(self, name: str) -> bytearray:
        path = self._path(name)
        with storage_errors(path):
            try:
                with path.open("rb") as file:
                    data = bytearray(os.fstat(file.fileno()).st_size)
                    del data[file.readinto(data) :]
                    return data
            except FileNotFoundError:
                if self._mark:
                    path.parent.stat()  # without the folder we do not know: StoreUnavailable
                    self._look_for_mark()
                remedy = "nothing to do if it was collected; else restore the storage"
                raise StoreMissing(os.fspath(path), "there is no such name", remedy) from None

    def _look_for_mark(self) -> None:
        try:
            found = (self.root / MARK).read_bytes()
        except FileNotFoundError:
            raise emptied(os.fspath(self.root)) from None
        compare_marks(os.fspath(self.root), self._mark, found)

    def names(self, prefix: str, after: str = "") -> list[str]:
        folder = self._path(prefix)
        with storage_errors(folder):
            if not self._mark and not folder.exists():
                return []
            names = (f"{prefix}{name}" for name in os.listdir(folder))
            return sorted(name for name in names if name > after)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with storage_errors(path):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Return the file of a name; names are relative and never leave the folder."""
        assert not name.startswith("/"), name
        assert ".." not in name.split("/"), name
        return self.root / name

    def tidy(self) -> None:
        """See Store. A writer holds a lock on its file as long as it lives, wherever it runs.

        Files of FRESH_SECONDS stay, since a writer needs a moment from the file to the lock; age is
        by the file system's own clock.
        """
        folder = self.root / TEMPORARY
        with storage_errors(folder), self._temporary([b""], durable=False) as mark:
            now = mark.stat().st_mtime
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    age_seconds = now - path.stat().st_mtime
                    if age_seconds > FRESH_SECONDS and _is_abandoned(path, age_seconds):
                        path.unlink()

    @contextmanager
    def _temporary(self, parts: Sequence[Buffer], *, durable: bool = True) -> Iterator[Path]:
        """Yield a file that holds the joined parts, gone at the end unless it was renamed."""
        path = self.root / TEMPORARY / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with path.open("xb", buffering=0) as file:
                with suppress(OSError):  # not every file system has locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for part in parts:
                    view = memoryview(part)
                    while view.nbytes:
                        view = view[file.write(view[:WRITE_BYTES]) :]
                if durable:
                    os.fsync(file.fileno())
                yield path
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _is_abandoned(path: Path, age_seconds: float) -> bool:
    """Whether the writer of a temporary file is gone."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return age_seconds > UNLOCKED_SECONDS
    return True


def _link(temporary: Path, path: Path) -> bool:
    """Give a synced file its name; says whether it was this call that made the name."""
    try:
        os.link(temporary, path)
        made = True
    except FileExistsError:
        # A network file system that lost its answer may report our own link.
        made = path.samefile(temporary)
    sync_folder(path.parent)  # also when the name was there: its maker may have been killed
    return made


_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "no file may be so large",
}
_PERMANENT = {
    errno.EACCES,
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}
_REMEDIES = {
    errno.EACCES: "let this process's user write there",
    errno.EPERM: "let this process's user write there, on a file system with hard links",
    errno.EOPNOTSUPP: "use a file system with hard links",
    errno.EROFS: "mount it writable",
    errno.EEXIST: "give a folder, or remove the file that is in its place",
    errno.ENOTDIR: "give a folder, or remove the file that is in its place",
    errno.EISDIR: "give a file, or remove the folder that is in its place",
    errno.ENOENT: "mount the storage again, or restore the folder",
    errno.EMFILE: "raise the limit of open files",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the storage again",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the path and the remedy."""
    try:
        yield
    except OSError as error:
        where = os.fspath(path)
        if error.errno in _FULL:
            remedy = "make room there; training continues, commits wait"
            raise StoreFull(where, _FULL[error.errno], remedy) from error
        reason = error.strerror or type(error).__name__
        remedy = _REMEDIES.get(error.errno or 0, "check the storage")
        trouble = StoreUnavailable(where, reason, remedy)
        trouble.is_permanent = error.errno in _PERMANENT
        raise trouble from error


READ_BYTES = 4 << 20
INDEX_SUFFIX = ".safetensors.index.json"  # how the name of a model's index ends


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
    return sorted(files, key=lambda path: (path.name.endswith(INDEX_SUFFIX), path))


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
