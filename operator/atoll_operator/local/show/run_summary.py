"""summary.json: of tokens what the last status says, of the rest the files of a run folder.

Token counts are means over slices (rule 13): trained = merged + overlap + late + lost + pending.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final

from atoll_operator.api.status.conditions import some_of
from atoll_operator.api.status.job_status import ProgressStatus, TokenCounts
from atoll_operator.api.status.reasons import REMEDIES
from atoll_operator.local.local_status import moved_by_machines
from atoll_operator.local.run_files import (
    ends_of_starts,
    of_last_run,
    read_lines,
    read_tapes,
    runs_of,
)

LITTLE_MERGED: Final = 0.7  # of the trained tokens: below, a line says what became of the rest
LINES_MAX: Final = 4  # of learners whose offers were left out
NOTHING: Final = TokenCounts(trained=0, merged=0, overlap=0, late=0, lost=0, pending=0)


class RunResult(IntEnum):
    """How a run ended: the exit code of `atoll run`, and its name as `result` in summary.json."""

    COMPLETE = 0
    FAILED = 1
    BAD_INPUT = 2
    FAILED_AFTER = 3  # complete, but a process failed once the job was over
    REFUSED = 4  # complete, but without a learner that was refused for good
    INTERRUPTED = 130


def summarise(
    out: Path,
    result: str,
    wall_seconds: float,
    progress: ProgressStatus | None,
    slots: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return what the run of these slots came to; `progress` is the last that is known of it."""
    tapes = read_tapes(out)
    *lost, run = [line["run"] for line in runs_of(tapes[0] if tapes else [])] or [""]
    telemetry = {p.stem: read_lines(p) for p in sorted((out / "learners").glob("*.jsonl"))}
    tape = [*chain.from_iterable(map(of_last_run, tapes))]
    commits = [line for line in tape if line.get("event") == "commit"]
    learners = _by_learner(commits)
    counts = (progress and progress.token_counts) or NOTHING
    losses = [line["loss"] for line in read_lines(out / "evaluations.jsonl")] or [None]
    merged = {slot for slot, learner in learners.items() if learner["merged"]}

    def share(name: str) -> float:
        return float(getattr(progress, name, None) or 0.0)

    return {
        "result": result,
        "steps": progress.step if progress else None,
        "lost_runs": lost,
        "tokens": counts.model_dump(),
        "goodput": share("goodput"),
        "late_share": counts.late / counts.trained if counts.trained else 0.0,
        "participation": share("participation"),
        "uptime": share("uptime"),
        "commits": len(commits),
        "bytes": moved(tapes),
        "machines": _machines(tapes),
        "learners": learners,
        "without_work": sorted((slots | telemetry.keys()) - merged),
        "left_out": _left_out(tape),
        "warnings": _warnings(telemetry, run if lost else ""),
        "wall_seconds": wall_seconds,
        "outer_loss": {"start": losses[0], "end": losses[-1]},
    }


def _by_learner(commits: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How each learner worked, as its processes have told the shards, and its tokens."""
    told: dict[str, dict[str, float]] = {}
    merged = Counter[str]()
    for line in commits:
        for slot, each in line.get("learners", {}).items():
            if slot not in told or each["tokens"] >= told[slot]["tokens"]:
                told[slot] = each
        merged.update({part["slot"]: part["tokens"] for part in line["participants"]})
    slices = len({(line["shard"], line["slice"]) for line in commits}) or 1
    return {
        slot: _shares(told.get(slot))
        | {
            "trained": told.get(slot, {}).get("tokens", 0),
            "merged": round(merged[slot] / slices),
            "share": merged[slot] / (merged.total() or 1),
        }
        for slot in sorted(told.keys() | merged.keys())
    }


def _shares(told: dict[str, float] | None) -> dict[str, float]:
    """Of the newest process of a learner; empty: it has told nothing."""
    if not told or not told["step_seconds"]:
        return {}
    busy = told["busy_share"]
    return {"busy_share": busy, "blocked_share": 1 - busy, "step_seconds": told["step_seconds"]}


def _machines(tapes: Iterable[list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return what went between each machine and the shards, up from it and down to it."""
    return {
        name: {"region": region, "up_bytes": moved.up, "down_bytes": moved.down}
        for (region, name), moved in sorted(moved_by_machines(tapes).items())
    }


def moved(tapes: Iterable[list[dict[str, Any]]]) -> dict[str, int]:
    """Bulk bytes from learners (up) and to learners and observers (down), all process starts."""
    total = {"up": 0, "down": 0}
    for last in chain.from_iterable(map(ends_of_starts, tapes)):
        total["up"] += last["bytes_up"]
        total["down"] += last["bytes_down"]
    return total


def sentence(found: dict[str, Any]) -> str:
    loss, late = found["outer_loss"], found["late_share"]
    said = f"{found['tokens']['trained']:,} tokens, {found['goodput']:.0%} merged"
    if round(100 * late):
        said += f", {late:.0%} too late"
    if loss["end"] is not None:
        said += f", held-out loss {loss['start']:.3f} -> {loss['end']:.3f}"
    if without := some_of(found["without_work"]):
        said += f"; no work of {without} was merged"
    if found["lost_runs"]:
        said += "; all of an earlier run was lost, and is not in these numbers"
    warnings = found["warnings"].items()
    return said + "".join(f"; {reason} ({', '.join(slots)})" for reason, slots in warnings)


def little_merged(found: dict[str, Any]) -> str:
    """Why less was merged than usual; empty if it was not. `late_work` has words for late work."""
    tokens, share = found["tokens"], found["goodput"]
    rest = {name: tokens[name] for name in ("overlap", "late", "lost", "pending")}
    most = max(rest, key=lambda name: rest[name])
    if not tokens["trained"] or share >= LITTLE_MERGED or most == "late":
        return ""
    known = found["learners"].values()
    seconds = [learner["step_seconds"] for learner in known if "step_seconds" in learner]
    step = f"steps of {1000 * sum(seconds) / len(seconds):.3g} ms" if seconds else "steps"
    why = {
        "overlap": f"{step} are short against a slice's way to its shard and back;"
        " longer steps merge more",
        "lost": "most of the rest was lost with processes that died",
        "pending": "most of the rest came after the last merges; a longer job merges more",
    }
    return f"{share:.0%} merged: {why[most]}"


def refusals(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{slot}: {each['offers']} of its offers {'was' if each['offers'] == 1 else 'were'} left"
        f" out, the last because of {each['reason']}"
        for slot, each in found["left_out"].items()
    ]
    more = len(lines) - LINES_MAX
    if more > 0:
        lines[LINES_MAX:] = [f"{more} more learners: see left_out in summary.json"]
    return [*lines, f"What to do: {REMEDIES['Degraded', 'OffersRefused']}"] if lines else []


def _left_out(tape: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By slot: how many offers were refused for their values, and why the last one was."""
    found: dict[str, dict[str, Any]] = {}
    for line in tape:
        if line.get("event") == "late" and "reason" in line:
            before = found.get(line["slot"], {"offers": 0})
            found[line["slot"]] = {"offers": before["offers"] + 1, "reason": line["reason"]}
    return dict(sorted(found.items()))


def _warnings(telemetry: dict[str, list[dict[str, Any]]], run: str) -> dict[str, list[str]]:
    """By reason, the learners that have warned of it; with `run` in that run alone."""
    found: dict[str, list[str]] = {}
    for slot, lines in telemetry.items():
        warnings = (x for x in lines if x.get("event") == "warning")
        for reason in dict.fromkeys(x["reason"] for x in warnings if not run or x["run"] == run):
            found.setdefault(reason, []).append(slot)
    return found
