"""chaos.jsonl: what followed each fault, from the tapes and the learners' telemetry alone.

A fault lasts from `began` to `ended`, and its effect until its target is back: a shard commits, a
learner is merged (by the shard at the other end, if a link was hit; in its next incarnation, if it
was killed). Tokens that were late or lost meanwhile count for one fault, the newest.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Final

from atoll_operator.local.chaos.plan import FaultWord
from atoll_operator.local.folder.run_files import read_lines, read_tapes
from atoll_operator.local.show.run_summary import conserve

NEAR_SECONDS: Final = 60.0  # before a fault, and after its effect: where commits are looked at
LAST: Final = 8  # merges of a learner before a fault: the newest of their incarnations was killed
Line = dict[str, Any]


@dataclass(slots=True)
class FaultEffect:
    """A fault's line, and what is found of it. Times are Unix seconds."""

    line: Line
    back_at: float | None = None
    tokens: dict[str, float] = field(default_factory=lambda: {"late": 0.0, "lost": 0.0})

    @property
    def learner(self) -> str:
        target = self.line["target"]
        name = target if isinstance(target, str) else target[0]
        return "" if name.startswith("shard-") else name

    @property
    def shard(self) -> int | None:
        target = self.line["target"]
        name = target if isinstance(target, str) else target[1]
        return int(name.split("-")[1]) if name.startswith("shard-") else None

    @property
    def until(self) -> float:
        return max(float(self.line["ended"]), self.back_at or 0.0)


def in_folder(out: Path, faults: Iterable[Line]) -> list[Line]:
    """The lines of chaos.jsonl of a run folder, each with what followed."""
    learners = [line for path in out.glob("learners/*.jsonl") for line in read_lines(path)]
    tape = [*chain.from_iterable(read_tapes(out))]
    return with_effects(faults, learners, tape)


def with_effects(
    faults: Iterable[Line], learners: Sequence[Line], tape: Sequence[Line]
) -> list[Line]:
    """The lines of chaos.jsonl by time, each with what followed."""
    found = [FaultEffect(line) for line in sorted(faults, key=lambda line: float(line["began"]))]
    commits = sorted(
        (each for each in tape if each.get("event") == "commit" and not each.get("recovered")),
        key=lambda each: float(each["time"]),
    )
    times = [each["time"] for each in commits]
    work = _work(commits)
    for effect in found:
        effect.back_at = _back_at(effect, work.get((effect.learner, effect.shard), ()))
    _count_late(found, learners)
    _count_lost(found, learners, tape)
    run = {"run": commits[-1]["run"]} if commits else {}
    return [each.line | run | _said(each, commits, times) for each in found]


def sums(lines: Sequence[Line]) -> Line:
    """The field `chaos` of summary.json."""

    def most(name: str) -> float:
        return max((line[name] or 0.0 for line in lines), default=0.0)

    return {
        "faults": len(lines),
        "not_made": sum("not_made" in line for line in lines),
        "not_back": sum(line["back_seconds"] is None for line in lines),
        "back_seconds": sum(line["back_seconds"] or 0.0 for line in lines),
        "back_seconds_max": most("back_seconds"),
        "gap_seconds_before": most("gap_seconds_before"),
        "gap_seconds_after": most("gap_seconds_after"),
        "tokens_late": sum(line["tokens_late"] for line in lines),
        "tokens_lost": sum(line["tokens_lost"] for line in lines),
    }


def _said(effect: FaultEffect, commits: Sequence[Line], times: Sequence[float]) -> Line:
    began, ended, back_at = effect.line["began"], effect.line["ended"], effect.back_at
    first = bisect_left(times, began - NEAR_SECONDS)
    last = bisect_right(times, effect.until + NEAR_SECONDS)
    others = _by_shard(effect, commits[first:last])
    return {
        "back_seconds": None if back_at is None else back_at - ended,
        "gap_seconds_before": _gap(others, began - NEAR_SECONDS, began, whole=True),
        "gap_seconds_after": _gap(others, began, effect.until, whole=False),
        "tokens_late": round(effect.tokens["late"]),
        "tokens_lost": round(effect.tokens["lost"]),
    }


Work = Sequence[tuple[float, int]]  # when it was merged, and of which incarnation of its learner


def _work(commits: Iterable[Line]) -> Mapping[tuple[str, int | None], Work]:
    """By learner and shard, as `FaultEffect` has them, what was merged; of a shard its commits."""
    found: dict[tuple[str, int | None], list[tuple[float, int]]] = defaultdict(list)
    for each in commits:
        found["", each["shard"]].append((each["time"], 0))
        for part in each["participants"]:
            for shard in (None, each["shard"]):
                found[part["slot"], shard].append((each["time"], part["incarnation"]))
    return found


def _back_at(effect: FaultEffect, work: Work) -> float | None:
    """When the target did again what it is for; after a kill, in a new incarnation."""
    start = bisect_right(work, (effect.line["ended"], math.inf))
    known = -1
    if effect.learner and effect.line["fault"] == FaultWord.KILL:
        before = bisect_right(work, (effect.line["began"], math.inf))
        known = max((work[place][1] for place in range(max(0, before - LAST), before)), default=-1)
    new = (work[place][0] for place in range(start, len(work)) if work[place][1] > known)
    return next(new, None)


def _by_shard(effect: FaultEffect, commits: Sequence[Line]) -> list[list[float]]:
    """The times of the others' commits: of other shards, or those that merge other learners."""
    found: dict[int, list[float]] = defaultdict(list)
    for each in commits:
        if effect.learner:
            other = any(part["slot"] != effect.learner for part in each["participants"])
        else:
            other = each["shard"] != effect.shard
        if other:
            found[each["shard"]].append(each["time"])
    return [*found.values()]


def _gap(
    by_shard: Sequence[Sequence[float]], start: float, end: float, *, whole: bool
) -> float | None:
    """The largest gap between commits of a shard from start to end; `whole`: it ends inside."""
    gaps = []
    for times in by_shard:
        first = max(0, bisect_right(times, start) - (not whole))
        last = bisect_right(times, end) if whole else bisect_left(times, end) + 1
        gaps += [later - earlier for earlier, later in pairwise(times[first:last])]
    return max(gaps, default=None)


def _count_late(found: Sequence[FaultEffect], learners: Sequence[Line]) -> None:
    """Late tokens count for the newest fault in whose time a learner has said so."""
    slices = {(x["shard"], x["slice"]) for line in learners for x in line.get("adopted", ())}
    begins = [each.line["began"] for each in found]
    ends = [*accumulate((each.until for each in found), max)]  # of it and all before
    for line in learners:
        late = sum(each["late"] for each in line.get("adopted", ()))
        number = bisect_left(begins, line["time"]) if late else 0
        while number and ends[number - 1] >= line["time"]:
            number -= 1
            if found[number].until >= line["time"]:
                found[number].tokens["late"] += late / len(slices)
                break


def _count_lost(
    found: Sequence[FaultEffect], learners: Sequence[Line], tape: Sequence[Line]
) -> None:
    """A learner died between its last line and the first of its next incarnation."""
    seen: dict[tuple[str, int], tuple[float, float]] = {}
    for line in learners:
        name = line["slot"], line["incarnation"]
        first, last = seen.get(name, (line["time"], line["time"]))
        seen[name] = min(first, line["time"]), max(last, line["time"])
    law = conserve(learners, tape)
    slices = len({key[2:] for key in law}) or 1
    for key, tokens in law.items():
        slot, incarnation = key[:2]
        died = seen[slot, incarnation][1]
        following = [x[0] for (s, i), x in seen.items() if s == slot and i > incarnation]
        born = min(following, default=float("inf"))
        those = [each for each in found if each.line["began"] <= born and died <= each.until]
        if tokens.lost and those:
            cause = min(those, key=lambda each: _distance(each, slot, died))
            cause.tokens["lost"] += tokens.lost / slices


def _distance(effect: FaultEffect, slot: str, died: float) -> tuple[bool, bool, float]:
    """How far a fault is from being the cause of a learner's death."""
    return (
        effect.learner != slot,
        effect.line["fault"] != FaultWord.KILL,
        abs(effect.line["began"] - died),
    )
