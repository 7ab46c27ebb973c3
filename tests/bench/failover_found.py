"""What followed each fault of a shard, from the tapes, logs and telemetry of a run folder."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from atoll_operator.local.folder.run_files import read_lines, read_tapes

BEFORE_SECONDS = 5.0  # the first fault: all is quiet
AFTER_SECONDS = 1.0  # behind a fault's effect: not quiet yet
GRACE_MORE_SECONDS = 0.5

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Of the process that had the shard; Unix seconds."""

    kind: str
    shard: int
    began: float
    ended: float
    lasts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """See bench.failover. `steps` of all learners meanwhile, and how many in quiet."""

    fault: str
    shard: int
    commit_seconds: float
    healed_seconds: float | None
    gap_seconds: float
    gap_bound: float
    steps: int
    steps_expected: float
    terms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Of a whole run, each list by time: commits, when terms began, and steps; by shard or slot."""

    commits: Mapping[int, Sequence[Line]]
    terms: Mapping[int, Sequence[float]]
    steps: Mapping[str, Sequence[float]]

    def times(self, shard: int) -> list[float]:
        return [float(each["time"]) for each in self.commits[shard]]


def effects(out: Path, faults: Sequence[Fault]) -> list[Effect]:
    """Of each fault of a run that is over."""
    return followed(observed(out), sorted(faults, key=lambda each: each.began))


def observed(out: Path) -> Observed:
    """What a run folder says."""
    commits: dict[int, list[Line]] = defaultdict(list)
    for line in chain.from_iterable(read_tapes(out)):
        if line.get("event") == "commit":
            commits[line["shard"]].append(line)
    terms: dict[int, dict[int, float]] = defaultdict(dict)  # by epoch: it may listen again
    for path in out.glob("logs/shard-*.log"):
        for line in read_lines(path):
            if line.get("event") == "serving":
                moment = datetime.fromisoformat(line["timestamp"]).timestamp()
                terms[line["shard"]].setdefault(line["epoch"], moment)
    steps = {
        path.stem: sorted(
            float(line["time"]) for line in read_lines(path) if line.get("step_seconds")
        )
        for path in out.glob("learners/*.jsonl")
    }
    return Observed(
        commits={n: sorted(each, key=lambda x: float(x["time"])) for n, each in commits.items()},
        terms={n: sorted(each.values()) for n, each in terms.items()},
        steps=steps,
    )


def followed(run: Observed, faults: Sequence[Fault]) -> list[Effect]:
    """The effects, in the same order; `faults` are by time, and each is over before the next."""
    new = [_next_commit(run, each) for each in faults]
    busy = [
        (each.began, max(each.ended, at["time"]) + AFTER_SECONDS)
        for each, at in zip(faults, new, strict=True)
    ]
    rate = _quiet_rate(run, busy)
    grace = _longest_grace(run, busy)
    found = []
    for number, (fault, first) in enumerate(zip(faults, new, strict=True)):
        until = float(first["time"])
        later = faults[number + 1 :]
        following = [each.began for each in later if each.shard == fault.shard]
        before_next = min((each.began for each in later), default=float("inf"))
        others = {n: run.times(n) for n in run.commits if n != fault.shard}
        quiet = max(gap for times in others.values() for gap in _quiet_gaps(times, busy))
        terms = run.terms.get(fault.shard, ())
        seconds = until - fault.began
        healed = until - fault.ended if fault.lasts and fault.ended < until else None
        found.append(
            Effect(
                fault=fault.kind,
                shard=fault.shard,
                commit_seconds=seconds,
                healed_seconds=healed,
                gap_seconds=max(
                    _gap(each, fault.began, until, before_next) for each in others.values()
                ),
                gap_bound=max(2 * quiet, grace + GRACE_MORE_SECONDS),
                steps=sum(_count(each, fault.began, until) for each in run.steps.values()),
                steps_expected=rate * seconds,
                terms=_count(terms, fault.began, min(following, default=float("inf"))),
            )
        )
    return found


def _next_commit(run: Observed, fault: Fault) -> Line:
    """The first of a later term, or the first after the fault's end."""
    lines = run.commits[fault.shard]
    before = max((x["epoch"] for x in lines if x["time"] <= fault.began), default=0)
    after = (x for x in lines if x["time"] > fault.began)
    return next(x for x in after if x["epoch"] > before or x["time"] > fault.ended)


def _gap(times: Sequence[float], start: float, end: float, before: float) -> float:
    """The longest between two commits of which some is inside, as far as it is `before`."""
    part = times[max(0, bisect_right(times, start) - 1) : bisect_left(times, end) + 1]
    return max((min(later, before) - earlier for earlier, later in pairwise(part)), default=0.0)


def _longest_grace(run: Observed, busy: Sequence[tuple[float, float]]) -> float:
    """Of the rounds that closed while nothing was wrong."""
    lines = [line for each in run.commits.values() for line in each]
    quiet = (x for x in lines if not any(start < x["time"] < end for start, end in busy))
    return max((float(x.get("grace_seconds", 0.0)) for x in quiet), default=0.0)


def _quiet_gaps(times: Sequence[float], busy: Iterable[tuple[float, float]]) -> list[float]:
    spans = list(busy)
    return [
        later - earlier
        for earlier, later in pairwise(times)
        if not any(earlier < end and later > start for start, end in spans)
    ]


def _quiet_rate(run: Observed, busy: Sequence[tuple[float, float]]) -> float:
    """Steps a second of all learners while nothing is wrong, until the last fault."""
    first = busy[0][0]
    spans = [(end, start) for (_, end), (start, _) in pairwise(busy) if start > end]
    spans.append((first - BEFORE_SECONDS, first))
    seconds = sum(end - start for start, end in spans)
    count = sum(_count(each, *span) for span in spans for each in run.steps.values())
    return count / seconds


def _count(times: Sequence[float], start: float, end: float) -> int:
    return bisect_right(times, end) - bisect_right(times, start)
