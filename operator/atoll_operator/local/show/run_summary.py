"""summary.json, from the files of a run folder alone: what became of every token.

For every incarnation of every slot, and every slice, the token law holds (rule 13): trained =
merged + overlap + late + lost + pending.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any, Final

from atoll_operator.api.status.condition_facts import some_of
from atoll_operator.api.status.reasons import REMEDIES
from atoll_operator.local.folder.run_files import (
    ends_of_starts,
    of_last_run,
    read_lines,
    read_tapes,
    runs_of,
)
from atoll_operator.local.progress.machines import moved_by_machines
from atoll_operator.sizing.prices import FREE, Prices

LITTLE_MERGED: Final = 0.7  # of the trained tokens: below, a line says what became of the rest
STALL_SECONDS: Final = 2.0  # as rule 6 has it
LINES_MAX: Final = 4  # of learners whose offers were left out


class RunResult(IntEnum):
    """How a run ended: the exit code of `atoll run`, and its name as `result` in summary.json."""

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


Key = tuple[str, int, int, int]  # slot, incarnation, shard, slice


def conserve(
    learner_lines: Iterable[dict[str, Any]], tape_lines: Iterable[dict[str, Any]]
) -> dict[Key, Tokens]:
    """The counts for every incarnation of every slot, and every slice.

    What was trained since the last adoption and is in no commit is pending if the slot's newest
    process ended with an end line, and lost with one that died without it, or was followed.
    """
    merged = _merged(tape_lines)
    found: dict[Key, Tokens] = defaultdict(Tokens)
    since: dict[Key, int] = defaultdict(int)
    trained: dict[tuple[str, int], int] = defaultdict(int)
    held: dict[tuple[str, int], dict[tuple[int, int], int]] = defaultdict(dict)
    ended: set[tuple[str, int]] = set()
    newest: dict[str, int] = defaultdict(int)
    for line in learner_lines:
        name = line["slot"], line["incarnation"]
        newest[name[0]] = max(name[1], newest[name[0]])
        ended |= {name} if line.get("event") == "end" else set()
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
        name, tokens = key[:2], found[key]
        tokens.trained = trained[name]
        last = merged[key].get(held[name][key[2:]], 0)
        tokens.merged += last
        if name in ended and name[1] == newest[name[0]]:
            tokens.pending += left - last
        else:
            tokens.lost += left - last
    return dict(found)


def _merged(tape_lines: Iterable[dict[str, Any]]) -> dict[Key, dict[int, int]]:
    """Tokens that commits name, by who trained them and since which version."""
    merged: dict[Key, dict[int, int]] = defaultdict(dict)
    for line in tape_lines:
        for part in line["participants"] if line.get("event") == "commit" else ():
            key = part["slot"], part["incarnation"], line["shard"], line["slice"]
            merged[key][part["base"]] = part["tokens"]
    return merged


def summarise(
    out: Path,
    result: str,
    wall_seconds: float,
    steps: int | None,
    slots: frozenset[str] = frozenset(),
    prices: Prices = FREE,
    home: str = "",
) -> dict[str, Any]:
    """What the run of these slots came to. Token counts are means over slices.

    `prices` are of bytes that leave a region; `home` is that of the shards.
    """
    tapes = read_tapes(out)
    *lost, run = [each["run"] for each in runs_of(tapes[0] if tapes else [])] or [""]
    learners = {p.stem: read_lines(p) for p in sorted((out / "learners").glob("*.jsonl"))}
    if lost:  # numbers have begun again
        for slot, lines in learners.items():
            learners[slot] = [line for line in lines if line.get("run", run) == run]
    tape = [*chain.from_iterable(map(of_last_run, tapes))]
    commits = [line for line in tape if line.get("event") == "commit"]
    merged = {part["slot"] for line in commits for part in line["participants"]}
    away = merged - learners.keys()  # they write on machines of their own
    law = conserve(chain.from_iterable(learners.values()), tape)
    totals = _told(commits) if away else _means(law)
    all_of = learners.keys() | merged
    losses = [each["loss"] for each in read_lines(out / "evaluations.jsonl")] or [None]
    merges = [len(line["participants"]) for line in commits if line["participants"]]
    return {
        "result": result,
        "steps": steps,
        "lost_runs": lost,
        "tokens": totals,
        "goodput": totals["merged"] / totals["trained"] if totals["trained"] else 0.0,
        "late_share": totals["late"] / totals["trained"] if totals["trained"] else 0.0,
        "participation": sum(merges) / (len(merges) * max(1, len(all_of))) if merges else 0.0,
        "uptime": _told_uptime(commits) if away else uptime(learners.values()),
        "commits": len(commits),
        "bytes": moved(tapes),
        "machines": _machines(tapes, prices, home),
        "learners": _by_learner(learners, commits, law),
        "without_work": sorted((slots | learners.keys()) - merged),
        "left_out": _left_out(tape),
        "warnings": _warnings(learners),
        "wall_seconds": wall_seconds,
        "outer_loss": {"start": losses[0], "end": losses[-1]},
    }


def _by_learner(
    learners: Mapping[str, list[dict[str, Any]]],
    commits: list[dict[str, Any]],
    law: Mapping[Key, Tokens],
) -> dict[str, dict[str, float]]:
    """How each learner worked, and its tokens: of those elsewhere as they have told the shards."""
    told: dict[str, dict[str, float]] = {}
    for slot, each in chain.from_iterable(x.get("learners", {}).items() for x in commits):
        if slot not in told or each["tokens"] >= told[slot]["tokens"]:
            told[slot] = each
    merged, own = Counter[str](), Counter[str]()
    parts = _merged(commits)
    for key, tokens in parts.items():
        merged[key[0]] += sum(tokens.values())
    for key, counts in law.items():
        own[key[0]] += counts.trained
    slices = len({key[2:] for key in (*parts, *law)}) or 1
    found: dict[str, dict[str, float]] = {}
    for slot in sorted(learners.keys() | told.keys() | merged.keys()):
        found[slot] = _shares(learners[slot]) if slot in learners else _told_shares(told.get(slot))
        trained = max(round(own[slot] / slices), told.get(slot, {}).get("tokens", 0))
        share = merged[slot] / (merged.total() or 1)
        found[slot] |= {"trained": trained, "merged": round(merged[slot] / slices), "share": share}
    return found


def _told_shares(told: Mapping[str, float] | None) -> dict[str, float]:
    """Of the newest process of a learner, as it has reported; empty: it has not."""
    if not told or not told["step_seconds"]:
        return {}
    busy = told["busy_share"]
    return {"busy_share": busy, "blocked_share": 1 - busy, "step_seconds": told["step_seconds"]}


def _machines(
    tapes: Iterable[list[dict[str, Any]]], prices: Prices, home: str
) -> dict[str, dict[str, Any]]:
    """What went between each machine and the shards, up from it and down to it."""
    found: dict[str, dict[str, Any]] = {}
    for (region, name), moved in sorted(moved_by_machines(tapes).items()):
        found[name] = {"region": region, "up_bytes": moved.up, "down_bytes": moved.down}
        cost = prices.cost(region, home, moved.up, moved.down)
        found[name] |= {} if cost is None else {"cost": cost}
    return found


def _means(law: Mapping[Key, Tokens]) -> dict[str, int]:
    slices = len({key[2:] for key in law}) or 1
    return {
        each.name: round(sum(getattr(tokens, each.name) for tokens in law.values()) / slices)
        for each in fields(Tokens)
    }


def _told(commits: Iterable[dict[str, Any]]) -> dict[str, int]:
    """The same as the newest commit of each shard has it, with what learners have reported."""
    newest = [*{line["shard"]: line["counts"] for line in commits if "counts" in line}.values()]
    slices = sum(each["slices"] for each in newest) or 1
    names = (each.name for each in fields(Tokens))
    return {name: round(sum(each[name] for each in newest) / slices) for name in names}


def _told_uptime(commits: Iterable[dict[str, Any]]) -> float:
    told = [line for line in commits if line.get("seconds")]
    return told[-1]["training_seconds"] / told[-1]["seconds"] if told else 0.0


def moved(tapes: Iterable[list[dict[str, Any]]]) -> dict[str, int]:
    """Bulk bytes from learners (up) and to learners and observers (down), all process starts."""
    total = {"up": 0, "down": 0}
    for last in chain.from_iterable(map(ends_of_starts, tapes)):
        total["up"] += last["bytes_up"]
        total["down"] += last["bytes_down"]
    return total


def uptime(learners: Iterable[list[dict[str, Any]]]) -> float:
    """The share of the time from the first step to the last in which a learner trained.

    A gap below STALL_SECONDS between two steps is none.
    """
    spans = sorted(
        (line["time"] - line["step_seconds"] - line["blocked_seconds"], line["time"])
        for lines in learners
        for line in lines
        if line.get("step_seconds")
    )
    if not spans:
        return 0.0
    began = reached = spans[0][0]
    away = 0.0
    for start, end in spans:
        away += start - reached if start - reached > STALL_SECONDS else 0.0
        reached = max(reached, end)
    return 1.0 - away / (reached - began) if reached > began else 1.0


def sentence(found: dict[str, Any]) -> str:
    loss, late = found["outer_loss"], found["late_share"]
    said = f"{found['tokens']['trained']:,} tokens, {found['goodput']:.0%} merged"
    if round(100 * late):
        said += f", {late:.0%} too late"
    if loss["end"] is not None:
        said += f", held-out loss {loss['start']:.3f} -> {loss['end']:.3f}"
    if without := some_of(found["without_work"]):
        said += f"; no work of {without} was merged"
    costs = [each["cost"] for each in found["machines"].values() if "cost" in each]
    if costs:
        said += f"; bytes between machines cost {sum(costs):,.2f}"
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
    seconds = [each["step_seconds"] for each in known if "step_seconds" in each]
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


def _warnings(learners: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for slot, lines in learners.items():
        for reason in dict.fromkeys(x["reason"] for x in lines if x.get("event") == "warning"):
            found.setdefault(reason, []).append(slot)
    return found


def _shares(lines: list[dict[str, Any]]) -> dict[str, float]:
    steps = [line for line in lines if "step_seconds" in line]
    busy = sum(line["step_seconds"] for line in steps)
    blocked = sum(line["blocked_seconds"] for line in steps)
    whole = busy + blocked or 1.0
    made = sum(line["step_seconds"] > 0 for line in steps)  # the first line of a start is of none
    step = busy / max(1, made)
    return {"busy_share": busy / whole, "blocked_share": blocked / whole, "step_seconds": step}
