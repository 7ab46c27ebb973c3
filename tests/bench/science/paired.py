"""Means of runs with several seeds, and differences of runs that have the same seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Of Student's t for 1, 2, ... degrees of freedom: in 95% of all cases it is within.
T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T95_FAR: Final = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how far the true one may be from it in 95% of all cases; None of one value."""

    mean: float
    half_width: float | None
    count: int

    def text(self, sign: str = "") -> str:
        width = "" if self.half_width is None else f" ± {self.half_width:.3f}"
        return f"{self.mean:{sign}.3f}{width}"


def estimate(values: Sequence[float]) -> Estimate:
    """Of values that are independent, such as those of different seeds."""
    count = len(values)
    if count < 2:
        return Estimate(values[0], None, count)
    t = T95[count - 2] if count - 2 < len(T95) else T95_FAR
    return Estimate(statistics.mean(values), t * statistics.stdev(values) / math.sqrt(count), count)


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """Of the differences of equal seeds. What all runs of a seed have in common falls out."""
    seeds = sorted(values.keys() & base.keys())
    return estimate([values[seed] - base[seed] for seed in seeds]) if seeds else None
