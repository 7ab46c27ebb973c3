"""How each fault of a process or of a shard's folder is made and taken back, without root.

Every function is a context: the fault lasts inside. What lasts hits a process that is started
again in the meantime too, where it is a fault of the machine (a slow CPU, a full disk).
"""

import contextlib
import errno
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from atoll_operator.local.supervision.child import Child

TURN_SECONDS: Final = 0.05  # in which a slow process runs for its share, and stands for the rest
TURNS: Final = 20  # until it is looked for new processes
AWAY: Final = ".{}.away"  # a shard's folder while its store is lost
NEWEST_OF: Final = ("log", "objects")  # in a shard's folder: its entries and its objects


class NotMadeError(Exception):
    """A fault could not be made; the text says why."""


def processes_of(children: Sequence[Child]) -> list[int]:
    """The processes of a learner or shard, and all that these have started, by parents."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    found = [child.process.pid for child in children if child.process is not None]
    for pid in found:  # it grows meanwhile
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@contextlib.contextmanager
def paused(children: Sequence[Child]) -> Iterator[None]:
    with _handles(children) as processes:
        if not processes:
            raise NotMadeError("it did not run")
        with _stopped(processes):
            yield


@contextlib.contextmanager
def slowed(children: Sequence[Child], share: float) -> Iterator[None]:
    """The processes run for this share of the time."""

    def turns(ended: threading.Event) -> None:
        with _handles(children) as processes:
            for _ in range(TURNS):
                with _stopped(processes):
                    ended.wait(TURN_SECONDS * (1 - share))
                ended.wait(TURN_SECONDS * share)

    with _repeated(turns):
        yield


@contextlib.contextmanager
def full_disk(child: Child) -> Iterator[None]:
    """No file of the shard may grow: every write fails with EFBIG."""

    def limit(bytes_max: int | None) -> None:
        if child.process is not None:
            with contextlib.suppress(OSError):
                hard = resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE)[1]
                soft = hard if bytes_max is None else bytes_max
                resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def turn(ended: threading.Event) -> None:
        limit(0)
        ended.wait(TURN_SECONDS)

    limit(0)
    try:
        with _repeated(turn):
            yield
    finally:
        limit(None)


@contextlib.contextmanager
def lost_store(store: Path) -> Iterator[None]:
    away = store.with_name(AWAY.format(store.name))
    if not store.is_dir() or away.exists():
        raise NotMadeError("its folder was not there")
    store.rename(away)
    try:
        yield
    finally:
        put_back(store)


def put_back(store: Path) -> None:
    """Give a lost store its name again, unless the shard has begun another one meanwhile."""
    away = store.with_name(AWAY.format(store.name))
    if store.exists():
        raise FileExistsError(errno.EEXIST, f"the shard has begun a new one; the old is {away}")
    away.rename(store)


def put_back_all(stores: Path) -> None:
    """The same for those that the kill of an `atoll run` has left away."""
    for away in stores.glob(AWAY.format("*")):
        with contextlib.suppress(FileExistsError):
            put_back(away.with_name(away.stem.removeprefix(".")))


def empty(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir()


def flip_byte(store: Path) -> None:
    """Change one bit in the middle of the newest file."""
    path = newest(store)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def truncate(store: Path) -> None:
    """Cut the newest file off in its middle."""
    path = newest(store)
    os.truncate(path, path.stat().st_size // 2)


def newest(store: Path) -> Path:
    """The newest object, or the newest entry of the log; raises NotMadeError."""
    files = [path for folder in NEWEST_OF for path in (store / folder).glob("[!.]*")]
    sized = [(path.stat().st_mtime_ns, path) for path in files if path.stat().st_size]
    if not sized:
        raise NotMadeError("its folder has no object and no entry")
    return max(sized)[1]


@contextlib.contextmanager
def _repeated(turn: Callable[[threading.Event], None]) -> Iterator[None]:
    """One turn after the other, in a thread, until the context ends."""
    ended = threading.Event()

    def turns() -> None:
        while not ended.is_set():
            turn(ended)

    thread = threading.Thread(target=turns, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _handles(children: Sequence[Child]) -> Iterator[list[int]]:
    """A handle for each process: another one that gets its number later is not meant."""
    found: list[int] = []
    with contextlib.ExitStack() as open_:
        for pid in processes_of(children):
            with contextlib.suppress(ProcessLookupError):
                found.append(os.pidfd_open(pid))
                open_.callback(os.close, found[-1])
        yield found


@contextlib.contextmanager
def _stopped(handles: Sequence[int]) -> Iterator[None]:
    try:
        _send(handles, signal.SIGSTOP)
        yield
    finally:
        _send(handles, signal.SIGCONT)


def _send(handles: Sequence[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
