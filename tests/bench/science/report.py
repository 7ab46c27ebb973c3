"""One page of Markdown with a table for each experiment."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.results import Figure
from bench.science.experiments import Experiment
from bench.science.queue import Result, file_of
from bench.science.setting import Setting

# Of Student's t for 1, 2, ... degrees of freedom: in 95% of all cases it is within.
T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T95_FAR: Final = 1.96
PAGE: Final = "README.md"
COLUMNS: Final[Mapping[str, tuple[str, str]]] = {  # beside the loss: title and form, by name
    "tokens": ("tokens", "{:,.0f}"),
    "virtual_steps": ("time in steps", "{:.0f}"),
    "busy": ("busy", "{:.2f}"),
    "offers_merged": ("offers merged", "{:.2f}"),
    "late": ("late", "{:.2f}"),
}
UNITS: Final = {"virtual_steps": "", "busy": "%", "offers_merged": "%", "late": "%"}
HEAD: Final = """# Quality, measured

`python -m bench.science` in `tests/` made this page. Losses are held-out nats per byte of the
shared parameters: the mean over the seeds, and how far the true one may be from it in 95% of all
cases. What is subtracted is the run of the same seed. Production's programs ran in virtual time;
`tests/bench/science/engine.py` says what is a model. (A) is arXiv 2604.21428.
"""


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
                for name in COLUMNS
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


def table(experiment: Experiment, made: list[Row]) -> list[str]:
    """In Markdown."""
    base = next(iter(experiment.arms))
    known = {name: COLUMNS[name] for name in COLUMNS if any(name in row.others for row in made)}
    titles = ["", "arm", "seeds", "loss", f"minus {base}", *(title for title, _ in known.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for each in made:
        numbers = [
            form.format(each.others[name]) if name in each.others else ""
            for name, (_, form) in known.items()
        ]
        beside = "" if each.beside is None else each.beside.text("+")
        cells = [each.cell, each.arm, str(each.loss.count), each.loss.text(), beside, *numbers]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write(
    folder: Path,
    experiments: Mapping[str, Experiment],
    runs: Mapping[str, Mapping[tuple[str, str, int], Setting]],
    results: Mapping[str, Mapping[tuple[str, str, int], Result]],
) -> Path:
    """The page, with what is missing by name."""
    lines = [HEAD]
    for letter, experiment in experiments.items():
        made = rows(experiment, results[letter])
        lines += [f"## ({letter}) {experiment.title}", ""]
        if made:
            lines += [*table(experiment, made), ""]
        lines += [f"Published: {experiment.published}", "", f"Differs: {experiment.differs}", ""]
        absent = {k: each for k, each in runs[letter].items() if k not in results[letter]}
        if absent:
            lines += [f"Missing, {len(absent)} of {len(runs[letter])} runs:", ""]
            lines += [
                f"- {cell}, {arm}, seed {seed} (`{file_of(folder, each).name}`)"
                for (cell, arm, seed), each in absent.items()
            ]
            lines.append("")
    page = folder / PAGE
    page.write_text("\n".join(lines))
    return page


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
            for key, unit in UNITS.items():
                if key in row.others:
                    value = row.others[key] * (100 if unit == "%" else 1)
                    what = f"{name}: {COLUMNS[key][0]}"
                    found.append(Figure(what=what, values=[value], unit=unit))
    return found
