"""The event tape: one JSON line per commit and event, each with `run` and `time` (rule 29).

With recorded offers, the tape is enough to recompute every commit bit for bit (numbers/replay).
It is for people and tools: no decision is taken from it, and no trouble with it delays a commit.

A line is written after its entry of the log is durable, so a kill in between leaves a commit that
is on no tape. The next process looks for such commits (`commits`) and writes their lines.
"""

import errno
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from atoll_syncer.storage.store import StoreError, make_folder, storage_errors, sync_folder

WAITING_LINES_MAX = 4096
READ_BYTES = 64 << 10


class Tape:
    """Appends records to a JSON Lines file.

    While the disk is full, lines wait in memory, and every later write tries again. Beyond
    WAITING_LINES_MAX the oldest are dropped and counted. A line is written whole or not at all.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self.clock = clock
        self.dropped_lines = 0
        self._handle: int | None = None
        self._waiting: deque[bytes] = deque()

    def open(self) -> None:
        """Open the file; cut off a line that a killed process left half-written."""
        with storage_errors(self.path):
            make_folder(self.path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(self.path, flags, 0o644)
            os.ftruncate(self._handle, _whole_lines_end(self._handle))
            sync_folder(self.path.parent)

    @property
    def waiting_lines(self) -> int:
        """Lines that wait for room on the disk."""
        return len(self._waiting)

    def commits(self, lowest: Mapping[int, int]) -> set[tuple[int, int, int]]:
        """Slice, version and epoch of the tape's last commits, in any thread.

        Reads backwards until each slice of `lowest` has shown a version below the one there, or
        to the beginning. Raises StoreUnavailable.
        """
        assert self._handle is not None, "open() first"
        found, above = set[tuple[int, int, int]](), set(lowest)
        with storage_errors(self.path):
            for line in _backwards(self._handle):
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
        if self._handle is not None:
            with storage_errors(self.path):
                os.fsync(self._handle)

    def write(self, run: str, record: Mapping[str, object]) -> StoreError | None:
        """Append one record with `run` and `time` (Unix seconds); returns why it waits, if so."""
        line = json.dumps(_plain({"run": run, "time": self.clock(), **record}), allow_nan=False)
        self._waiting.append(line.encode() + b"\n")
        return self.flush()

    def flush(self) -> StoreError | None:
        """Try to write what waits; returns the error, if any, that keeps it waiting."""
        assert self._handle is not None, "open() first"
        try:
            with storage_errors(self.path):
                while self._waiting:
                    self._append(self._handle, self._waiting[0])
                    self._waiting.popleft()
        except StoreError as trouble:
            while len(self._waiting) > WAITING_LINES_MAX:
                self._waiting.popleft()
                self.dropped_lines += 1
            return trouble
        return None

    def close(self) -> None:
        """Try once more, and close the file; lines that cannot be written are lost."""
        if self._handle is not None:
            self.flush()
            os.close(self._handle)
            self._handle = None

    def _append(self, handle: int, line: bytes) -> None:
        """Write the whole line, or cut off what was written of it. Raises OSError."""
        end = os.fstat(handle).st_size
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(handle, end)
            raise


def _whole_lines_end(handle: int) -> int:
    """Where the last whole line ends."""
    end = os.fstat(handle).st_size
    while end:
        start = max(0, end - READ_BYTES)
        cut = os.pread(handle, end - start, start).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0


def _backwards(handle: int) -> Iterator[bytes]:
    """The lines of a file, last first."""
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
        record = json.loads(line)
        if record["event"] != "commit":
            return None
        return record["slice"], record["version"], record["epoch"]
    except (ValueError, KeyError, TypeError):
        return None  # not a line of ours


def _plain(value: object) -> object:
    """The value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
