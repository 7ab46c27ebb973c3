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
STATUS_SECONDS_MAX = 15.0  # so old a status is believed where nothing is known of its writer
TRIES, TRY_SECONDS = 10, 0.05


class UnsupportedError(Exception):
    """The file system has no locks."""


@contextmanager
def running(out: Path) -> Iterator[None]:
    """Make the folder, and be the one that runs what is in it; raises SpecError if another does."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SpecError("--out", f"{out}: {error.strerror}", "give a writable folder") from error
    try:
        with contextlib.suppress(UnsupportedError):
            _acquire(lock, out)
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


def _acquire(lock: int, out: Path) -> None:
    # A reader holds the lock for a moment, since flock has no way to ask for its state (`is_run`).
    # So it is tried again for half a second; waiting for it would be waiting for another run's end.
    for _ in range(TRIES):
        if _locked(lock, fcntl.LOCK_EX):
            return
        time.sleep(TRY_SECONDS)
    process = os.pread(lock, 32, 0).decode(errors="replace").strip()
    problem = f"{out} is run by another atoll run (process {process})"
    raise SpecError("--out", problem, "wait for its end, or stop it with Ctrl-C")


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
