"""The figures of experiments: means over seeds, and differences between arms."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.results import Figure
from bench.science.experiments import Experiment
from bench.science.queue import Result

# Of Student's t for 1, 2, ... degrees of freedom: in 95% of all cases it is within.
T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T95_FAR: Final = 1.96
BESIDE: Final[Mapping[str, tuple[str, str]]] = {  # the loss: title and unit, by name
    "virtual_steps": ("time in steps", ""),
    "busy": ("busy", "%"),
    "offers_merged": ("offers merged", "%"),
    "late": ("late", "%"),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how far the true one may be from it in 95% of all cases; None of one value."""

    mean: float
    half_width: float | None
    count: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An arm in a cell."""

    cell: str
    arm: str
    loss: Estimate
    beside: Estimate | None  # the first arm of the cell; None: it is that, or has no common seed
    others: Mapping[str, float]


def rows(experiment: Experiment, found: Mapping[tuple[str, str, int], Result]) -> list[Row]:
    """Without arms of which no run is there."""
    base = next(iter(experiment.arms))
    made = []
    for cell in experiment.cells:
        of_base = losses(found, cell, base)
        for arm in experiment.arms:
            if not (values := losses(found, cell, arm)):
                continue
            results = [each for key, each in found.items() if key[:2] == (cell, arm)]
            others = {
                name: statistics.mean(each[name] for each in results)
                for name in BESIDE
                if all(name in each for each in results)
            }
            beside = paired(values, of_base) if arm != base else None
            made.append(
                Row(
                    cell=cell,
                    arm=arm,
                    loss=estimate([*values.values()]),
                    beside=beside,
                    others=others,
                )
            )
    return made


def losses(found: Mapping[tuple[str, str, int], Result], cell: str, arm: str) -> dict[int, float]:
    """By seed."""
    return {key[2]: each["loss"] for key, each in found.items() if key[:2] == (cell, arm)}


def figures(
    experiments: Mapping[str, Experiment],
    results: Mapping[str, Mapping[tuple[str, str, int], Result]],
) -> list[Figure]:
    """For docs/numbers.md: mean and half width of losses and of differences, and shares.

    Of one seed there is the value alone.
    """
    found = []
    for letter, experiment in experiments.items():
        for row in rows(experiment, results[letter]):
            name = f"({letter}) {row.cell}, {row.arm}"
            for what, each in (("loss", row.loss), ("minus the first arm", row.beside)):
                if each is not None:
                    values = [x for x in (each.mean, each.half_width) if x is not None]
                    found.append(Figure(what=f"{name}: {what}", values=values))
            for key, (title, unit) in BESIDE.items():
                if key in row.others:
                    value = row.others[key] * (100 if unit == "%" else 1)
                    found.append(Figure(what=f"{name}: {title}", values=[value], unit=unit))
    return found
