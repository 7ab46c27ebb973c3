"""What holds of every run, whatever was killed in it: tokens are conserved, versions follow."""

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from atoll_protos.job.layout import build_layout
from atoll_syncer.checkpoints import restoring
from atoll_syncer.checkpoints.copies import Place
from local.command import commits, json_lines, tapes

REPORT_SECONDS_MAX = 2.0


STALL_SECONDS = 2.0  # as rule 6 has it
Key = tuple[str, int, int, int]  # slot, incarnation, shard, slice


@dataclass(slots=True, kw_only=True)
class Tokens:
    """What became of the tokens of one learner: trained = the sum of all others."""

    trained: int = 0
    merged: int = 0
    overlap: int = 0
    late: int = 0
    lost: int = 0
    pending: int = 0


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


def learners_lines(*folders: Path) -> list[dict[str, Any]]:
    """What all learners of a run have reported, whose files are in these folders."""
    files = [path for folder in folders for path in (folder / "learners").glob("*.jsonl")]
    return [line for path in files for line in json_lines(path)]


def balanced(tokens: Tokens) -> bool:
    """Whether every trained token is in exactly one of the other counts."""
    others = tokens.merged + tokens.overlap + tokens.late + tokens.lost + tokens.pending
    return tokens.trained == others


def merged_by_tape(out: Path) -> dict[Key, int]:
    """Tokens that commits name, by who trained them."""
    merged: Counter[Key] = Counter()
    for line in commits(out):
        for part in line["participants"]:
            merged[part["slot"], part["incarnation"], line["shard"], line["slice"]] += part[
                "tokens"
            ]
    return dict(merged)


def check_law(out: Path, *machines: Path) -> None:
    """Rule 13 from the files; and versions of a slice follow one another (rule 19).

    `machines`: state folders of those that have joined.
    """
    law = conserve(learners_lines(out, *machines), tapes(out))
    assert all(map(balanced, law.values())), law
    assert {key: tokens.merged for key, tokens in law.items()} == {
        **dict.fromkeys(law, 0),
        **merged_by_tape(out),
    }
    by_slice: dict[tuple[int, int], list[int]] = {}
    for line in commits(out):
        by_slice.setdefault((line["shard"], line["slice"]), []).append(line["version"])
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_slice.values())
    check_merges(commits(out))


def check_status(out: Path, *, nobody_died: bool) -> None:
    """What the status said last of the tokens is what the files say (rule 13).

    Of a learner that was killed, the steps since its last report, 2 s at most (rule 7), are not in
    the status. Merged is exact.
    """
    status = json.loads((out / "status.json").read_text())["progress"]
    said = status["tokenCounts"]
    law, sums = conserve(learners_lines(out), tapes(out)), Counter[str]()
    for tokens in law.values():
        sums.update(dataclasses.asdict(tokens))
    slices = len({key[2:] for key in law})
    true = {name: sums[name] // slices for name in said}
    assert said["trained"] == sum(said.values()) - said["trained"], said
    assert said["merged"] == true["merged"], (said, true)
    newest = {line["shard"]: line["counts"] for line in commits(out) if "counts" in line}
    assert sum(each["merged"] for each in newest.values()) == sums["merged"], (newest, sums)
    assert float(status["goodput"]) == pytest.approx(said["merged"] / said["trained"], abs=1e-4)
    times = [line["time"] for line in commits(out)]
    died = len({key[:2] for key in law}) - len({key[0] for key in law})
    tokens_per_second = true["trained"] / len({key[0] for key in law}) / (max(times) - min(times))
    off = len(said) + (0 if nobody_died else died * REPORT_SECONDS_MAX * tokens_per_second)
    assert {name: pytest.approx(n, abs=off) for name, n in true.items()} == said, (said, true)
    merges = [len(line["participants"]) for line in commits(out) if line["participants"]]
    learners = len({key[0] for key in law})
    participation = sum(merges) / len(merges) / learners
    assert float(status["participation"]) == pytest.approx(participation, abs=1e-4)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["tokens"] == said
    trains = uptime([json_lines(path) for path in (out / "learners").glob("*.jsonl")])
    assert float(status["uptime"]) == pytest.approx(trains, abs=0.1 + unseen_share(out))
    moved = {name: sum(link[f"{name}Bytes"] for link in status["links"]) for name in ("up", "down")}
    present = {line["shard"]: line["epoch"] for line in commits(out)}  # who counts its own bytes
    sent = {
        part["slot"].rpartition("-")[0]
        for line in commits(out)
        if line["epoch"] == present[line["shard"]]
        for part in line["participants"]
    }
    assert {link["region"] for link in status["links"]} >= sent, (status["links"], present)
    assert not nobody_died or moved == summary["bytes"]


def unseen_share(out: Path) -> float:
    """The share of a run in which its first shard was down, so that it counted no time of it.

    Each shard counts for itself, and the status has what shard 0 has counted.
    """
    told = (line.get("seconds") or 0.0 for line in commits(out) if line["shard"] == 0)
    seen: float = max(told, default=0.0)
    times: list[float] = [line["time"] for line in learners_lines(out) if line.get("step_seconds")]
    return max(0.0, 1.0 - seen / (max(times) - min(times)))


def check_merges(lines: list[dict[str, Any]]) -> None:
    """No offer is in two versions, and none of a lower incarnation after a higher (rules 5, 13)."""
    merged: Counter[tuple[Any, ...]] = Counter()
    highest: dict[tuple[int, str], int] = {}
    for line in lines:
        for part in line["participants"]:
            slot, incarnation = part["slot"], part["incarnation"]
            offer = slot, incarnation, part["base"], part["capture"]
            merged[line["shard"], line["slice"], *offer] += 1
            before = highest.get((line["shard"], slot), 0)
            assert incarnation >= before, f"{slot}: incarnation {incarnation} after {before}"
            highest[line["shard"], slot] = incarnation
    twice = {offer for offer, count in merged.items() if count > 1}
    assert not twice, f"in two versions (shard, slice, slot, incarnation, base, capture): {twice}"


def exported_is_newest(out: Path, url: str, open_place: Callable[[str], Place]) -> bool:
    """Whether the model has the values of the newest version of each slice, bit for bit.

    `url`: where the shards have their state.
    """
    stored = restoring.find(url, open_place)
    whole = build_layout(stored.layout.tensors, 1, 1)
    (owned,) = whole.slices
    master, momentum = (np.zeros(owned.element_count, np.float32) for _ in range(2))
    restoring.fill(stored, whole, 0, {0: {"master": master, "momentum": momentum}})
    model = load_file(out / "export" / "model.safetensors")
    for piece in owned.pieces:
        values = master[piece.offset : piece.offset + piece.stop - piece.start]
        exported = model[whole.tensors[piece.tensor].name].ravel()[piece.start : piece.stop]
        if not np.array_equal(exported, values):
            return False
    return True
