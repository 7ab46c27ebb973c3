"""loss.png, goodput.png and rounds.png of a run folder, from its other files.

A learner that has diverged has losses of 1e8, infinities or NaN, and would press the lines of all
others flat: loss.png shows the range of `ordinary`, and names the learners with values outside.

rounds.png is the timeline of "Decoupled DiLoCo" (arXiv 2604.21428, figure 6): who took part in each
round, how long it waited for its quorum, its grace, and when its version was durable.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median_high, median_low
from typing import Any, Final

from atoll_operator.api.status.conditions import some_of
from atoll_operator.local.run_files import CHAOS_FILE, read_lines, read_tapes
from atoll_protos.job.run_file import SLOT_TEXTS

Line = dict[str, Any]

ROUNDS_MAX: Final = 24  # that the timeline shows one by one
BINS_MAX: Final = 120  # of the time of a run
MARKS_MAX: Final = 40  # learners beside each other that have room for their names
CLASSES: Final = {  # of tokens: merged, on their way, and without effect
    "merged": "tab:blue",
    "pending": "tab:cyan",
    "overlap": "tab:gray",
    "late": "tab:orange",
    "lost": "tab:red",
}
SPANS: Final = {  # of a round, and the field of its commit
    "waits for the quorum": ("quorum_wait_seconds", "lightgray"),
    "grace": ("grace_seconds", "tab:orange"),
    "merge and commit": ("commit_seconds", "tab:blue"),
}
LATE: Final = "late, or not called"
PARTS: Final = {  # of a learner in a round
    "merged": "tab:blue",
    LATE: "tab:orange",
    "refused": "tab:red",
    "not in training": "lightgray",
}
LEFT_OUT: Final = {  # reasons on the tape; every other one is of an offer that was refused
    **dict.fromkeys(("late", "not usable"), LATE),
    **dict.fromkeys(SLOT_TEXTS.values(), "not in training"),
}


def draw_timeline(figure: Any, tapes: Sequence[Sequence[Line]], title: str) -> None:
    """Draw the share of all shards' rounds that has each learner, and shard 0's newest rounds."""
    commits = [line for tape in tapes for line in tape if _is_round(line)]
    if not commits:
        figure.subplots().text(0.5, 0.5, "no round has ended", ha="center")
        return
    slots = sorted({slot for line in commits for slot in _parts(line)})
    newest = [line for line in commits if not line["shard"]][-ROUNDS_MAX:]
    heights = (1 + 0.12 * len(slots), 1 + 0.12 * len(newest))
    grid = figure.add_gridspec(2, 2, height_ratios=heights, width_ratios=(3, 1 + len(slots) / 20))
    _participation(figure, figure.add_subplot(grid[0, :]), commits, slots)
    spans = figure.add_subplot(grid[1, 0])
    _spans(spans, newest, _span(commits)[0])
    _marks(figure.add_subplot(grid[1, 1], sharey=spans), newest, slots)
    figure.suptitle(title, fontsize="medium")


def _is_round(line: Line) -> bool:
    is_round = "quorum_wait_seconds" in line and "recovered" not in line
    return line.get("event") == "commit" and is_round


def _parts(line: Line) -> dict[str, str]:
    """Return what each learner that the shard knew of did in a round, by a key of PARTS."""
    found = dict.fromkeys((part["slot"] for part in line["participants"]), "merged")
    for each in line["left_out"]:
        found[each["slot"]] = LEFT_OUT.get(each["reason"], "refused")
    return found


def _participation(figure: Any, axes: Any, commits: Sequence[Line], slots: Sequence[str]) -> None:
    start, end = _span(commits)
    count = min(BINS_MAX, max(1, len(commits) // 8))
    width = (end - start) / count or 1.0
    seen, merged = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for line in commits:
        place = min(count - 1, int((line["time"] - start) / width))
        for slot, part in _parts(line).items():
            seen[place, slot] += 1
            merged[place, slot] += part == "merged"
    shares = [
        [merged[n, slot] / seen[n, slot] if seen[n, slot] else math.nan for n in range(count)]
        for slot in slots
    ]
    edges = [n * width for n in range(count + 1)]
    rows = [n - 0.5 for n in range(len(slots) + 1)]
    mesh = axes.pcolormesh(edges, rows, shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_facecolor("whitesmoke")  # where no round ended
    axes.set_yticks(range(len(slots)), slots, fontsize="small" if len(slots) < MARKS_MAX else 4)
    axes.invert_yaxis()
    title = f"Share of {len(commits):,} rounds that have each learner's work"
    axes.set(xlabel="seconds", title=title)
    figure.colorbar(mesh, ax=axes, format=lambda share, _: f"{share:.0%}")


def _spans(axes: Any, newest: Sequence[Line], start: float) -> None:
    for name, (field, colour) in SPANS.items():
        begins = [_begin(line, field) - start for line in newest]
        widths = [line[field] for line in newest]
        axes.barh(range(len(newest)), widths, left=begins, color=colour, label=name)
    names = [f"slice {line['slice']}, version {line['version']}" for line in newest]
    axes.set_yticks(range(len(newest)), names, fontsize="x-small")
    axes.invert_yaxis()
    title = f"The newest {len(newest)} rounds of shard 0"
    axes.set(xlabel="seconds", title=title)
    axes.legend(fontsize="x-small", loc="upper right")


def _begin(line: Line, field: str) -> float:
    """When a part of a round began; the line is written when all is over."""
    names = [name for name, _ in SPANS.values()]
    return float(line["time"] - sum(line[name] for name in names[names.index(field) :]))


def _marks(axes: Any, newest: Sequence[Line], slots: Sequence[str]) -> None:
    for name, colour in PARTS.items():
        found = [
            (slots.index(slot), row)
            for row, line in enumerate(newest)
            for slot, part in _parts(line).items()
            if part == name
        ]
        if found:
            axes.scatter(*zip(*found, strict=True), color=colour, marker="s", s=24, label=name)
    axes.set_xticks(range(len(slots)), slots, rotation=90, fontsize="x-small")
    axes.tick_params(left=False, labelleft=False)
    axes.set_xlim(-0.7, len(slots) - 0.3)
    axes.legend(fontsize="x-small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _span(lines: Sequence[Line]) -> tuple[float, float]:
    times = [float(line["time"]) for line in lines]
    return min(times), max(times)


WEIGHT = 0.05  # of the newest value in a moving average
COLUMNS_OF = 8  # entries in one column of a legend
FAR = 3.0  # ranges of the ordinary losses: a loss beyond that is not shown
BINS = 100  # of the time of a run with faults


def draw(out: Path, tokens: dict[str, int]) -> None:
    """Write the three pictures of a run folder. Raises OSError and ValueError."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only local mode has it; slow to import

    title, faults = out.resolve().name, read_lines(out / CHAOS_FILE)
    sizes = {"loss": (8, 4.5), "goodput": (7, 6 if faults else 3), "rounds": (11, 8)}
    figures = {name: Figure(size, layout="constrained") for name, size in sizes.items()}
    _losses(figures["loss"].subplots(), out, title)
    upper, *lower = figures["goodput"].subplots(2 if faults else 1, squeeze=False)[:, 0]
    _tokens(upper, tokens)
    for axes in lower:
        _faults(axes, out, faults)
    draw_timeline(figures["rounds"], read_tapes(out), title)
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=120)


def _losses(axes: Any, out: Path, title: str) -> None:
    """Draw each learner, broken where it was started again, and the held-out loss."""
    written = {path.stem: read_lines(path) for path in sorted((out / "learners").glob("*.jsonl"))}
    lines = {
        slot: [(ticks, smooth(losses)) for ticks, losses in starts(found)]
        for slot, found in sorted((_noted(out) | written).items())
    }
    evaluations = read_lines(out / "evaluations.jsonl")
    held_out = [evaluation["loss"] for evaluation in evaluations]
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
        ticks = [evaluation["tick"] for evaluation in evaluations]
        axes.plot(ticks, shown(held_out, low, high), "k.-", label="held out, shared parameters")
    axes.set(xlabel="step of the job", ylabel="loss (moving average)")
    outside = [
        name
        for name, values in {**curves, "held out": held_out}.items()
        if any(map(math.isnan, shown(values, low, high)))
    ]
    if outside:
        title += f"\n{some_of(outside)}: values that are too far away, or no numbers, are not shown"
    axes.set_title(title, fontsize="small", wrap=True)
    if labels := axes.get_legend_handles_labels()[1]:
        # Losses fall. To look for the best place takes long, which matplotlib warns of.
        axes.legend(loc="upper right", ncols=math.ceil(len(labels) / COLUMNS_OF))
    else:
        axes.text(0.5, 0.5, "no step was made", transform=axes.transAxes, ha="center")


def _noted(out: Path) -> dict[str, list[dict[str, Any]]]:
    """By learner, the losses at the merges of a shard: of those whose own files are elsewhere."""
    found: dict[str, list[dict[str, Any]]] = {}
    first = sorted(out.glob("syncer/*.tape.jsonl"))[:1]
    for line in chain.from_iterable(map(read_lines, first)):
        for each in line.get("losses", ()):
            found.setdefault(each["slot"], []).append({"tick": line["tick"], **each})
    return found


def ordinary(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the range outside of which a loss is not shown; of a run that is well, all is inside.

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
    """Return the losses of a line, with a NaN, which is a gap, where they are not in the range."""
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
    colours: dict[str, str] = {}
    for line in faults:
        label = "" if line["fault"] in colours else line["fault"]
        colour = colours.setdefault(line["fault"], f"C{len(colours)}")
        began = line["began"] - start
        ended = max(line["ended"] - start, began + width / 4)
        axes.axvspan(began, ended, color=colour, alpha=0.6, label=label)
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
    """Average exponentially; begins again after a NaN. The first values weigh alike."""
    smoothed: list[float] = []
    count = 0  # of the values in the average
    for value in values:
        count = count + 1 if smoothed and math.isfinite(smoothed[-1]) else 1
        before = smoothed[-1] if count > 1 else value
        smoothed.append(before + WEIGHT / (1 - (1 - WEIGHT) ** count) * (value - before))
    return smoothed
