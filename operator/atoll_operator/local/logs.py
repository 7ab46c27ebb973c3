"""The logs of a run folder, line by line, through restarts of its processes.

A process that is started again appends to its file, so following a file follows all starts.
"""

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll_operator.local.files import Growing, text_of
from atoll_operator.local.folder import is_run
from atoll_operator.local.plan import RUN_FILE
from atoll_protos.errors import SpecError

LOOK_SECONDS = 0.2  # files of all kinds of file systems can be looked at, few can tell of a change


def holds_run(out: Path) -> bool:
    """Whether a folder is one that `atoll run` writes, or has written."""
    return (out / RUN_FILE).is_file() or (out / "logs").is_dir()


def lines(out: Path, process: str, *, tail: int | None, follow: bool) -> Iterator[tuple[str, str]]:
    """Pairs of a process and a line of its log; `process` empty: all, one after another.

    The slot of a learner of several hosts stands for all of these.

    Begins with the last `tail` lines of each (None: all). With `follow` it goes on with what is
    written, in the order in which it comes, until the run is over. Raises SpecError for a process
    that the run does not have.
    """
    known = processes_of(out)
    wanted = {process, *_hosts(out, process)}
    if process and wanted.isdisjoint(known):
        has = f"it has {', '.join(known)}" if known else "it has none yet"
        raise SpecError(process, f"is no process of the run in {out}", has)
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
    """The names of the processes of a run, also of those that have written nothing yet."""
    names = {path.stem for path in (out / "logs").glob("*.log")}
    return sorted(names | set(map(_name, _rows(out))))


def _rows(out: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads((out / "processes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(found)


def _hosts(out: Path, slot: str) -> list[str]:
    """The names of the hosts of a learner that has several."""
    return [_name(row) for row in _rows(out) if row.get("slot") == slot and "host" in row]


def _name(row: dict[str, Any]) -> str:
    """The name of a process in a row of processes.json."""
    if "slot" not in row:
        return f"shard-{row['shard']}"
    return f"{row['slot']}-{row['host']}" if "host" in row else str(row["slot"])
