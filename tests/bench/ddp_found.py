"""How much faster Atoll is than data-parallel training, from runs of both over the same links."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.results import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system over links of one rate."""

    system: str
    megabits: float  # of each link, in each direction
    step_seconds: float
    tokens_per_second: float  # trained, by all
    merged: float  # share of them that a merge has taken in
    curve: Sequence[tuple[float, float]]  # seconds since the first step, held-out nats per byte

    @property
    def loss(self) -> float:
        """At the end, where all systems have trained as many tokens."""
        return self.curve[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How many times faster one run is than another."""

    trained: float  # by tokens a second
    merged: float  # of them only what merges have taken in
    to_loss: float  # by the seconds to `loss`
    loss: float  # the lowest that both reach


@dataclass(frozen=True, slots=True)
class Steps:
    """Of a learner: the mean of a step, and when the first began."""

    seconds: float
    began: float  # Unix seconds


def steps_of(file: Sequence[Mapping[str, Any]]) -> Steps:
    """From the lines of learners/SLOT.jsonl, which are stamped when they are written, or later.

    So the first step began when the line says that is the earliest, with all steps until then.
    """
    steps = [line for line in file if line.get("step_seconds", 0.0) > 0]
    ends = list(itertools.accumulate(x["step_seconds"] + x["blocked_seconds"] for x in steps))
    began = min(line["time"] - end for line, end in zip(steps, ends, strict=True))
    return Steps(ends[-1] / len(ends), began)


def seconds_to(loss: float, curve: Sequence[tuple[float, float]]) -> float:
    """When a curve first is as low as `loss`, on a straight line between two measurements.

    ValueError if it never is, or is from the first measurement on.
    """
    for (begun, high), (ended, low) in itertools.pairwise(curve):
        if low <= loss < high:
            return begun + (ended - begun) * (high - loss) / (high - low)
    raise ValueError(f"the curve does not cross a loss of {loss}: {curve}")


def times(run: Run, base: Run) -> Times:
    """`run` against `base`. Both curves begin above the lowest loss that both reach."""
    loss = max(min(low for _, low in each.curve) for each in (run, base))
    trained = run.tokens_per_second / base.tokens_per_second
    return Times(
        trained=trained,
        merged=trained * run.merged / base.merged,
        to_loss=seconds_to(loss, base.curve) / seconds_to(loss, run.curve),
        loss=loss,
    )


def figures(runs: Sequence[Run], bases: Sequence[str]) -> Iterator[Figure]:
    """Rows that begin with the rate of the links: of all systems, then each against `bases`."""
    for megabits, group in itertools.groupby(runs, lambda run: run.megabits):
        there = [*group]
        names = ", ".join(run.system for run in there)
        steps, losses = zip(*((run.step_seconds, run.loss) for run in there), strict=True)
        yield Figure(what=f"Mbit/s; seconds of a step: {names}", values=[megabits, *steps])
        yield Figure(what=f"Mbit/s; loss at the end: {names}", values=[megabits, *losses])
        for run in there:
            if run.system not in bases:
                pairs = [times(run, base) for base in there if base.system in bases]
                values = [x for each in pairs for x in (each.trained, each.merged, each.to_loss)]
                what = f"Mbit/s; times as fast, {run.system}: trained, merged, to the loss"
                yield Figure(what=what, values=[megabits, *values])
