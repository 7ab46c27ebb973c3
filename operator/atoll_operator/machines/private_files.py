"""Files and folders for this user alone, each written at once."""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    KUBERNETES_LINK,
    Credentials,
)

LOCK_FILE = "lock"
TRIED_BYTES = 1 << 18  # more than a machine's state has, without its logs


def state_root() -> Path:
    """Where this user's machines and tokens are kept. Raises SpecError."""
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given) / "atoll"
    try:
        return Path.home() / ".local" / "state" / "atoll"
    except RuntimeError as error:  # as in a container whose user has no entry
        raise SpecError("HOME", "is not set", "set it, or XDG_STATE_HOME") from error


def make_private(folder: Path) -> Path:
    """A new one is for this user alone; one that is there stays as it is. Raises SpecError."""
    try:
        _make_folder(folder)
    except OSError as error:
        place, remedy = str(error.filename or folder), "give a writable folder"
        raise SpecError(place, f"{error.strerror}", remedy) from error
    return folder


def must_take(folder: Path) -> None:
    """Raise SpecError where a file of TRIED_BYTES cannot be written into the folder."""
    new = not folder.exists()
    trial = make_private(folder) / f"{secrets.token_hex(4)}.trial"
    try:
        write_private(trial, bytes(TRIED_BYTES))
        trial.unlink()
        if new:
            folder.rmdir()  # who is refused leaves nothing behind
    except OSError as error:
        remedy = "make room, or give a writable folder"
        raise SpecError(str(folder), f"{error.strerror}", remedy) from error


def write_private(path: Path, data: bytes) -> None:
    """Write a file at once and durably: a reader sees the old one or the new one."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # that of a write has none
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else is in here with this folder: no other thread, and no other process."""
    lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def write_credentials(folder: Path, credentials: Credentials) -> None:
    """Put a set in a folder at once, as the kubelet does: a reader gets files of one set.

    Raises OSError, also for a folder that cannot be made: who renews tries again.
    """
    _make_folder(folder)
    name = f"..{secrets.token_hex(8)}"
    new = folder / name
    try:
        _make_folder(new)
        for file, data in (
            (CERTIFICATE, credentials.certificate),
            (KEY, credentials.key),
            (AUTHORITY, credentials.authority),
        ):
            write_private(new / file, data)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    link = folder / KUBERNETES_LINK
    turned = folder / f"{name}.link"
    turned.symlink_to(name)
    turned.replace(link)
    for each in folder.iterdir():
        if each.name not in (name, KUBERNETES_LINK):
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
