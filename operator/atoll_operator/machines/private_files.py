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


def state_root() -> Path:
    """Where this user's machines and tokens are kept."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "atoll"


def make_private(folder: Path) -> Path:
    """Raises SpecError where it cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise SpecError(str(folder), f"{error.strerror}", "give a writable folder") from error
    return folder


def write_private(path: Path, data: bytes) -> None:
    """Write a file at once and durably: a reader sees the old one or the new one."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
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
    """Put a set in a folder at once, as the kubelet does: a reader gets files of one set."""
    make_private(folder)
    name = f"..{secrets.token_hex(8)}"
    new = make_private(folder / name)
    for file, data in (
        (CERTIFICATE, credentials.certificate),
        (KEY, credentials.key),
        (AUTHORITY, credentials.authority),
    ):
        write_private(new / file, data)
    link = folder / KUBERNETES_LINK
    turned = folder / f"{name}.link"
    turned.symlink_to(name)
    turned.replace(link)
    for each in folder.iterdir():
        if each.name not in (name, KUBERNETES_LINK):
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
