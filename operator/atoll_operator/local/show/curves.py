"""The curves of a run, from the lines that its processes write; pure (docs/run-folder.md, Curves).

A curve is a series of points over the job's tick. They are a function of the lines alone, so a new
`atoll run` in the folder draws the same curves from its beginning.
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


@dataclass(frozen=True, slots=True)
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
    logged: dict[str, list[float]] = field(default_factory=dict)

    def points(self, slot: str) -> Iterator[Point]:
        known = {"loss": sum(self.losses) / len(self.losses)} if self.losses else {}
        if self.seconds:
            known["tokens_per_second"] = self.tokens / self.seconds
        known |= {tag: sum(values) / len(values) for tag, values in self.logged.items()}
        for tag, value in known.items():
            yield Point(slot, tag, self.tick, value, self.time)


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
        event = line.get("event")
        if writer is Writer.LEARNER and "t_m" in line:
            return list(self._step(line))
        if writer is Writer.LEARNER and event == "logged":
            return list(self._log(line))
        if writer is Writer.SHARD and event == "commit":
            return list(self._commit(line))
        if writer is Writer.EVALUATOR and line.get("loss") is not None:
            return [Point(HELD_OUT, "loss", line["tick"], line["loss"], line["time"])]
        return []

    def rest(self) -> list[Point]:
        """The points of the ticks that are not over, when no line follows."""
        found = [point for slot, mean in self.means.items() for point in mean.points(slot)]
        if self.means and self.commits:
            last = [(mean.tick, mean.time) for mean in self.means.values()]
            tick, time = map(max, zip(*last, strict=True))
            found += self._totals(max(self.tick, tick), time)
        self.means.clear()
        return found

    @property
    def goodput(self) -> float | None:
        """The share of the tokens that is merged so far; None before the first commit."""
        if not (self.trained and self.commits):
            return None
        return self.merged / len(self.slices) / self.trained

    def _totals(self, tick: int, time: float) -> Iterator[Point]:
        yield Point(JOB, "tokens", tick, float(self.trained), time)
        if (goodput := self.goodput) is not None:
            yield Point(JOB, "goodput", tick, goodput, time)

    def _step(self, line: Line) -> Iterator[Point]:
        slot, tick = line["slot"], line["tick"]
        self.slices |= {(each["shard"], each["slice"]) for each in line["adopted"]}
        self.trained += line["tokens"]
        if not line["t_m"]:
            return  # it has joined, at a tick that may lie before its last one, and made no step
        yield from self._begin(slot, tick)
        mean = self.means[slot]
        mean.time = line["time"]
        if line["loss"] is not None:
            mean.losses.append(line["loss"])
        mean.tokens += line["tokens"]
        mean.seconds += line["step_seconds"] + line["blocked_seconds"]

    def _log(self, line: Line) -> Iterator[Point]:
        """End a tick at a line of another one: TensorBoard drops points that come out of order."""
        slot, tick = line["slot"], line["tick"]
        yield from self._begin(slot, tick)
        mean = self.means[slot]
        mean.time = line["time"]
        for name, value in line["values"].items():
            mean.logged.setdefault(name, []).append(value)

    def _begin(self, slot: str, tick: int) -> Iterator[Point]:
        mean = self.means.setdefault(slot, Mean(tick))
        if mean.tick != tick:
            yield from mean.points(slot)
            self.means[slot] = Mean(tick)

    def _commit(self, line: Line) -> Iterator[Point]:
        self.slices.add((line["shard"], line["slice"]))
        self.merged += sum(part["tokens"] for part in line["participants"])
        self.commits += 1
        self.tick = max(self.tick, line["tick"])  # shards are not at the same tick
        time = line["time"]
        yield Point(JOB, "commits", self.tick, self.commits, time)
        if line["participants"]:  # else it gives back what was lost, or a last version its bits
            yield Point(JOB, "learners", self.tick, len(line["participants"]), time)
        yield from self._totals(self.tick, time)
