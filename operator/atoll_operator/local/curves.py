"""The curves of a run, from the lines that its processes write; pure.

A curve is a series of points over the job's tick. They are a function of the lines alone, so a
new `atoll run` in the folder draws the same curves from its beginning:

    SLOT       loss, tokens_per_second    of one learner: the mean over its steps in a tick
    held-out   loss                       of the shared parameters, as the evaluator measured it
    job        tokens, commits            that were trained and made so far
               goodput                    share of these tokens that commits have merged so far
               learners                   whose work was in the newest commit
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

HELD_OUT, JOB = "held-out", "job"

Line = dict[str, Any]


class Writer(StrEnum):
    """Who wrote a line."""

    LEARNER = "learner"
    SHARD = "shard"
    EVALUATOR = "evaluator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value of a curve; `time` is in Unix seconds."""

    series: str
    tag: str
    tick: int
    value: float
    time: float


@dataclass(slots=True)
class Mean:
    """The steps of a learner in one tick, which more may follow."""

    tick: int
    time: float = 0.0
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def points(self, slot: str) -> Iterator[Point]:
        """What a tick comes to."""
        known = {
            "loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else None,
        }
        for tag, value in known.items():
            if value is not None:
                yield Point(series=slot, tag=tag, tick=self.tick, value=value, time=self.time)


@dataclass(slots=True)
class Curves:
    """Lines come in the order of their times; a tick's points come when it is over."""

    means: dict[str, Mean] = field(default_factory=dict)  # by slot
    slices: set[tuple[int, int]] = field(default_factory=set)
    tick: int = 0
    trained: int = 0
    merged: int = 0  # over all slices
    commits: int = 0

    def feed(self, writer: Writer, line: Line) -> list[Point]:
        """The points that a line brings."""
        if writer is Writer.LEARNER and "t_m" in line:
            return list(self._step(line))
        if writer is Writer.SHARD and line.get("event") == "commit":
            return list(self._commit(line))
        if writer is Writer.EVALUATOR and line.get("loss") is not None:
            tick, value, time = line["tick"], line["loss"], line["time"]
            return [Point(series=HELD_OUT, tag="loss", tick=tick, value=value, time=time)]
        return []

    def rest(self) -> list[Point]:
        """The points of the ticks that are not over, when no line follows."""
        found = [point for slot, mean in self.means.items() for point in mean.points(slot)]
        if self.means and self.commits:
            tick = max(self.tick, *(mean.tick for mean in self.means.values()))
            time = max(mean.time for mean in self.means.values())
            found += self._totals(tick, time)
        self.means.clear()
        return found

    @property
    def goodput(self) -> float | None:
        """The share of the tokens that is merged so far; None before the first commit."""
        if not (self.trained and self.commits):
            return None
        return self.merged / len(self.slices) / self.trained

    def _totals(self, tick: int, time: float) -> Iterator[Point]:
        values = {"tokens": float(self.trained)}
        if (goodput := self.goodput) is not None:
            values["goodput"] = goodput
        for tag, value in values.items():
            yield Point(series=JOB, tag=tag, tick=tick, value=value, time=time)

    def _step(self, line: Line) -> Iterator[Point]:
        slot, tick = line["slot"], line["tick"]
        self.slices |= {(each["shard"], each["slice"]) for each in line["adopted"]}
        self.trained += line["tokens"]
        if not line["t_m"]:
            return  # it has joined, at a tick that may lie before its last one, and made no step
        mean = self.means.setdefault(slot, Mean(tick))
        if mean.tick != tick:
            yield from mean.points(slot)
            mean = self.means[slot] = Mean(tick)
        mean.time = line["time"]
        if line["loss"] is not None:
            mean.losses.append(line["loss"])
        mean.tokens += line["tokens"]
        mean.seconds += line["step_seconds"] + line["blocked_seconds"]

    def _commit(self, line: Line) -> Iterator[Point]:
        self.slices.add((line["shard"], line["slice"]))
        self.merged += sum(part["tokens"] for part in line["participants"])
        self.commits += 1
        self.tick = max(self.tick, line["tick"])  # shards are not at the same tick
        counts = {"commits": self.commits}
        if line["participants"]:  # else it gives back what was lost, or a last version its bits
            counts["learners"] = len(line["participants"])
        for tag, value in counts.items():
            yield Point(series=JOB, tag=tag, tick=self.tick, value=value, time=line["time"])
        yield from self._totals(self.tick, line["time"])
