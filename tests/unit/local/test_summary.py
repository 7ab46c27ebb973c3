"""What became of every token, from the lines of learners and shards (docs/protocol.md, rule 13)."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.facts import late_work
from atoll_operator.api.sync import SyncSpec
from atoll_operator.local.summary import (
    conserve,
    little_merged,
    merged_by_tape,
    moved,
    read_lines,
    refusals,
    sentence,
    summarise,
)

KEY = ("a-0", 1, 0, 0)


def start() -> dict[str, Any]:
    """Version 0 is adopted."""
    return step(tokens=0, adopted=[settled(0)])


def step(tokens: int, adopted: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    line = {"slot": "a-0", "incarnation": 1, "tokens": tokens, "adopted": adopted or []}
    return {**line, "step_seconds": 0.9, "blocked_seconds": 0.1}


def settled(version: int, merged: int = 0, overlap: int = 0, late: int = 0) -> dict[str, Any]:
    counts = {"merged": merged, "overlap": overlap, "late": late}
    return {"shard": 0, "slice": 0, "version": version, **counts}


def commit(base: int, tokens: int, slot: str = "a-0") -> dict[str, Any]:
    part = {"slot": slot, "incarnation": 1, "tokens": tokens, "base": base}
    bytes_moved = {"bytes_up": 10 * (base + 1), "bytes_down": 20 * (base + 1)}
    return {"event": "commit", "shard": 0, "slice": 0, "participants": [part], **bytes_moved}


END = {"slot": "a-0", "incarnation": 1, "event": "end"}


def test_merged_overlap_and_late_are_counted_at_adoption() -> None:
    lines = [start(), step(10), step(10), step(10, [settled(1, merged=20, overlap=10)]), END]
    tokens = conserve(lines, [commit(0, 20)])[KEY]
    assert (tokens.trained, tokens.merged, tokens.overlap, tokens.late) == (30, 20, 10, 0)
    assert tokens.balanced


def test_what_no_adoption_has_settled_is_pending_at_an_end_and_lost_without_one() -> None:
    lines = [start(), step(10), step(5)]
    alive = conserve([*lines, END], [])[KEY]
    dead = conserve(lines, [])[KEY]
    assert (alive.pending, alive.lost) == (15, 0)
    assert (dead.pending, dead.lost) == (0, 15)
    assert alive.balanced
    assert dead.balanced


def test_a_dead_learners_offer_that_a_commit_names_is_merged_not_lost() -> None:
    lines = [start(), step(10), step(5)]
    tokens = conserve(lines, [commit(0, 10)])[KEY]
    assert (tokens.merged, tokens.lost) == (10, 5)
    assert tokens.balanced


def test_a_line_that_lies_about_its_adoption_breaks_the_law() -> None:
    lines = [start(), step(10), step(10, [settled(1, merged=10, overlap=5)]), END]
    assert not conserve(lines, [commit(0, 10)])[KEY].balanced


def test_the_tape_alone_says_what_was_merged() -> None:
    assert merged_by_tape([commit(0, 20), commit(1, 7), {"event": "late"}]) == {KEY: 27}


def test_bytes_are_added_over_process_starts() -> None:
    tape = [{"bytes_up": up, "bytes_down": 2 * up} for up in (0, 5, 9, 0, 4)]
    assert moved([tape, tape[:2]]) == {"up": 9 + 4 + 5, "down": 18 + 8 + 10}


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2')
    assert read_lines(path) == [{"a": 1}]
    assert read_lines(tmp_path / "none") == []


def test_the_summary_of_a_folder(tmp_path: Path) -> None:
    for folder in ("learners", "syncer"):
        (tmp_path / folder).mkdir()
    learner = [start(), step(10), step(10, [settled(1, merged=10, overlap=10)]), END]
    write(tmp_path / "learners" / "a-0.jsonl", learner)
    last = {**commit(0, 0), "participants": []}  # it merges nothing, and counts as no merge
    write(tmp_path / "syncer" / "0.tape.jsonl", [commit(0, 10), last])
    write(tmp_path / "evaluations.jsonl", [{"loss": 5.5}, {"loss": 2.0}])
    found = summarise(tmp_path, "Complete", 12.0, 2)
    assert found["result"] == "Complete"
    assert found["tokens"]["trained"] == 20
    assert found["goodput"] == pytest.approx(0.5)
    assert found["participation"] == pytest.approx(1.0)
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
def test_that_little_was_merged_is_said_with_what_became_of_most_of_the_rest(
    merged: int, rest: dict[str, int], said: str
) -> None:
    tokens = {name: rest.get(name, 0) for name in ("overlap", "late", "lost", "pending")}
    tokens["trained"] = merged + sum(rest.values())
    found = {
        "tokens": tokens,
        "goodput": merged / 100,
        "learners": {"a-0": {"step_seconds": 0.001}, "a-1": {"step_seconds": 0.003}},
    }
    assert little_merged(found).startswith(said)
    assert bool(little_merged(found)) == bool(said)


def test_a_learner_without_any_work_in_a_version_is_named(tmp_path: Path) -> None:
    for folder in ("learners", "syncer"):
        (tmp_path / folder).mkdir()
    for slot in ("a-0", "a-1"):
        write(tmp_path / "learners" / f"{slot}.jsonl", [start(), step(10), END])
    write(tmp_path / "syncer" / "0.tape.jsonl", [commit(0, 10)])
    found = summarise(tmp_path, "Complete", 12.0, 2, frozenset({"a-0", "a-1", "b-0"}))
    assert found["without_work"] == ["a-1", "b-0"]
    assert sentence(found).endswith("; no work of a-1, b-0 was merged")


def write(path: Path, lines: list[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_learners_have_warned_of_is_told_with_their_slots(tmp_path: Path) -> None:
    for folder in ("learners", "syncer"):
        (tmp_path / folder).mkdir()
    warning = {**start(), "event": "warning", "reason": "trained here only: head"}
    for slot in ("a-0", "a-1"):
        write(tmp_path / "learners" / f"{slot}.jsonl", [start(), warning, warning, END])
    found = summarise(tmp_path, "Complete", 12.0, 2)
    assert found["warnings"] == {"trained here only: head": ["a-0", "a-1"]}
    assert sentence(found).endswith("; trained here only: head (a-0, a-1)")


def test_offers_left_out_for_their_values_are_told_with_slot_number_reason_and_remedy(
    tmp_path: Path,
) -> None:
    (tmp_path / "syncer").mkdir()
    too_late = {"event": "late", "slot": "a-0"}
    reason = "slice 0: values are not finite: head.weight"
    refused = {**too_late, "slot": "b-0", "reason": reason}
    lines = [{**each, "bytes_up": 0, "bytes_down": 0} for each in (too_late, refused, refused)]
    write(tmp_path / "syncer" / "0.tape.jsonl", lines)
    found = summarise(tmp_path, "Complete", 12.0, 2)
    assert found["left_out"] == {"b-0": {"offers": 2, "reason": reason}}
    told, remedy = refusals(found)
    assert told == f"b-0: 2 of its offers were left out, the last because of {reason}"
    assert "lower its learning rate" in remedy


def test_nothing_is_told_of_a_run_whose_offers_all_had_finite_values() -> None:
    assert refusals({"left_out": {}}) == []


def test_of_many_learners_whose_offers_were_left_out_the_first_are_told() -> None:
    each = {"offers": 1, "reason": "x"}
    told = refusals({"left_out": {f"a-{number}": each for number in range(9)}})
    assert told[0] == "a-0: 1 of its offers was left out, the last because of x"
    assert told[-2] == "5 more learners: see left_out in summary.json"


def test_late_work_is_a_share_of_the_trained_tokens_and_above_a_tenth_a_line_of_its_own(
    tmp_path: Path,
) -> None:
    for folder in ("learners", "syncer"):
        (tmp_path / folder).mkdir()
    lines = [start(), step(100, [settled(1, late=20)]), step(100), END]
    write(tmp_path / "learners" / "a-0.jsonl", lines)
    found = summarise(tmp_path, "Complete", 12.0, 2)
    assert (found["tokens"]["late"], found["late_share"]) == (20, 0.1)
    assert sentence(found) == "200 tokens, 0% merged, 10% too late; no work of a-0 was merged"
    assert late_work(0.1, SyncSpec()) == ""
    assert "11% of the trained tokens" in late_work(0.11, SyncSpec())
    for field in ("spec.sync.overlap (now 2)", "spec.sync.quorum (now all)"):
        assert field in late_work(0.11, SyncSpec(quorum=None))
