"""The token that a person carries to another machine, NAME.SECRET.DIGEST, and private files.

The digest (sha256, hexadecimal) is that of the server's certificate, so the token proves the server
to the machine, and the secret the machine to the server: as the discovery hash of kubeadm's tokens.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from atoll_operator.local.run_folder import make_folder
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    KUBERNETES_LINK,
    Credentials,
)

PATTERN: Final = re.compile(r"([a-z0-9]{6})\.([A-Za-z0-9_-]{22,64})\.([0-9a-f]{64})")
NAME_BYTES: Final = 3
SECRET_BYTES: Final = 24
SERVER_NAME: Final = "join.atoll.dev"  # in the certificate, whatever address is dialled
REMEDY: Final = "give the whole word that `atoll serve` or `atoll tokens DIR` has printed"


@dataclass(frozen=True, slots=True)
class Token:
    """One word; `digest` is of the server's certificate (DER)."""

    name: str
    secret: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}.{self.secret}.{self.digest}"

    def __repr__(self) -> str:
        return f"Token({self.name})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises SpecError."""
        found = PATTERN.fullmatch(text.strip())
        if found is None:
            raise SpecError("--token", "is not a whole token", REMEDY)
        return cls(*found.groups())

    @classmethod
    def new(cls, digest: str) -> Self:
        return cls(secrets.token_hex(NAME_BYTES), secrets.token_urlsafe(SECRET_BYTES), digest)


def digest_of(certificate: bytes) -> str:
    """Of a server's certificate, in DER."""
    return hashlib.sha256(certificate).hexdigest()


def hash_of(secret: str) -> str:
    """What is kept of a secret. It is random, so its hash needs no salt and no slow function."""
    return hashlib.sha256(secret.encode()).hexdigest()


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
        make_folder(folder)
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
    make_folder(folder)
    name = f"..{secrets.token_hex(8)}"
    new = folder / name
    try:
        make_folder(new)
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
