"""The event tape: one JSON line per commit and event, each with `run` and `time` (rule 29).

It may lie on the volume of the log, whose place it must not take. So it *rotates*: a file of
`bytes_max` bytes becomes the older one, `PATH.1`, and takes the place of the one before. And it
*gives way*: when that volume is full, the older file goes, and then what the newer one has. With
`bytes_max` 0 neither happens, and the one file has every line.
"""

import errno
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from atoll_protos import documents
from atoll_syncer.storage.files import StoreError, make_folder, storage_errors, sync_folder

WAITING_LINES_MAX = 4096
READ_BYTES = 64 << 10
BYTES_MAX = 256 << 20  # of one file, where nothing else is said
GIVEN_BYTES_MIN = 1 << 20  # less of the newer file would help nobody
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Tape:
    """While the disk is full, lines wait in memory, and every later write tries again.

    Beyond WAITING_LINES_MAX the oldest are dropped and counted. A line is whole or not there.
    """

    def __init__(self, path: Path, clock: Callable[[], float], bytes_max: int = BYTES_MAX) -> None:
        self.path, self.older = path, older_than(path)
        self.bytes_max = bytes_max  # of one file; 0: no limit
        self.clock = clock
        self.dropped_lines = 0
        self._handle: int | None = None
        self._waiting: deque[bytes] = deque()

    def open(self) -> None:
        """Open the newer file, to which another process may write meanwhile."""
        with storage_errors(self.path):
            make_folder(self.path.parent)
            self._open()
            sync_folder(self.path.parent)

    def begin(self) -> None:
        """Only this process writes from now on: cut off a line that is half-written."""
        with storage_errors(self.path):
            handle = self._open()  # again: it may have rotated
            os.ftruncate(handle, _whole_lines_end(handle))

    @property
    def waiting_lines(self) -> int:
        return len(self._waiting)

    def commits(self, lowest: Mapping[int, int]) -> set[tuple[int, int, int]]:
        """Slice, version and epoch of the tape's last commits, in any thread.

        Reads backwards until each slice of `lowest` has shown a version below the one there, or
        to the beginning. Raises StoreUnavailable.
        """
        found, above = set[tuple[int, int, int]](), set(lowest)
        with storage_errors(self.path), ExitStack() as stack:
            for line in _backwards(self._to_read(stack)):
                if not above:
                    break
                if b'"commit"' not in line:
                    continue
                record = _commit(line)
                if record is None:
                    continue
                found.add(record)
                if record[1] < lowest.get(record[0], 0):
                    above.discard(record[0])
        return found

    def sync(self) -> None:
        """Make what is written durable, in any thread. Raises StoreFull and StoreUnavailable."""
        with storage_errors(self.path), ExitStack() as stack:
            for handle in self._to_read(stack):
                os.fsync(handle)

    def give_way(self, full: str) -> int:
        """Free bytes on the volume of the path that found no room; how many. Never raises."""
        if not self.bytes_max or _device(Path(full)) != _device(self.path):
            return 0
        with suppress(OSError):
            byte_count = self.older.stat().st_size
            self.older.unlink()
            return byte_count
        with suppress(OSError):
            byte_count = self.path.stat().st_size
            if byte_count >= GIVEN_BYTES_MIN:
                os.truncate(self.path, 0)
                return byte_count
        return 0

    def write(self, run: str, record: Mapping[str, object]) -> StoreError | None:
        """Append one record with `run` and `time` (Unix seconds); returns why it waits, if so."""
        line = json.dumps(_plain({"run": run, "time": self.clock(), **record}), allow_nan=False)
        self._waiting.append(line.encode() + b"\n")
        return self.flush()

    def flush(self) -> StoreError | None:
        """Try to write what waits; returns the error, if any, that keeps it waiting."""
        try:
            with storage_errors(self.path):
                while self._waiting:
                    self._append(self._waiting[0])
                    self._waiting.popleft()
        except StoreError as trouble:
            while len(self._waiting) > WAITING_LINES_MAX:
                self._waiting.popleft()
                self.dropped_lines += 1
            return trouble
        return None

    def close(self) -> None:
        if self._handle is not None:
            self.flush()
            os.close(self._handle)
            self._handle = None

    def _to_read(self, stack: ExitStack) -> list[int]:
        """Both files, the newer first: one that is rotated meanwhile is read twice, not missed."""
        handles = list[int]()
        for path in (self.path, self.older):
            with suppress(FileNotFoundError):
                handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                stack.callback(os.close, handles[-1])
        return handles

    def _rotate(self) -> None:
        """Make the file the older one, and begin a new one. Raises OSError: call again."""
        with suppress(FileNotFoundError):  # renamed before, when there was no room for a new one
            self.path.rename(self.older)
        self._open()

    def _open(self) -> int:
        handle, before = os.open(self.path, FLAGS, 0o644), self._handle
        self._handle = handle
        if before is not None:
            os.close(before)
        return handle

    def _append(self, line: bytes) -> None:
        """Write the whole line, or cut off what was written of it. Raises OSError."""
        assert self._handle is not None, "open() first"
        end = os.fstat(self._handle).st_size
        if self.bytes_max and end and end + len(line) > self.bytes_max:
            self._rotate()
            end = 0
        handle = self._handle
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(handle, end)
            raise


def _whole_lines_end(handle: int) -> int:
    end = os.fstat(handle).st_size
    while end:
        start = max(0, end - READ_BYTES)
        cut = os.pread(handle, end - start, start).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0


def older_than(path: Path) -> Path:
    """Return the file before this one, if the tape has rotated."""
    return path.with_name(f"{path.name}.1")


def _device(path: Path) -> int | None:
    """Of the volume on which a path is, or would be."""
    for each in (path, *path.parents):
        with suppress(OSError):
            return each.stat().st_dev
    return None


def _backwards(handles: Iterable[int]) -> Iterator[bytes]:
    for handle in handles:
        start, rest = os.fstat(handle).st_size, b""
        while start:
            stop, start = start, max(0, start - READ_BYTES)
            first, *lines = (os.pread(handle, stop - start, start) + rest).split(b"\n")
            yield from reversed(lines)
            rest = first
        yield rest


def _commit(line: bytes) -> tuple[int, int, int] | None:
    """Slice, version and epoch of a line that tells of a commit."""
    try:
        record = documents.mapping(line)
        if record["event"] != "commit":
            return None
        found = record["slice"], record["version"], record["epoch"]
    except (ValueError, KeyError, TypeError):
        return None  # not a line of ours
    return found if all(type(each) is int for each in found) else None


def _plain(value: object) -> object:
    """Return the value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
