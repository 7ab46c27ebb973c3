"""loss.png and goodput.png of a run folder, from its other files.

A learner that has diverged has losses of 1e8, infinities or NaN. Its line would press those of all
others flat, so loss.png shows the range in which losses ordinarily lie (`ordinary`), and names the
learners of which values lie outside of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high, median_low
from typing import Any

from atoll_operator.api.facts import some_of
from atoll_operator.local.summary import read_lines

WEIGHT = 0.05  # of the newest value in a moving average
COLUMNS_OF = 8  # entries in one column of a legend
FAR = 3.0  # ranges of the ordinary losses: a loss beyond that is not shown
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """How many learners have a curve, and whether the held-out loss has one."""

    learners: int
    held_out: bool


def draw_losses(folder: Path, picture: Path, unit: str, title: str = "") -> Drawn:
    """Draw the losses that the files of a run folder hold; `unit` names their axis.

    Raises OSError and ValueError.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.5), constrained_layout=True)
    try:
        found = _losses(axes, folder, unit, title)
        figure.savefig(picture, dpi=120)
    finally:
        plt.close(figure)
    return found


def _pyplot() -> Any:
    import matplotlib as mpl  # noqa: PLC0415 - only local mode has it, and it is slow to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    return plt


def draw(out: Path, tokens: dict[str, int], unit: str) -> None:
    """Write both pictures; `tokens` is that part of the summary, `unit` is that of a loss."""
    draw_losses(out, out / "loss.png", unit, out.resolve().name)
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7, 3), constrained_layout=True)
    _tokens(axes, tokens)
    figure.savefig(out / "goodput.png", dpi=120)
    plt.close(figure)


def _losses(axes: Any, out: Path, unit: str, title: str = "") -> Drawn:
    """A line for each learner, broken where it was started again, and the held-out loss."""
    lines = {
        path.stem: [
            Steps(ticks=each.ticks, losses=smooth(each.losses)) for each in starts(read_lines(path))
        ]
        for path in sorted((out / "learners").glob("*.jsonl"))
    }
    evaluations = read_lines(out / "evaluations.jsonl")
    held_out = [each["loss"] for each in evaluations]
    curves = {name: [v for each in found for v in each.losses] for name, found in lines.items()}
    low, high = ordinary([*curves.values(), held_out])
    restarts: list[tuple[int, float]] = []
    for number, (slot, found) in enumerate(lines.items()):
        label = slot
        for steps in found:
            losses = shown(steps.losses, low, high)
            axes.plot(steps.ticks, losses, color=f"C{number % 10}", label=label)
            if not label:
                restarts.append((steps.ticks[0], losses[0]))
            label = ""
    if restarts:
        axes.plot(*zip(*restarts, strict=True), "kx", label="started again")
    if evaluations:
        ticks = [each["tick"] for each in evaluations]
        axes.plot(ticks, shown(held_out, low, high), "k.-", label="held out, shared parameters")
    axes.set(xlabel="step of the job", ylabel=f"{unit} (moving average)")
    outside = [
        name
        for name, values in {**curves, "held out": held_out}.items()
        if any(map(math.isnan, shown(values, low, high)))
    ]
    if outside:
        where = f"{some_of(outside)}: values that are too far away, or no numbers, are not shown"
        title = "\n".join(each for each in (title, where) if each)
    axes.set_title(title, fontsize="small", wrap=True)
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        # Losses fall. To look for the best place takes long, which matplotlib warns of.
        axes.legend(loc="upper right", ncols=math.ceil(len(labels) / COLUMNS_OF))
    else:
        axes.text(0.5, 0.5, "no step was made", transform=axes.transAxes, ha="center")
    return Drawn(sum(map(bool, lines.values())), bool(evaluations))


def ordinary(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The range outside of which a loss is not shown; of a run that is well, all is inside.

    The ordinary losses of one curve are those from its first quartile to its third, and its first
    value, which is mostly the highest. Of all curves the median counts, so that one that diverges
    among several, or for a quarter of its length, changes nothing.
    """
    lows, highs = [], []
    for values in curves:
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            ranked = sorted(finite)
            lows.append(min(finite[0], ranked[len(ranked) // 4]))
            highs.append(max(finite[0], ranked[3 * len(ranked) // 4]))
    if not lows:
        return -math.inf, math.inf
    low, high = median_high(lows), median_low(highs)
    far = FAR * (high - low if high > low else max(abs(high), 1.0))
    return min(low, high) - far, max(low, high) + far


def shown(losses: Sequence[float], low: float, high: float) -> list[float]:
    """The losses of a line, with a NaN, which is a gap, where they are not in the range."""
    return [
        value if math.isfinite(value) and low <= value <= high else math.nan for value in losses
    ]


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
    """An exponential moving average, which keeps noisy curves apart; begins again after a NaN.

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
