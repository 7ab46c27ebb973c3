"""What became of every token, from the lines of learners and shards (docs/protocol.md, rule 13)."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.job.sync_fields import GraceSpec, SyncSpec
from atoll_operator.api.status.conditions import late_work
from atoll_operator.api.status.job_status import ProgressStatus, TokenCounts
from atoll_operator.local.run_files import read_lines
from atoll_operator.local.show.run_summary import (
    NOTHING,
    little_merged,
    moved,
    refusals,
    sentence,
    summarise,
)
from atoll_protos.job.run_file import GraceLimit
from local.law import balanced, conserve, uptime

KEY = ("a-0", 1, 0, 0)
END = {"slot": "a-0", "incarnation": 1, "event": "end"}


def start() -> dict[str, Any]:
    """Version 0 is adopted."""
    return step(tokens=0, adopted=[settled(0)])


def step(tokens: int, adopted: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    line = {"slot": "a-0", "incarnation": 1, "tokens": tokens, "adopted": adopted or []}
    line["time"] = 0.0
    return {**line, "step_seconds": 0.9, "blocked_seconds": 0.1}


def settled(version: int, merged: int = 0, overlap: int = 0, late: int = 0) -> dict[str, Any]:
    counts = {"merged": merged, "overlap": overlap, "late": late}
    return {"shard": 0, "slice": 0, "version": version, **counts}


def commit(base: int, tokens: int, slot: str = "a-0") -> dict[str, Any]:
    part = {"slot": slot, "incarnation": 1, "tokens": tokens, "base": base}
    bytes_moved = {"bytes_up": 10 * (base + 1), "bytes_down": 20 * (base + 1)}
    version = {"shard": 0, "slice": 0, "version": base + 1, "epoch": 1}
    return {"event": "commit", **version, "participants": [part], **bytes_moved}


def summary_of(
    out: Path,
    learners: dict[str, list[Any]],
    tape: list[Any],
    evaluations: list[Any] | None = None,
    slots: frozenset[str] = frozenset(),
    counts: dict[str, int] | None = None,
) -> dict[str, Any]:
    """The summary of a run folder whose files have these lines."""
    files = {f"learners/{slot}.jsonl": lines for slot, lines in learners.items()}
    files |= {"syncer/0.tape.jsonl": tape, "evaluations.jsonl": evaluations or []}
    for name, lines in files.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return summarise(out, "Complete", 12.0, progress(**counts or {}), slots)


def progress(**counts: int) -> ProgressStatus:
    """What the last status says; `counts` are those of the tokens."""
    tokens = TokenCounts(**{**NOTHING.model_dump(), **counts})
    share = tokens.merged / (tokens.trained or 1)
    return ProgressStatus(
        step=2,
        tokens=tokens.trained,
        last_updated_time="2026-11-30T12:00:00Z",
        progress_percentage=100,
        token_counts=tokens,
        goodput=f"{share:.4f}",
        participation="1.0000",
        uptime="0.9000",
    )


SETTLED = [start(), step(10), step(10), step(10, [settled(1, merged=20, overlap=10)]), END]
OPEN = [start(), step(10), step(5)]


@pytest.mark.parametrize(
    ("lines", "tape", "found"),
    [
        (SETTLED, [commit(0, 20)], {"merged": 20, "overlap": 10}),
        ([*OPEN, END], [], {"pending": 15}),
        (OPEN, [], {"lost": 15}),
        ([*OPEN, END, {**start(), "incarnation": 2}], [], {"lost": 15}),  # nobody will settle it
        (OPEN, [commit(0, 10)], {"merged": 10, "lost": 5}),  # it is dead, and its offer is not
    ],
)
def test_every_token_has_one_outcome(lines: list[Any], tape: list[Any], found: Any) -> None:
    tokens = conserve(lines, tape)[KEY]
    outcomes = ("merged", "overlap", "late", "lost", "pending")
    assert {each: n for each in outcomes if (n := getattr(tokens, each))} == found
    assert tokens.trained == sum(found.values())
    assert balanced(tokens)


def test_learners_without_any_work_in_a_version_and_warnings_are_named(tmp_path: Path) -> None:
    warning = {**start(), "event": "warning", "reason": "trained here only: head"}
    learners = {key: [start(), step(10), warning, warning, END] for key in ("a-0", "a-1")}
    slots = frozenset({"a-0", "a-1", "b-0"})
    found = summary_of(tmp_path, learners, [commit(0, 10)], slots=slots)
    assert found["without_work"] == ["a-1", "b-0"]
    assert found["warnings"] == {"trained here only: head": ["a-0", "a-1"]}
    said = "; no work of a-1, b-0 was merged; trained here only: head (a-0, a-1)"
    assert sentence(found).endswith(said)


def test_the_summary_of_a_folder(tmp_path: Path) -> None:
    tape = [{"bytes_up": up, "bytes_down": 2 * up} for up in (0, 5, 9, 0, 4)]
    assert moved([tape, tape[:2]]) == {"up": 9 + 4 + 5, "down": 18 + 8 + 10}  # over all starts
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')  # a kill has cut it short
    assert (read_lines(path), read_lines(tmp_path / "none")) == ([{"a": 1}], [])
    told = {"a-0": {"tokens": 20, "step_seconds": 0.5, "busy_share": 0.9}}
    moved_until_then = {"bytes_up": 10, "bytes_down": 20}
    last = {**commit(1, 0), "participants": [], "learners": told, **moved_until_then}
    evaluations = [{"loss": 5.5}, {"loss": 2.0}]
    tape = [commit(0, 10), last, commit(0, 10)]  # its former process has slept before the line
    counts = {"trained": 20, "merged": 10, "overlap": 10}
    found = summary_of(tmp_path, {"a-0": [start()]}, tape, evaluations, counts=counts)
    assert found["commits"] == 2
    assert found["result"] == "Complete"
    assert found["tokens"]["trained"] == 20
    assert found["goodput"] == pytest.approx(0.5)
    assert (found["steps"], found["participation"], found["uptime"]) == (2, 1.0, 0.9)
    assert found["bytes"] == {"up": 10, "down": 20}
    assert found["learners"]["a-0"]["busy_share"] == pytest.approx(0.9)
    assert found["outer_loss"] == {"start": 5.5, "end": 2.0}
    assert sentence(found) == "20 tokens, 50% merged, held-out loss 5.500 -> 2.000"
    assert found["without_work"] == []
    assert little_merged(found).startswith("50% merged: steps of ")


@pytest.mark.parametrize(
    ("merged", "rest", "said"),
    [
        (69, {"overlap": 16, "pending": 15}, "69% merged: steps of 2 ms are short against"),
        (69, {"overlap": 15, "pending": 16}, "69% merged: most of the rest came after the last"),
        (69, {"overlap": 15, "lost": 16}, "69% merged: most of the rest was lost with processes"),
        (69, {"overlap": 15, "late": 16}, ""),  # which has a line of its own
        (70, {"overlap": 30}, ""),
        (0, {}, ""),  # nothing was trained
    ],
)
def test_that_little_was_merged_is_explained(merged: int, rest: dict[str, int], said: str) -> None:
    tokens = dict.fromkeys(("overlap", "late", "lost", "pending"), 0) | rest
    found = {
        "tokens": {**tokens, "trained": merged + sum(rest.values())},
        "goodput": merged / 100,
        "learners": {"a-0": {"step_seconds": 0.001}, "a-1": {"step_seconds": 0.003}},
    }
    assert little_merged(found).startswith(said)
    assert bool(little_merged(found)) == bool(said)


def test_learners_have_what_they_have_told_the_shards(tmp_path: Path) -> None:
    told: dict[str, dict[str, float]] = {
        "a-0": {"tokens": 30, "step_seconds": 0.9, "busy_share": 0.9},
        "b-0": {"tokens": 40, "step_seconds": 0.5, "busy_share": 0.75},
    }
    before = {**commit(1, 10, "b-0"), "learners": {"b-0": {**told["b-0"], "tokens": 20}}}
    newest = {**commit(2, 20, "b-0"), "learners": told}
    of_law = [commit(0, 10), before, newest, commit(3, 10, "c-0")]
    slots = frozenset({"a-0", "b-0", "c-0", "d-0"})
    found = summary_of(tmp_path, {}, of_law, slots=slots)
    assert found["learners"]["a-0"] == pytest.approx(
        {
            "busy_share": 0.9,
            "blocked_share": 0.1,
            "step_seconds": 0.9,
            "trained": 30,
            "merged": 10,
            "share": 0.2,
        }
    )
    assert found["learners"]["b-0"] == pytest.approx(
        {
            "busy_share": 0.75,
            "blocked_share": 0.25,
            "step_seconds": 0.5,
            "trained": 40,
            "merged": 30,
            "share": 0.6,
        }
    )
    assert found["learners"]["c-0"] == {"trained": 0, "merged": 10, "share": 0.2}
    assert found["without_work"] == ["d-0"]
    tokens = {"trained": 10, "overlap": 9, "late": 0, "lost": 0, "pending": 0}
    said = little_merged({**found, "goodput": 0.1, "tokens": tokens})
    assert said.startswith("10% merged: steps of 700 ms")


def test_bytes_of_machines_are_in_the_summary(tmp_path: Path) -> None:
    moved = {"eu": {"house": (2_000_000_000, 500)}, "us": {"gone": (0, 1_000_000_000)}}
    tape = [{**commit(0, 10), "bytes_up": 1, "machines": moved}]
    found = summary_of(tmp_path, {}, tape)
    assert found["machines"] == {
        "house": {"region": "eu", "up_bytes": 2_000_000_000, "down_bytes": 500},
        "gone": {"region": "us", "up_bytes": 0, "down_bytes": 1_000_000_000},
    }


def test_where_no_learner_wrote_here_nothing_is_said_of_how_long_a_step_was() -> None:
    tokens = {"trained": 2, "overlap": 1, "late": 0, "lost": 0, "pending": 0}
    found = {"tokens": tokens, "goodput": 0.5, "learners": {}}
    assert little_merged(found).startswith("50% merged: steps are short against")


def test_offers_left_out_for_their_values_are_told_with_a_remedy(tmp_path: Path) -> None:
    reason = "slice 0: values are not finite: head.weight"
    late = {"event": "late", "slot": "a-0", "bytes_up": 0, "bytes_down": 0}
    refused = {**late, "slot": "b-0", "reason": reason}
    found = summary_of(tmp_path, {}, [late, refused, refused])
    assert found["left_out"] == {"b-0": {"offers": 2, "reason": reason}}
    told, remedy = refusals(found)
    assert told == f"b-0: 2 of its offers were left out, the last because of {reason}"
    assert "lower its learning rate" in remedy
    nine = refusals({"left_out": {f"a-{n}": {"offers": 1, "reason": "x"} for n in range(9)}})
    assert nine[0] == "a-0: 1 of its offers was left out, the last because of x"
    assert nine[-2] == "5 more learners: see left_out in summary.json"
    assert refusals({"left_out": {}}) == []


def test_uptime_is_the_share_of_the_time_in_which_any_learner_trains() -> None:
    def lines(*ends: float) -> list[dict[str, Any]]:
        return [{**step(1), "time": end} for end in ends]

    assert uptime([]) == uptime([[{**start(), "step_seconds": 0.0, "time": 1.0}]]) == 0.0
    assert uptime([lines(1.0, 2.0, 3.5)]) == 1.0  # the next step may begin a little later
    alone = lines(1.0, 2.0, 10.0)
    assert uptime([alone]) == pytest.approx(1 - 7 / 10)
    assert uptime([alone, lines(4.0, 5.0)]) == pytest.approx(1 - 4 / 10)


def test_late_work_above_a_tenth_of_the_trained_tokens_is_told(tmp_path: Path) -> None:
    counts = {"trained": 200, "late": 20, "pending": 180}
    found = summary_of(tmp_path, {"a-0": [start()]}, [], counts=counts)
    assert (found["tokens"]["late"], found["late_share"]) == (20, 0.1)
    assert sentence(found) == "200 tokens, 0% merged, 10% too late; no work of a-0 was merged"
    assert late_work(0.1, SyncSpec()) == ""
    assert "11% of the trained tokens" in late_work(0.11, SyncSpec())
    published = SyncSpec(grace=GraceSpec(limit=GraceLimit.OVERLAP))
    assert "set spec.sync.grace.limit to Work" in late_work(0.11, published)
    for grace in (GraceSpec(enabled=False), GraceSpec()):  # nothing to set
        for field in ("spec.sync.overlap (now 2)", "raise spec.sync.quorum (now all)"):
            assert field in late_work(0.11, SyncSpec(quorum=None, grace=grace))
