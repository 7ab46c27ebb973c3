"""Who runs what is in a run folder.

The process that runs a job holds a lock on run.lock in its folder (flock), and the kernel lets go
of it when that process ends. So a second `atoll run` there is refused, and a reader knows whether
the last status still holds. Some network file systems have no such locks; there nobody is refused,
and a status is believed for 15 s.

The processes of a run folder: their logs, line by line, and how its shards are reached.

A process that is started again appends to its file.

Who may read a run folder and reach its shards: the user who runs it, and nobody else.

On a machine with other users a run folder would give them the values and the manifest, and whoever
reaches a shard's port can join, take the model, or end a learner. The kernel is the guard: a
folder that a run makes has mode 0700, the command and its shards have the umask 077, and shards
listen on Unix sockets in a folder of mode 0700, which nobody else can pass.

A folder that was there keeps its mode: it may be /tmp. What a run writes into it is private even
so. A script writes elsewhere, too, perhaps for others, so its process has the umask of the person.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from atoll_operator.local.run_files import OBSERVER_FOLDER, RUN_FILE, STATUS_FILE, Growing, text_of
from atoll_protos.errors import SpecError
from atoll_protos.names import SLOT_PATTERN

UMASK: Final = 0o077
# Shards make folders in the first three, and may have the person's umask.
STORES: Final = "commits"
MADE: Final = (STORES, "export", "syncer")
SOCKETS: Final = "sockets-"
NAME_MAX: Final = "x" * 20  # a socket's name is no longer
PLAIN: Final = re.compile(r"[\w./-]+", re.ASCII)  # means the same in a list, and in a URI of gRPC


def make_folder(folder: Path) -> None:
    """Make one for this user alone, its parents as the umask has it. Raises OSError."""
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def private(out: Path, *, stores: bool = True) -> Iterator[int]:
    """Keep what this process writes inside for its user alone; yields the umask that it had.

    `stores`: the state of shards lies in the run folder, and not in a bucket.
    """
    for name in MADE:
        if stores or name != STORES:
            make_folder(out / name)
    before = os.umask(UMASK)
    try:
        yield before
    finally:
        os.umask(before)


@contextmanager
def socket_folder(out: Path) -> Iterator[Path]:
    """Hold a new folder for sockets, in the run folder if that can be. Raises SpecError.

    Its name is new with each start, so what a killed run has left is in nobody's way. A path of a
    socket has at most 107 bytes, and some file systems have none: then it is in TMPDIR or /tmp.
    """
    for left in out.glob(f"{SOCKETS}*"):
        shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        for place in (out, Path(tempfile.gettempdir()), Path("/tmp")):
            try:
                made = TemporaryDirectory(prefix=SOCKETS, dir=place, ignore_cleanup_errors=True)
                folder = Path(stack.enter_context(made))
                _try(folder / NAME_MAX)
            except OSError:
                continue
            yield folder
            return
    problem = f"no Unix socket can be made in {out}, in TMPDIR or in /tmp"
    raise SpecError("--out", problem, "name a folder with a short path on a local disk")


def _try(path: Path) -> None:
    """Raise OSError where gRPC could not listen."""
    if not PLAIN.fullmatch(str(path)):
        raise OSError(f"{path} has characters that mean something else in a list of addresses")
    with socket.socket(socket.AF_UNIX) as trial:
        trial.bind(str(path))
    path.unlink()


LOCK_FILE = "run.lock"
EDIT_FILE = "edit.lock"
REMEDY = "wait for its end, or stop it with Ctrl-C"
STATUS_SECONDS_MAX = 15.0  # so old a status is believed where nothing is known of its writer
TRIES, TRY_SECONDS = 10, 0.05


class UnsupportedError(Exception):
    """The file system has no locks."""


@contextmanager
def running(out: Path, option: str = "--out") -> Iterator[None]:
    """Make the folder, and be the one that runs what is in it; raises SpecError if another does.

    `option`: by which the folder was named.
    """
    try:
        make_folder(out)
    except OSError as error:
        raise SpecError(option, f"{out}: {error.strerror}", "give a writable folder") from error
    with _held(out / LOCK_FILE, option, "is in use by another atoll command", REMEDY):
        yield


@contextmanager
def editing(out: Path) -> Iterator[None]:
    """Be the one that changes the manifest in the folder; raises SpecError while another does."""
    with _held(out / EDIT_FILE, str(out), "is edited by another atoll edit", "try again"):
        yield


@contextmanager
def _held(file: Path, field: str, problem: str, remedy: str) -> Iterator[None]:
    """Hold the lock on a file, with this process in it; raises SpecError while another has it."""
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        problem = f"{file.parent}: {error.strerror}"
        raise SpecError(field, problem, "give a writable folder") from error
    try:
        if not _acquired(lock):
            process = os.pread(lock, 32, 0).decode(errors="replace").strip()
            raise SpecError(field, f"{file.parent} {problem} (process {process})", remedy)
        with contextlib.suppress(OSError):  # only for the words of who is refused
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def is_run(out: Path) -> bool:
    try:
        lock = os.open(out / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(lock, fcntl.LOCK_SH)
    except UnsupportedError:
        return _is_new(out / STATUS_FILE)
    finally:
        os.close(lock)


def holder(out: Path) -> int | None:
    """Return the process that runs what is in the folder; None: none that this one can see."""
    if not is_run(out):
        return None
    file = (out / LOCK_FILE).resolve()
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        if any(path.readlink() == file for path in Path(f"/proc/{pid}/fd").iterdir()):
            return pid
    return None


def _acquired(lock: int) -> bool:
    """Whether it is; also where the file system has no locks."""
    # A reader holds the lock for a moment, since flock has no way to ask for its state (`is_run`).
    # So it is tried again for half a second; waiting for it would be waiting for another run's end.
    with contextlib.suppress(UnsupportedError):
        for _ in range(TRIES):
            if _locked(lock, fcntl.LOCK_EX):
                return True
            time.sleep(TRY_SECONDS)
        return False
    return True


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise UnsupportedError from error
        raise
    return True


def _is_new(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < STATUS_SECONDS_MAX
    except OSError:
        return False


EXPORTING = "atoll_syncer.edges.exporting"
LOOK_SECONDS = 0.2  # files of all kinds of file systems can be looked at, few can tell of a change


def holds_run(out: Path) -> bool:
    return (out / RUN_FILE).is_file() or (out / "logs").is_dir()


def lines(out: Path, process: str, *, tail: int | None, follow: bool) -> Iterator[tuple[str, str]]:
    """Pairs of a process and a line of its log; `process` empty: all, one after another.

    The slot of a learner of several hosts stands for all of these. Begins with the last `tail`
    lines of each (None: all). With `follow` it continues until the run is over. Raises SpecError
    for a process that the run does not have.
    """
    known = processes_of(out)
    wanted = {process, *(_name(row) for row in _rows(out) if row.get("slot") == process)}
    if process and wanted.isdisjoint(known):
        has = f"it has {', '.join(known)}" if known else "it has none yet"
        if SLOT_PATTERN.fullmatch(process):
            has += "; the log of a learner that has joined is in the state folder of its machine"
        raise SpecError(process, "is not a process that the run has on its own machine", has)
    files: dict[str, Growing] = {}
    while True:
        alive = follow and is_run(out)  # asked before what it wrote last is read
        found = False
        for path in sorted((out / "logs").glob("*.log")):
            if process and path.stem not in wanted:
                continue
            cut = tail is not None and path.stem not in files
            file = files.setdefault(path.stem, Growing(path))
            for line in deque(file.read(), maxlen=tail) if cut else file.read():
                found = True
                yield path.stem, line
        if not alive:
            for name, file in files.items():
                if file.rest:
                    yield name, text_of(file.rest)
            return
        if not found:
            time.sleep(LOOK_SECONDS)


def processes_of(out: Path) -> list[str]:
    """Also of those that have written nothing yet."""
    names = {path.stem for path in (out / "logs").glob("*.log")}
    return sorted(names | set(map(_name, _rows(out))))


def endpoints_of(out: Path) -> list[str]:
    """Those of the shards of a run that runs, by shard."""
    return [row["endpoint"] for row in _rows(out) if row["role"] == "shard"]


def observer_in(out: Path) -> str:
    """Return the credentials with which shards of `atoll serve` are asked; empty: plain text."""
    folder = out / OBSERVER_FOLDER
    return str(folder) if folder.is_dir() else ""


def exporting(out: Path, target: str) -> list[str]:
    """Return the program that takes the model from the shards of a run; `target` -: as a tar."""
    shards = ("--endpoints", ",".join(endpoints_of(out)), "--tls-dir", observer_in(out))
    words = ("--run-file", str(out / RUN_FILE), *shards, "--out", target)
    return [sys.executable, "-P", "-m", EXPORTING, *words]


def _rows(out: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads((out / "processes.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return []


def _name(row: dict[str, Any]) -> str:
    if "slot" not in row:
        return str(row["name"])
    return f"{row['slot']}-{row['host']}" if "host" in row else str(row["slot"])
