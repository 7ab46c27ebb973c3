"""What the learners of a machine start from: a folder, which is the same however it came there.

job.json   whose learners they are, where the shards are, what a learner runs
run.json   the run file
tls.crt, tls.key, ca.crt   of the learners: in the folder, or in `tls` of a state folder

`atoll credentials --files` writes such a folder, which a person brings to a machine. `atoll serve`
answers a token with the same files, but for the key, which is made on the machine. The state folder
of `atoll join` is one too: it makes the machine the same one when it is started again. Beside them
it has machine.key of one that has entered by a token, and logs, learners and processes.json as in a
run folder.

They are plain files, which any program copies one after the other: who reads them while somebody
writes new ones may find two sets, and takes neither.

A token is NAME.SECRET.DIGEST. The digest (sha256, hexadecimal) is that of the server's certificate,
so the token proves the server to the machine, and the secret the machine to the server: as the
discovery hash of kubeadm's tokens.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from atoll_operator.api.job.fields import HOSTS_MAX
from atoll_operator.local.run_files import RUN_FILE
from atoll_operator.local.run_folder import make_folder
from atoll_protos.documents import parse
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    KUBERNETES_LINK,
    Credentials,
)

JOB_FILE: Final = "job.json"
TLS_FOLDER: Final = "tls"
KEY_FILE: Final = "machine.key"  # of one that has entered by a token: who holds it is the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A machine of one job, or any one of a region: then it has no name and no slots yet."""

    job: str
    region: str
    endpoints: tuple[str, ...]  # by shard
    container: str  # of the learners, JSON
    learners: int = 0  # of the region, when this was written; 0: not known
    slots: tuple[str, ...] = ()
    name: str = ""
    host: int = 0  # which of the `hosts` machines of its learner
    hosts: int = 1
    hosts_min: int = 0  # with which it trains; 0: all
    rendezvous: str = ""  # on host 0 as a person has said; on others where it is
    server: str = ""  # HOST:PORT of `atoll serve`, and its certificate; empty: of a cluster
    anchor: str = ""
    wanted: str = ""  # the name that the server was asked for

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str) -> "Bundle":
        """Raise SpecError, which calls the text `name`."""
        return parse(Bundle, text, name)


def write(
    folder: Path, bundle: Bundle, run_file: str = "", credentials: Credentials | None = None
) -> None:
    """Write new files in place of former ones, for this user alone; what is left out stays.

    Raises OSError, and SpecError for a folder that cannot be made.
    """
    make_private(folder)
    files = {JOB_FILE: bundle.to_json().encode()}
    files |= {RUN_FILE: run_file.encode()} if run_file else {}
    if credentials is not None:
        tls = (credentials.authority, credentials.key, credentials.certificate)
        files |= dict(zip((AUTHORITY, KEY, CERTIFICATE), tls, strict=True))
    for name, data in files.items():
        write_private(folder / name, data)


def read(folder: Path) -> Bundle | None:
    """None: there is none. Raises SpecError."""
    path = folder / JOB_FILE
    try:
        return Bundle.from_json(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, SpecError) as error:
        remedy = "let this user read it, put a copy back, or join anew with another --state"
        raise SpecError(str(path), f"cannot be read ({error})", remedy) from error


def default_folder(job: str, uid: str, machine: str) -> Path:
    return state_root() / f"{job}-{uid[:8]}-{machine}"


def state_folders() -> tuple[list[tuple[Path, Bundle]], list[SpecError]]:
    """Read the machines in this user's state folder, and the faults of others: of any job."""
    machines, faults = [], []
    for path in sorted(state_root().glob(f"*/{JOB_FILE}")):
        try:
            if (bundle := read(path.parent)) is not None:
                machines.append((path.parent, bundle))
        except SpecError as error:
            faults.append(error)
    return machines, faults


def host_of(hosts: int, host: int | None, learners: int) -> int:
    """Return the number of a host; `learners` are those of this machine. Raises SpecError."""
    if hosts > HOSTS_MAX:
        raise SpecError("--hosts", f"is {hosts}", f"use at most {HOSTS_MAX}")
    if host is None and hosts > 1:
        problem = f"is not given, and learners have {hosts} hosts"
        raise SpecError("--host", problem, f"give 0 on one machine, to {hosts - 1} on the last")
    number = host or 0
    if number >= hosts:
        remedy = f"use 0 to {hosts - 1}" if hosts > 1 else "leave it out, or give --hosts"
        raise SpecError("--host", f"is {number}, and its learner has {hosts}", remedy)
    if learners > 1 and hosts > 1:
        problem = f"is {learners}, and each learner has {hosts} hosts"
        raise SpecError("--learners", problem, "leave it out: a host is of one learner")
    return number


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
        """Raise SpecError."""
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
    """Hash a secret to keep. It is random, so that needs no salt and no slow function."""
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
    """Make one for this user alone; one that is there stays as it is. Raises SpecError."""
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
    for path in folder.iterdir():
        if path.name not in (name, KUBERNETES_LINK):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
