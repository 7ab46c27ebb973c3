"""tokens.png and rounds.png from the tapes of a run: its work over time, and its rounds.

A tape has all of it, so the pictures can be drawn while a job runs, and of a job in a cluster. The
timeline of rounds is that of "Decoupled DiLoCo" (arXiv 2604.21428, figure 6): who took part in each
round, how long it waited for its quorum, its grace, and when its version was durable.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from atoll_protos.job.shown_states import SLOT_TEXTS

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

# ---------------------------------------------------------------- rounds


def draw_rounds(figure: Any, tapes: Sequence[Sequence[Line]], title: str = "") -> int:
    """The share of all rounds that has each learner, and the newest rounds one by one.

    Returns how many rounds there are; all shards' count above, those of shard 0 below.
    """
    commits = [line for tape in tapes for line in tape if _is_round(line)]
    if not commits:
        figure.subplots().text(0.5, 0.5, "no round has ended", ha="center")
        return 0
    slots = sorted({slot for line in commits for slot in _parts(line)})
    newest = [line for line in commits if not line["shard"]][-ROUNDS_MAX:]
    heights = (1 + 0.12 * len(slots), 1 + 0.12 * len(newest))
    grid = figure.add_gridspec(2, 2, height_ratios=heights, width_ratios=(3, 1 + len(slots) / 20))
    _participation(figure, figure.add_subplot(grid[0, :]), commits, slots)
    spans = figure.add_subplot(grid[1, 0])
    _spans(spans, newest, _span(commits)[0])
    _marks(figure.add_subplot(grid[1, 1], sharey=spans), newest, slots)
    if title:
        figure.suptitle(title, fontsize="medium")
    return len(commits)


def _is_round(line: Line) -> bool:
    is_round = "quorum_wait_seconds" in line and "recovered" not in line
    return line.get("event") == "commit" and is_round


def _parts(line: Line) -> dict[str, str]:
    """What each learner that the shard knew of did in a round, by a key of PARTS."""
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
    return float(line["time"] - sum(line[each] for each in names[names.index(field) :]))


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


# ---------------------------------------------------------------- tokens


def draw_tokens(figure: Any, tapes: Sequence[Sequence[Line]], title: str = "") -> int:
    """Tokens by class, participation, uptime and links by time; how many commits they show."""
    counted = [line for tape in tapes for line in tape if "counts" in line]
    commits = sorted(counted, key=lambda each: float(each["time"]))
    if not commits:
        figure.subplots().text(0.5, 0.5, "no commit has counts of tokens", ha="center")
        return 0
    upper, middle, lower = figure.subplots(3, sharex=True, height_ratios=(3, 2, 2))
    start, end = _span(commits)
    _classes(upper, commits, start)
    _shares(middle, commits, start)
    _links(lower, tapes, start, end)
    lower.set(xlabel="seconds")
    if title:
        figure.suptitle(title, fontsize="medium")
    return len(commits)


def _span(lines: Sequence[Line]) -> tuple[float, float]:
    times = [float(line["time"]) for line in lines]
    return min(times), max(times)


def _classes(axes: Any, commits: Sequence[Line], start: float) -> None:
    """Of all tokens so far; of each shard its newest count."""
    newest: dict[int, Mapping[str, int]] = {}
    times, heights = list[float](), {name: list[float]() for name in CLASSES}
    for line in commits:
        newest[line["shard"]] = line["counts"]
        slices = sum(each["slices"] for each in newest.values())
        times.append(line["time"] - start)
        for name, values in heights.items():
            values.append(sum(each[name] for each in newest.values()) / slices)
    axes.stackplot(times, *heights.values(), labels=[*heights], colors=[*CLASSES.values()])
    trained = sum(values[-1] for values in heights.values())
    goodput = heights["merged"][-1] / trained if trained else 0.0
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(ylabel="tokens", title=f"{trained:,.0f} tokens, goodput {goodput:.1%}")
    axes.legend(loc="upper left", fontsize="small")


def _shares(axes: Any, commits: Sequence[Line], start: float) -> None:
    """Participation in the commits of each bin, and uptime as shard 0 has counted it in the bin."""
    count = min(BINS_MAX, len(commits))
    size = math.ceil(len(commits) / count)
    bins = [commits[n : n + size] for n in range(0, len(commits), size)]
    merges = [[line for line in each if line["participants"]] for each in bins]
    taking = [
        (each[-1]["time"] - start, _mean(_took_part(line) for line in each))
        for each in merges
        if each
    ]
    if taking:
        axes.plot(*zip(*taking, strict=True), color="tab:blue", label="participation")
    ups = [line for line in commits if line["shard"] == 0 and line.get("seconds")]
    points = [
        (after["time"] - start, _grown(before, after, "training_seconds") / grown)
        for before, after in pairwise(ups[:: max(1, len(ups) // BINS_MAX)])
        if (grown := _grown(before, after, "seconds")) > 0
    ]
    if points:
        axes.plot(*zip(*points, strict=True), color="tab:green", label="uptime")
    axes.set(ylim=(-0.05, 1.05), ylabel="share")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.legend(loc="lower left", fontsize="small")


def _took_part(line: Line) -> float:
    return len(line["participants"]) / max(1, len(_parts(line)))


def _mean(values: Iterable[float]) -> float:
    found = [*values]
    return sum(found) / len(found)


def _grown(before: Line, after: Line, name: str) -> float:
    return max(0.0, float(after[name]) - float(before[name]))


def _links(axes: Any, tapes: Sequence[Sequence[Line]], start: float, end: float) -> None:
    """Bulk bytes of each region; counts begin again with each process of a shard."""
    count = BINS_MAX // 2
    width = (end - start) / count or 1.0
    moved: dict[tuple[str, str], list[float]] = {}
    for before, after in (pair for tape in tapes for pair in pairwise(tape)):
        place = min(count - 1, max(0, int((after["time"] - start) / width)))
        for region, now in after.get("links", {}).items():
            was = before.get("links", {}).get(region, (0, 0))
            for way, more, had in zip(("up", "down"), now, was, strict=True):
                known = moved.setdefault((region or "evaluators", way), [0.0] * count)
                known[place] += 8e-6 * (more - had if more >= had else more) / width
    edges = [n * width for n in range(count + 1)]
    for number, ((region, way), rates) in enumerate(sorted(moved.items())):
        look = {"linestyle": "-" if way == "up" else "--", "color": f"C{number // 2 % 10}"}
        axes.stairs(rates, edges, label=f"{region} {way}", **look)
    axes.set(ylabel="Mbit/s")
    if moved:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="x-small")
