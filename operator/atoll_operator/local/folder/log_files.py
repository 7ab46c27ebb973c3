"""The processes of a run folder: their logs, line by line, and how its shards are reached.

A process that is started again appends to its file.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll_operator.local.folder.run_files import OBSERVER_FOLDER, RUN_FILE, Growing, text_of
from atoll_operator.local.folder.run_lock import is_run
from atoll_protos.errors import SpecError
from atoll_protos.names import SLOT_PATTERN
from atoll_protos.network.addresses import OR

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
    found: dict[int, list[str]] = {}
    for row in _rows(out):
        if row["role"] == "shard":
            found.setdefault(row["shard"], []).append(row["endpoint"])
    return [OR.join(each) for each in found.values()]


def observer_in(out: Path) -> str:
    """The credentials with which shards of `atoll serve` are asked; empty: plain text."""
    folder = out / OBSERVER_FOLDER
    return str(folder) if folder.is_dir() else ""


def exporting(out: Path, target: str) -> list[str]:
    """The program that takes the model from the shards of a run; `target` -: as a tar."""
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
