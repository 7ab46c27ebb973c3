"""loss.png, goodput.png, tokens.png and rounds.png of a run folder, from its other files.

A learner that has diverged has losses of 1e8, infinities or NaN, and would press the lines of all
others flat: loss.png shows the range of `ordinary`, and names the learners with values outside.
"""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median_high, median_low
from typing import Any

from atoll_operator.api.status.condition_facts import some_of
from atoll_operator.local.folder.run_files import CHAOS_FILE, read_lines, read_tapes
from atoll_operator.local.show import timeline
from atoll_operator.local.show.timeline import CLASSES

WEIGHT = 0.05  # of the newest value in a moving average
COLUMNS_OF = 8  # entries in one column of a legend
FAR = 3.0  # ranges of the ordinary losses: a loss beyond that is not shown
BINS = 100  # of the time of a run with faults
COLOURS_MAX = 10  # of matplotlib; then they are hatched
SIZES = {"tokens": (9, 7), "rounds": (11, 8)}  # inches


def draw_losses(folder: Path, picture: Path, title: str = "") -> tuple[int, bool]:
    """How many learners have a curve, and if held-out has one. Raises OSError and ValueError."""
    figure = _figure(8, 4.5)
    found = _losses(figure.subplots(), folder, title)
    figure.savefig(picture, dpi=120)
    return found


def draw_tapes(what: str, tapes: list[list[dict[str, Any]]], picture: Path, title: str = "") -> int:
    """`what`: tokens or rounds. How many commits the picture shows. Raises OSError, ValueError."""
    figure = _figure(*SIZES[what])
    shown_ = {"tokens": timeline.draw_tokens, "rounds": timeline.draw_rounds}[what]
    count = shown_(figure, tapes, title)
    figure.savefig(picture, dpi=120)
    return count


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415 - only local mode has it; slow to import

    return Figure(figsize=(width, height), layout="constrained")


def draw(out: Path, tokens: dict[str, int]) -> None:
    draw_losses(out, out / "loss.png", out.resolve().name)
    faults = read_lines(out / CHAOS_FILE)
    figure = _figure(7, 6 if faults else 3)
    upper, *lower = figure.subplots(2 if faults else 1, squeeze=False)[:, 0]
    _tokens(upper, tokens)
    for axes in lower:
        _faults(axes, out, faults)
    figure.savefig(out / "goodput.png", dpi=120)
    tapes = read_tapes(out)
    for what in SIZES:
        draw_tapes(what, tapes, out / f"{what}.png", out.resolve().name)


def _losses(axes: Any, out: Path, title: str = "") -> tuple[int, bool]:
    """A line for each learner, broken where it was started again, and the held-out loss."""
    written = {path.stem: read_lines(path) for path in sorted((out / "learners").glob("*.jsonl"))}
    lines = {
        slot: [(ticks, smooth(losses)) for ticks, losses in starts(found)]
        for slot, found in sorted((_noted(out) | written).items())
    }
    evaluations = read_lines(out / "evaluations.jsonl")
    held_out = [each["loss"] for each in evaluations]
    curves = {slot: [v for _, losses in found for v in losses] for slot, found in lines.items()}
    low, high = ordinary([*curves.values(), held_out])
    restarts: list[tuple[int, float]] = []
    for number, (slot, found) in enumerate(lines.items()):
        for start, (ticks, values) in enumerate(found):
            losses = shown(values, low, high)
            axes.plot(ticks, losses, color=f"C{number % 10}", label="" if start else slot)
            if start:
                restarts.append((ticks[0], losses[0]))
    if restarts:
        axes.plot(*zip(*restarts, strict=True), "kx", label="started again")
    if evaluations:
        ticks = [each["tick"] for each in evaluations]
        axes.plot(ticks, shown(held_out, low, high), "k.-", label="held out, shared parameters")
    axes.set(xlabel="step of the job", ylabel="loss (moving average)")
    outside = [
        name
        for name, values in {**curves, "held out": held_out}.items()
        if any(map(math.isnan, shown(values, low, high)))
    ]
    _label(axes, title, outside)
    return sum(map(bool, lines.values())), bool(evaluations)


def _noted(out: Path) -> dict[str, list[dict[str, Any]]]:
    """By learner, the losses at the merges of a shard: of those whose own files are elsewhere."""
    found: dict[str, list[dict[str, Any]]] = {}
    first = sorted(out.glob("syncer/*.tape.jsonl"))[:1]
    for line in chain.from_iterable(map(read_lines, first)):
        for each in line.get("losses", ()):
            found.setdefault(each["slot"], []).append({"tick": line["tick"], **each})
    return found


def _label(axes: Any, title: str, outside: Sequence[str]) -> None:
    if outside:
        title += "\n" if title else ""
        title += f"{some_of(outside)}: values that are too far away, or no numbers, are not shown"
    axes.set_title(title, fontsize="small", wrap=True)
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        # Losses fall. To look for the best place takes long, which matplotlib warns of.
        axes.legend(loc="upper right", ncols=math.ceil(len(labels) / COLUMNS_OF))
    else:
        axes.text(0.5, 0.5, "no step was made", transform=axes.transAxes, ha="center")


def ordinary(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The range outside of which a loss is not shown; of a run that is well, all is inside.

    The ordinary losses of a curve are those from its first quartile to its third, and its first,
    mostly the highest. The median of all curves counts, so one that diverges changes nothing.
    """
    finite = [[value for value in values if math.isfinite(value)] for values in curves]
    ranked = [(values[0], sorted(values)) for values in finite if values]
    if not ranked:
        return -math.inf, math.inf
    low = median_high(min(first, all_[len(all_) // 4]) for first, all_ in ranked)
    high = median_low(max(first, all_[3 * len(all_) // 4]) for first, all_ in ranked)
    far = FAR * (high - low if high > low else max(abs(high), 1.0))
    return min(low, high) - far, max(low, high) + far


def shown(losses: Sequence[float], low: float, high: float) -> list[float]:
    """The losses of a line, with a NaN, which is a gap, where they are not in the range."""
    return [v if math.isfinite(v) and low <= v <= high else math.nan for v in losses]


def _tokens(axes: Any, tokens: dict[str, int]) -> None:
    trained = tokens["trained"]
    counts = [tokens[name] for name in CLASSES]
    bars = axes.barh(list(CLASSES), counts, color=list(CLASSES.values()))
    shares = [f"{count / trained:.1%}" if trained else "" for count in counts]
    axes.bar_label(bars, shares, padding=3)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlabel="tokens", title=f"What became of {trained:,} tokens")


def _faults(axes: Any, out: Path, faults: Sequence[dict[str, Any]]) -> None:
    """Tokens merged a second, and a mark for each fault of a plan, as long as it lasted."""
    tape = chain.from_iterable(read_tapes(out))
    commits = [line for line in tape if line.get("event") == "commit"]
    slices = len({(line["shard"], line["slice"]) for line in commits}) or 1
    start = min((line["time"] for line in [*commits, *faults]), default=0.0)
    ends = [line["time"] - start for line in commits]
    width = max(ends, default=0.0) / BINS or 1.0
    shares = [sum(part["tokens"] for part in line["participants"]) / slices for line in commits]
    rates = [tokens / width for tokens in shares]
    axes.hist(ends, BINS, range=(0, BINS * width), weights=rates, color="lightgray")
    words = [*dict.fromkeys(line["fault"] for line in faults)]
    for number, word in enumerate(words):
        hatch = "//" if number >= COLOURS_MAX else ""
        for place, line in enumerate(each for each in faults if each["fault"] == word):
            began, label = line["began"] - start, "" if place else word
            ended = max(line["ended"] - start, began + width / 4)
            axes.axvspan(began, ended, color=f"C{number}", hatch=hatch, alpha=0.6, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    axes.set(xlabel="seconds", ylabel="tokens merged a second", title=f"{len(faults)} faults")


def starts(lines: Sequence[dict[str, Any]]) -> list[tuple[list[int], list[float]]]:
    """Ticks and losses of each start; a run that went back to its last commits is one too."""
    found: list[tuple[list[int], list[float]]] = []
    incarnation = None
    for line in lines:
        if line.get("loss") is None:
            continue
        went_back = found and line["tick"] < found[-1][0][-1]
        if went_back or line["incarnation"] != incarnation:
            found.append(([], []))
            incarnation = line["incarnation"]
        found[-1][0].append(line["tick"])
        found[-1][1].append(line["loss"])
    return found


def smooth(values: Sequence[float]) -> list[float]:
    """An exponential moving average; begins again after a NaN. The first values weigh alike."""
    smoothed: list[float] = []
    count = 0  # of the values in the average
    for value in values:
        count = count + 1 if smoothed and math.isfinite(smoothed[-1]) else 1
        before = smoothed[-1] if count > 1 else value
        smoothed.append(before + WEIGHT / (1 - (1 - WEIGHT) ** count) * (value - before))
    return smoothed
