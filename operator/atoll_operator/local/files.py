"""The files of a run folder, written and followed; a full disk is told once and ends no run.

The training does not depend on any of these files: commits wait until their shard can write again
(docs/operating.md, Storage). So a file that cannot be written is tried again, or left out.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WAITING_BYTES_MAX: Final = 1 << 20  # of what a disk without room takes later


class Files:
    """Files that are written as a whole, in the folder `out`; `say` shows one line to the user."""

    def __init__(self, out: Path, say: Callable[[str], None]) -> None:
        self.out, self.say = out, say
        self._failed: set[str] = set()

    def write(self, name: str, text: str) -> bool:
        """Write one at once: a reader sees the old one or the new one. Returns whether it is."""
        try:
            write_whole(self.out / name, text)
        except OSError as error:
            if not self._failed:
                self.say(
                    f"{self.out}: {error.strerror} ({name}); the run continues, commits wait, and"
                    " what cannot be written is tried again"
                )
            self._failed.add(name)
            return False
        if self._failed == {name}:
            self.say(f"{self.out}: {name} is written again")
        self._failed.discard(name)
        return True

    def write_json(self, name: str, value: Any) -> bool:
        """The same for a value as JSON."""
        return self.write(name, json.dumps(value, indent=2) + "\n")


class Appended:
    """Bytes that are appended to a file, in their order, when the disk has room for them.

    What waits has at most WAITING_BYTES_MAX; what comes after that is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = bytearray()

    def add(self, piece: bytes) -> None:
        """One more piece, which is written whole or not at all."""
        if len(self._waiting) + len(piece) <= WAITING_BYTES_MAX:
            self._waiting += piece

    def flush(self) -> OSError | None:
        """Write what waits, as far as the disk takes it; returns why it does not take all."""
        if not self._waiting:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                while self._waiting:
                    del self._waiting[: file.write(self._waiting)]
        except OSError as error:
            return error
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a file at once. Raises OSError, and then leaves the old one and takes no room."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def size_of(path: Path | None) -> int:
    """Bytes of a file, 0 if there is none."""
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0


def shown(path: Path) -> str:
    """A path as a person in this folder would type it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@dataclass(slots=True)
class Growing:
    """A file to which others append; `rest` is the begun line at its end.

    It is kept as bytes, since the end of what is there may lie within a character.
    """

    path: Path
    position: int = 0
    rest: bytes = b""

    def read(self) -> Iterator[str]:
        """The whole lines that have come since the last time."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            for raw in file:
                self.position += len(raw)
                line = self.rest + raw
                self.rest = b"" if line.endswith(b"\n") else line
                if not self.rest:
                    yield text_of(line)


def text_of(line: bytes) -> str:
    """A line without its end."""
    return line.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
