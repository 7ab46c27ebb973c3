"""The event tape: one JSON line per commit and event, each with `run` and `time` (rule 29).

With recorded offers, the tape is enough to recompute every commit bit for bit (numbers/replay).
It is for people and tools: no decision is taken from it, and no trouble with it delays a commit.
"""

import errno
import json
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from atoll_syncer.storage.store import StoreError, storage_errors

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
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(self.path, flags, 0o644)
            os.ftruncate(self._handle, _whole_lines_end(self._handle))

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


def _plain(value: object) -> object:
    """The value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
