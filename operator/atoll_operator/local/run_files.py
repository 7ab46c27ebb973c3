"""The files of a run folder, written and followed; a full disk is reported once and ends no run."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from atoll_protos import documents

MANIFEST_FILE = "manifest.yaml"  # in the run folder: what was trained
RUN_FILE = "run.json"  # in the run folder: what all processes know, with the present length
STORES_FOLDER = "commits"  # in the run folder: the shards' state, by number
SLOTS_FILE = "slots.json"  # in the run folder: the job's learners
LENGTH_FILE = "length.json"  # in the run folder: how long the job is at present
STATUS_FILE = "status.json"
CHECKPOINTS_FOLDER = "checkpoints"  # in the run folder
RECORD_FOLDER = "record"  # in the run folder: what merges were made from
ASKED_FILE = "checkpoint.txt"  # in the run folder: the step of one that somebody asks for
CHAOS_FILE = "chaos.jsonl"  # in the run folder: the faults of `--chaos-plan`
MACHINES_FOLDER = "machines"  # in the run folder of `atoll serve`: for its user alone
CREDENTIALS_FOLDER = "machines/tls"  # there: those of the processes on its machine
OBSERVER_FOLDER = "machines/tls/observer"  # there: with which its shards are asked
STORE_FILE = "store.txt"  # in the run folder: the run's own folder in a bucket, if it is in one

WAITING_BYTES_MAX: Final = 1 << 20  # of what a disk without room takes later
Say = Callable[[str], None]  # shows one line to the user


class Files:
    """Files that are written as a whole, in the folder `out`; `say` shows one line to the user."""

    def __init__(self, out: Path, say: Say) -> None:
        self.out, self.say = out, say
        self._failed: set[str] = set()

    def write(self, name: str, text: str) -> bool:
        """Write one at once: a reader sees the old one or the new one. Returns whether it is."""
        try:
            write_whole(self.out / name, text)
        except OSError as error:
            if not self._failed:
                rest = "the run continues, commits wait, and what cannot be written is tried again"
                self.say(f"{self.out}: {error.strerror} ({name}); {rest}")
            self._failed.add(name)
            return False
        if self._failed == {name}:
            self.say(f"{self.out}: {name} is written again")
        self._failed.discard(name)
        return True

    def write_json(self, name: str, value: Any) -> bool:
        return self.write(name, json.dumps(value, indent=2) + "\n")


class Appended:
    """Bytes appended to a file when the disk has room; what is above the limit is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = bytearray()

    def add(self, piece: bytes) -> None:
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
    """Write a file at once, for this user alone.

    Raises OSError, and then leaves the old one and takes no room.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.touch(0o600)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def size_of(path: Path | None) -> int:
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0


def shown(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):  # the current folder may be deleted
        return str(path.relative_to(Path.cwd()))
    return str(path)


def continued_by(out: Path) -> str:
    """Return the command that goes on with the run in a folder, as it began."""
    if (out / MACHINES_FOLDER).exists():
        return f"atoll serve {shown(out)}"
    return f"atoll run {shown(out)} --resume"


@dataclass(slots=True)
class Growing:
    """A file to which others append; `rest` is the begun line at its end, as bytes."""

    path: Path
    position: int = 0
    rest: bytes = b""

    def read(self) -> Iterator[str]:
        """Yield the whole lines that have come since the last time."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            for raw in file:
                self.position += len(raw)
                line = self.rest + raw
                self.rest = b"" if line.endswith(b"\n") else line
                if not self.rest:
                    yield text_of(line)

    def read_json(self) -> Iterator[dict[str, Any]]:
        """Yield the same as JSON; a line that a kill has cut short is left out."""
        for text in self.read():
            with contextlib.suppress(ValueError):
                yield documents.mapping(text)


def text_of(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")


def read_lines(path: Path, start: int = 0) -> list[dict[str, Any]]:
    return [*Growing(path, start).read_json()] if path.exists() else []


def read_tapes(out: Path) -> list[list[dict[str, Any]]]:
    """Return the lines of each shard's tape, by shard.

    A process that wakes when another one has its shard may write a commit that the tape has.
    """
    return [_once(read_lines(path)) for path in sorted(out.glob("syncer/*.tape.jsonl"))]


def of_last_run(tape: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take a shard's lines since the present run began; those before are of runs that are lost."""
    runs = [(at, line["run"]) for at, line in enumerate(tape) if line.get("event") == "run"]
    began = next((at for at, run in runs if run == runs[-1][1]), 0)
    return tape[began:]


def ends_of_starts(tape: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the last line of each process of a shard: their counts of bytes begin with it."""
    for line, following in pairwise([*tape, {"bytes_up": 0, "bytes_down": 0}]):
        up, down = line["bytes_up"], line["bytes_down"]
        if following["bytes_up"] < up or following["bytes_down"] < down:
            yield line


def runs_of(tape: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How each run of a folder began, by a tape's lines: more than one where all was lost."""
    first: dict[str, dict[str, Any]] = {}
    for line in tape:
        if line.get("event") == "run":
            first.setdefault(line["run"], line)
    return [*first.values()]


def _once(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    commits = set[tuple[int, int, int]]()
    found = []
    run = ""
    for line in lines:
        if line.get("event") == "run" and line["run"] != run:
            run = line["run"]
            commits.clear()  # where all was lost, numbers begin again
        if line.get("event") == "commit":
            commit = line["slice"], line["version"], line["epoch"]
            if commit in commits:
                continue
            commits.add(commit)
        found.append(line)
    return found
