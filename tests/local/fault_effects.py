"""When the target of each fault of chaos.jsonl did again what it is for, from the tapes alone.

A shard commits, and a learner is merged: by the shard at the other end, if a link was hit; in its
next incarnation, if it was killed.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from atoll_operator.local.run_files import read_tapes

LAST: Final = 8  # merges of a learner before a fault: the newest of their incarnations was killed
Line = dict[str, Any]


def in_folder(out: Path, faults: Iterable[Line]) -> list[Line]:
    """The lines of chaos.jsonl of a run folder by time, each with `back_seconds`."""
    tape = chain.from_iterable(read_tapes(out))
    commits = [line for line in tape if line.get("event") == "commit" and not line.get("recovered")]
    commits.sort(key=lambda line: float(line["time"]))
    by_time = sorted(faults, key=lambda line: float(line["began"]))
    return [fault | {"back_seconds": back_seconds(fault, commits)} for fault in by_time]


def back_seconds(fault: Line, commits: Sequence[Line]) -> float | None:
    """From the end of a fault until its target did its work; None while it has not."""
    target = fault["target"]
    names = [target] if isinstance(target, str) else target
    shards = [int(name.split("-")[1]) for name in names if name.startswith("shard-")]
    learners = [name for name in names if not name.startswith("shard-")]
    work = [
        (line["time"], part.get("incarnation", 0))
        for line in commits
        if not shards or line["shard"] in shards
        for part in (line["participants"] if learners else [{}])
        if not learners or part["slot"] in learners
    ]
    killed = -1
    if learners and fault["fault"] == "kill":
        before = bisect_right(work, (fault["began"], math.inf))
        killed = max((number for _, number in work[max(0, before - LAST) : before]), default=-1)
    start = bisect_right(work, (fault["ended"], math.inf))
    again = (time for time, number in work[start:] if number > killed)
    return next((time - fault["ended"] for time in again), None)
