"""Files of a run folder for who looks from afar, and what is appended to them afterwards.

Only files of the list (`machines.sights`), and no links: neither a file nor the folder that it is
in. An appended file goes on where it was; one that was written anew comes anew.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.machines.sights import FILES
from atoll_protos.errors import SpecError

PIECE_BYTES: Final = 256 << 10
FILES_MAX: Final = 4096
LOG_BYTES_MAX: Final = 64 << 20  # of one log: its end
ALL_BYTES_MAX: Final = 512 << 20  # of all files of a sight, at first
APPENDED: Final = (".log", ".jsonl")


@dataclass(slots=True)
class Sent:
    """How far a file is sent: of which file, and what was its end."""

    inode: int
    position: int
    changed: int = 0  # mtime, in ns


@dataclass(slots=True, kw_only=True)
class FileSight:
    """What one caller has of the files. `tail`: last lines of each log at first; None: all."""

    out: Path
    sight: int
    tail: int | None = None
    _sent: dict[str, Sent] = field(default_factory=dict)

    def check(self) -> None:
        """Raises SpecError for more than is sent."""
        total = 0
        for path in self._paths():
            with suppress(OSError):
                size = path.stat(follow_symlinks=False).st_size
                total += min(size, LOG_BYTES_MAX) if path.suffix == ".log" else size
        if total > ALL_BYTES_MAX:
            problem = f"it has {total >> 20} MiB to look at, and {ALL_BYTES_MAX >> 20} may be sent"
            remedy = f"look at the folder on the server's machine: {self.out}"
            raise SpecError("atoll", problem, remedy)

    def pieces(self) -> Iterator[pb.FilePiece]:
        """What has come since the last time."""
        for path in self._paths():
            with suppress(OSError), _opened(path) as file:
                yield from self._grown(str(path.relative_to(self.out)), path.suffix, file)

    def _paths(self) -> list[Path]:
        found = [path for pattern in FILES[self.sight] for path in sorted(self.out.glob(pattern))]
        return [path for path in found[:FILES_MAX] if not path.parent.is_symlink()]

    def _grown(self, name: str, suffix: str, file: BinaryIO) -> Iterator[pb.FilePiece]:
        now = os.fstat(file.fileno())
        had = self._sent.get(name)
        same = had is not None and had.inode == now.st_ino
        if had is not None and same and suffix in APPENDED and had.position <= now.st_size:
            start, begins = had.position, False
        elif (
            had is not None
            and same
            and (had.position, had.changed)
            == (
                now.st_size,
                now.st_mtime_ns,
            )
        ):
            return
        else:
            start, begins = self._start(suffix, file, now.st_size), True
        file.seek(start)
        sent = self._sent[name] = Sent(now.st_ino, start, now.st_mtime_ns)
        left_out = start if begins else 0
        while begins or sent.position < now.st_size:
            data = file.read(min(PIECE_BYTES, now.st_size - sent.position))
            if not (data or begins):
                return
            sent.position += len(data)
            yield pb.FilePiece(
                name=name,
                data=data,
                begins=begins,
                age_seconds=max(0.0, time.time() - now.st_mtime),
                left_out_bytes=left_out,
            )
            begins, left_out = False, 0

    def _start(self, suffix: str, file: BinaryIO, size: int) -> int:
        if suffix != ".log":
            return 0
        at = max(0, size - LOG_BYTES_MAX)
        file.seek(at)
        at += len(file.readline()) if at else 0  # a line that the limit cuts is left out
        if self.tail is None:
            return at
        begins = deque[int](maxlen=self.tail)
        for line in file:
            begins.append(at)
            at += len(line)
        return begins[0] if begins else at


def _opened(path: Path) -> BinaryIO:
    """Raises OSError, also for what is no plain file."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path} is no plain file")
    return open(number, "rb")
