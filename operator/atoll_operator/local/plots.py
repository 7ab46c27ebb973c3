"""loss.png and goodput.png of a run folder, from its other files."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll_operator.local.summary import read_lines

WEIGHT = 0.05  # of the newest value in a moving average
COLUMNS_OF = 8  # entries in one column of a legend
COLOURS = {  # of what became of tokens: merged, on their way, and without effect
    "merged": "tab:blue",
    "pending": "tab:cyan",
    "overlap": "tab:gray",
    "late": "tab:orange",
    "lost": "tab:red",
}


@dataclass(slots=True, kw_only=True)
class Steps:
    """The steps of one start of a learner."""

    ticks: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def draw(out: Path, tokens: dict[str, int], unit: str) -> None:
    """Write both pictures; `tokens` is that part of the summary, `unit` is that of a loss."""
    import matplotlib as mpl  # noqa: PLC0415 - only local mode has it, and it is slow to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.5), constrained_layout=True)
    _losses(axes, out, unit)
    figure.savefig(out / "loss.png", dpi=120)
    plt.close(figure)
    figure, axes = plt.subplots(figsize=(7, 3), constrained_layout=True)
    _tokens(axes, tokens)
    figure.savefig(out / "goodput.png", dpi=120)
    plt.close(figure)


def _losses(axes: Any, out: Path, unit: str) -> None:
    """A line for each learner, broken where it was started again, and the held-out loss."""
    restarts: list[tuple[int, float]] = []
    for number, path in enumerate(sorted((out / "learners").glob("*.jsonl"))):
        label = path.stem
        for steps in starts(read_lines(path)):
            losses = smooth(steps.losses)
            axes.plot(steps.ticks, losses, color=f"C{number % 10}", label=label)
            if not label:
                restarts.append((steps.ticks[0], losses[0]))
            label = ""
    if restarts:
        axes.plot(*zip(*restarts, strict=True), "kx", label="started again")
    evaluations = read_lines(out / "evaluations.jsonl")
    if evaluations:
        ticks, losses = [e["tick"] for e in evaluations], [e["loss"] for e in evaluations]
        axes.plot(ticks, losses, "k.-", label="held out, outer parameters")
    axes.set(xlabel="tick", ylabel=unit)
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        axes.legend(ncols=math.ceil(len(labels) / COLUMNS_OF))
    else:
        axes.text(0.5, 0.5, "no step was made", transform=axes.transAxes, ha="center")


def _tokens(axes: Any, tokens: dict[str, int]) -> None:
    """A bar for each thing that tokens can become, with its share."""
    trained = tokens["trained"]
    counts = [tokens[name] for name in COLOURS]
    bars = axes.barh(list(COLOURS), counts, color=list(COLOURS.values()))
    shares = [f"{count / trained:.1%}" if trained else "" for count in counts]
    axes.bar_label(bars, shares, padding=3)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlabel="tokens", title=f"What became of {trained:,} tokens")


def starts(lines: Sequence[dict[str, Any]]) -> Iterator[Steps]:
    """The steps of each start of a learner; also where a run went back to its last commits."""
    steps, incarnation = Steps(), None
    for line in lines:
        if line.get("loss") is None:
            continue
        went_back = steps.ticks and line["tick"] < steps.ticks[-1]
        if went_back or line["incarnation"] != incarnation:
            if steps.ticks:
                yield steps
            steps, incarnation = Steps(), line["incarnation"]
        steps.ticks.append(line["tick"])
        steps.losses.append(line["loss"])
    if steps.ticks:
        yield steps


def smooth(values: Sequence[float]) -> list[float]:
    """An exponential moving average, which keeps noisy curves apart; begins anew after a NaN.

    At its beginning it is the mean of the values so far, so that a first value weighs no more than
    those after it.
    """
    smoothed: list[float] = []
    count = 0  # of the values in the average
    for value in values:
        count = count + 1 if smoothed and math.isfinite(smoothed[-1]) else 1
        if count == 1 or not math.isfinite(value):
            smoothed.append(value)
            continue
        share = WEIGHT / (1 - (1 - WEIGHT) ** count)
        smoothed.append(smoothed[-1] + share * (value - smoothed[-1]))
    return smoothed
