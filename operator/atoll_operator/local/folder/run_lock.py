"""Who runs what is in a run folder.

The process that runs a job holds a lock on run.lock in its folder (flock), and the kernel lets go
of it when that process ends. So a second `atoll run` there is refused, and a reader knows whether
the last status still holds. Some network file systems have no such locks; there nobody is refused,
and a status is believed for 15 s.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll_operator.local.folder.run_files import STATUS_FILE
from atoll_protos.errors import SpecError

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
        out.mkdir(parents=True, exist_ok=True)
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
    """The lock on a file, with this process in it; raises SpecError while another has it."""
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
    """The process that runs what is in the folder; None: none that this one can see."""
    if not is_run(out):
        return None
    file = (out / LOCK_FILE).resolve()
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        if any(each.readlink() == file for each in Path(f"/proc/{pid}/fd").iterdir()):
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
