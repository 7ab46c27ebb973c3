"""summary.json, from the files of a run folder alone: what became of every token.

For every incarnation of every slot, and every slice, the token law holds (docs/protocol.md,
rule 13): trained = merged + overlap + late + lost + pending.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from atoll_operator.api.reasons import REMEDIES

LITTLE_MERGED: Final = 0.7  # of the trained tokens: below, a line says what became of the rest
LINES_MAX: Final = 4  # of learners whose offers were left out


class Exit(IntEnum):
    """How a run ended: the exit code of `atoll run`, and its name as `result` in summary.json.

    Of the two that only a complete job has, the result is `Complete`.
    """

    COMPLETE = 0
    FAILED = 1
    BAD_INPUT = 2
    FAILED_AFTER = 3  # complete, but a process failed once the job was over
    REFUSED = 4  # complete, but without a learner that was refused for good
    INTERRUPTED = 130


@dataclass(slots=True, kw_only=True)
class Tokens:
    """What became of the tokens of one learner: trained = the sum of all others."""

    trained: int = 0
    merged: int = 0
    overlap: int = 0
    late: int = 0
    lost: int = 0
    pending: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every trained token is in exactly one of the other counts."""
        return self.trained == self.merged + self.overlap + self.late + self.lost + self.pending


Key = tuple[str, int, int, int]  # slot, incarnation, shard, slice


def read_lines(path: Path, start: int = 0) -> list[dict[str, Any]]:
    """The JSON lines of a file, from this byte on; a line that a kill has cut short is left out."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        text = file.read().decode("utf-8", errors="replace")
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def conserve(
    learner_lines: Iterable[dict[str, Any]], tape_lines: Iterable[dict[str, Any]]
) -> dict[Key, Tokens]:
    """The counts for every incarnation of every slot, and every slice.

    Merged tokens come from the tape, all others from the learners' lines. What was trained since
    the last adoption and is in no commit is pending if the learner ended with an end line, and
    lost if it died without one.
    """
    merged: dict[Key, dict[int, int]] = defaultdict(dict)  # base: tokens
    for line in tape_lines:
        if line.get("event") != "commit":
            continue
        for part in line["participants"]:
            key = part["slot"], part["incarnation"], line["shard"], line["slice"]
            merged[key][part["base"]] = part["tokens"]
    found: dict[Key, Tokens] = defaultdict(Tokens)
    since: dict[Key, int] = defaultdict(int)
    trained: dict[tuple[str, int], int] = defaultdict(int)
    held: dict[tuple[str, int], dict[tuple[int, int], int]] = defaultdict(dict)
    ended: set[tuple[str, int]] = set()
    for line in learner_lines:
        name = line["slot"], line["incarnation"]
        if line.get("event") == "end":
            ended.add(name)
        if "adopted" not in line:
            continue
        trained[name] += line["tokens"]
        for key in [k for k in since if k[:2] == name]:
            since[key] += line["tokens"]
        for each in line["adopted"]:
            key = *name, each["shard"], each["slice"]
            tokens = found[key]
            tokens.merged += each["merged"]
            tokens.overlap += each["overlap"]
            tokens.late += each["late"]
            since[key] = 0
            held[name][each["shard"], each["slice"]] = each["version"]
    for key, left in since.items():
        name = key[:2]
        tokens = found[key]
        tokens.trained = trained[name]
        last = merged[key].get(held[name][key[2:]], 0)
        tokens.merged += last
        if name in ended:
            tokens.pending += left - last
        else:
            tokens.lost += left - last
    return dict(found)


def merged_by_tape(tape_lines: Iterable[dict[str, Any]]) -> dict[Key, int]:
    """Tokens that commits name, by who trained them."""
    merged: dict[Key, int] = defaultdict(int)
    for line in tape_lines:
        if line.get("event") == "commit":
            for part in line["participants"]:
                key = part["slot"], part["incarnation"], line["shard"], line["slice"]
                merged[key] += part["tokens"]
    return dict(merged)


def summarise(
    out: Path,
    result: str,
    wall_seconds: float,
    steps: int | None,
    slots: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """What the run of these slots came to, after so many steps of the job (None: not known).

    Token counts are means over slices, since every token is counted in every slice.
    """
    learners = {p.stem: read_lines(p) for p in sorted((out / "learners").glob("*.jsonl"))}
    tapes = [read_lines(path) for path in sorted((out / "syncer").glob("*.jsonl"))]
    tape = [line for lines in tapes for line in lines]
    commits = [line for line in tape if line.get("event") == "commit"]
    law = conserve([line for lines in learners.values() for line in lines], tape)
    slices = len({key[2:] for key in law}) or 1
    totals = {
        each.name: round(sum(getattr(tokens, each.name) for tokens in law.values()) / slices)
        for each in fields(Tokens)
    }
    evaluations = read_lines(out / "evaluations.jsonl")
    merges = [len(line["participants"]) for line in commits if line["participants"]]
    merged = {part["slot"] for line in commits for part in line["participants"]}
    return {
        "result": result,
        "steps": steps,
        "tokens": totals,
        "goodput": totals["merged"] / totals["trained"] if totals["trained"] else 0.0,
        "late_share": totals["late"] / totals["trained"] if totals["trained"] else 0.0,
        "participation": sum(merges) / (len(merges) * max(1, len(learners))) if merges else 0.0,
        "commits": len(commits),
        "bytes": moved(tapes),
        "learners": {slot: _shares(lines) for slot, lines in learners.items()},
        "without_work": sorted((slots | learners.keys()) - merged),
        "left_out": _left_out(tape),
        "warnings": _warnings(learners),
        "wall_seconds": wall_seconds,
        "outer_loss": {
            "start": evaluations[0]["loss"] if evaluations else None,
            "end": evaluations[-1]["loss"] if evaluations else None,
        },
    }


def moved(tapes: Iterable[list[dict[str, Any]]]) -> dict[str, int]:
    """Bulk bytes from learners (up) and to learners and observers (down), all process starts."""
    total = {"up": 0, "down": 0}
    for lines in tapes:
        counts = [(line["bytes_up"], line["bytes_down"]) for line in lines]
        for (up, down), following in zip(counts, [*counts[1:], (0, 0)], strict=True):
            if following[0] < up or following[1] < down:  # the last line of a process start
                total["up"] += up
                total["down"] += down
    return total


def sentence(found: dict[str, Any]) -> str:
    """A summary in one sentence."""
    loss = found["outer_loss"]
    change = ""
    if loss["end"] is not None:
        change = f", held-out loss {loss['start']:.3f} -> {loss['end']:.3f}"
    without = ", ".join(found["without_work"])
    missed = f"; no work of {without} was merged" if without else ""
    tokens = f"{found['tokens']['trained']:,} tokens, {found['goodput']:.0%} merged"
    if round(100 * found["late_share"]):
        tokens += f", {found['late_share']:.0%} too late"
    told = "".join(f"; {reason} ({', '.join(slots)})" for reason, slots in warned(found).items())
    return f"{tokens}{change}{missed}{told}"


def little_merged(found: dict[str, Any]) -> str:
    """Why less was merged than usual, by what became of most of the rest; empty if it was not.

    Of late work `late_work` tells.
    """
    tokens, share = found["tokens"], found["goodput"]
    rest = {name: tokens[name] for name in ("overlap", "late", "lost", "pending")}
    most = max(rest, key=lambda name: rest[name])
    if not tokens["trained"] or share >= LITTLE_MERGED or most == "late":
        return ""
    seconds = [each["step_seconds"] for each in found["learners"].values()]
    step = 1000 * sum(seconds) / max(1, len(seconds))
    why = {
        "overlap": f"steps of {step:.3g} ms are short against a slice's way to its shard and back;"
        " longer steps merge more",
        "lost": "most of the rest was lost with processes that died",
        "pending": "most of the rest came after the last merges; a longer job merges more",
    }
    return f"{share:.0%} merged: {why[most]}"


def warned(found: dict[str, Any]) -> dict[str, list[str]]:
    """What learners have warned of, with the slots that did."""
    told: dict[str, list[str]] = found["warnings"]
    return told


def refusals(found: dict[str, Any]) -> list[str]:
    """A line for each learner of whose offers some were left out: how many, why, and what to do."""
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


def _warnings(learners: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for slot, lines in learners.items():
        for reason in dict.fromkeys(x["reason"] for x in lines if x.get("event") == "warning"):
            found.setdefault(reason, []).append(slot)
    return found


def _shares(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Where the time of a learner went, and how long its steps are on average."""
    steps = [line for line in lines if "step_seconds" in line]
    busy = sum(line["step_seconds"] for line in steps)
    blocked = sum(line["blocked_seconds"] for line in steps)
    whole = busy + blocked or 1.0
    shares = {"busy_share": busy / whole, "blocked_share": blocked / whole}
    made = [line for line in steps if line["step_seconds"]]  # the first line of a start is of none
    return {**shares, "step_seconds": busy / max(1, len(made))}
