"""Where all of a run is lost, another one begins in the same folder, and both are told apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.run_files import read_tapes
from atoll_operator.local.show.run_summary import sentence, summarise
from unit.local.test_atoll_run import training_of

COMMIT = {"event": "commit", "shard": 0, "slice": 0, "version": 1, "epoch": 1, "bytes_up": 0}


def commit(slot: str, tokens: int, version: int = 1) -> dict[str, Any]:
    part = {"slot": slot, "incarnation": 1, "base": version - 1, "tokens": tokens}
    return COMMIT | {"version": version, "bytes_down": 0, "participants": [part]}


def began(run: str, **more: Any) -> dict[str, Any]:
    return {"event": "run", "run": run, "bytes_up": 0, "bytes_down": 0} | more


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def write_tape(out: Path, **more: Any) -> None:
    """One shard has made two versions, lost all, and made the first of them again."""
    lost = [began("one"), began("one"), commit("a-0", 5), commit("a-0", 6, 2)]
    tape = [*lost, began("two", **more), commit("a-0", 7), commit("a-0", 7)]
    write_lines(out / "syncer" / "0.tape.jsonl", tape)


def test_versions_of_another_run_are_others_though_their_numbers_are_the_same(
    tmp_path: Path,
) -> None:
    write_tape(tmp_path)
    (lines,) = read_tapes(tmp_path)
    assert [x["version"] for x in lines if x["event"] == "commit"] == [1, 2, 1]


def test_a_summary_has_the_numbers_of_the_last_run_and_says_so(tmp_path: Path) -> None:
    write_tape(tmp_path)
    warnings = [{"event": "warning", "run": run, "reason": run} for run in ("one", "two")]
    write_lines(tmp_path / "learners" / "a-0.jsonl", warnings)
    found = summarise(tmp_path, "Complete", 1.0, None)
    assert (found["lost_runs"], found["commits"]) == (["one"], 1)
    assert found["learners"]["a-0"]["merged"] == 7
    assert found["warnings"] == {"two": ["a-0"]}
    assert "all of an earlier run was lost" in sentence(found)


def test_a_run_that_lost_nothing_says_nothing_of_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "syncer" / "0.tape.jsonl", [began("one"), commit("a-0", 5)])
    found = summarise(tmp_path, "Complete", 1.0, None)
    assert (found["lost_runs"], found["commits"]) == ([], 1)
    assert "lost" not in sentence(found)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"checkpoint": "file:///x/step-20"}, "run two goes on from file:///x/step-20"),
        ({}, "run two begins at step 0: no checkpoint was whole"),
    ],
)
def test_that_a_run_is_lost_is_said_once_with_what_to_do(
    tmp_path: Path, more: dict[str, str], words: str
) -> None:
    write_tape(tmp_path, **more)
    said: list[str] = []
    training = training_of(tmp_path, say=said.append)
    for run in (None, "one", None, "one"):
        training.say_if_lost(run)
    assert said == []
    for run in (None, "two", "two"):
        training.say_if_lost(run)
    (line,) = said
    assert line.startswith("lost: no learner and no shard has anything of run one; ")
    assert words in line
    assert "--resume-from" in line
