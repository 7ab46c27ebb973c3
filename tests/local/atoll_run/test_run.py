"""One run of the example, as a user starts it: what it prints, leaves behind and promises."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bytegpt.data import read as read_text
from local.command import TINY, ended, json_lines, run_atoll, tapes
from local.law import check_law, check_status, conserve, learners_lines, merged_by_tape

pytestmark = pytest.mark.fresh

STEPS = 100
FOUR = ("--set", "spec.sync.fragments=4")
ALL = ("--set", "spec.syncer.startSeconds=1800")  # a machine may start one much later
NATS_MIN = 0.5
STEP_FIELDS = {
    *("run", "time", "t_m", "tick", "tokens", "loss"),
    *("step_seconds", "blocked_seconds", "adopted"),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has completed."""
    folder = tmp_path_factory.mktemp("run") / "out"
    shown = run_atoll(TINY, folder, "--set", f"spec.steps={STEPS}", *FOUR, *ALL)
    assert f"of {STEPS}" in shown
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def entropy_of_single_bytes(byte_count: int) -> float:
    """The held-out loss, in nats a byte, of a model that knows the frequencies of bytes alone."""
    frequency = torch.bincount(read_text().heldout()[:byte_count].long()).double() / byte_count
    return float(torch.special.entr(frequency).sum())


def test_the_model_learns_more_than_how_frequent_each_byte_is(out: Path) -> None:
    # The evaluator measures when it gets to it: on a slow machine its first value is of a model
    # that has trained already, so the bound is the text's, not the first value.
    loss = read(out / "summary.json")["outer_loss"]
    evaluations = json_lines(out / "evaluations.jsonl")
    assert loss["end"] < entropy_of_single_bytes(evaluations[-1]["tokens"]) - NATS_MIN
    assert loss == {"start": evaluations[0]["loss"], "end": evaluations[-1]["loss"]}
    assert evaluations[-1]["tick"] >= STEPS


def test_the_exported_model_has_the_loss_that_was_measured_last(out: Path) -> None:
    arguments = ["--export", str(out / "export"), "--heldout-bytes", str(1 << 17)]
    measured = json.loads(ended(sys.executable, "-m", "bytegpt.evaluate", *arguments).stdout)
    last = json_lines(out / "evaluations.jsonl")[-1]
    assert measured["bytes"] == last["tokens"]
    assert measured["loss"] == pytest.approx(last["loss"], abs=1e-5)


def test_the_law_of_conservation_holds_for_every_learner_and_slice(out: Path) -> None:
    check_law(out)
    check_status(out, nobody_died=True)
    law = conserve(learners_lines(out), tapes(out))
    assert len(law) == 3 * 2 * 4  # learners, shards, slices
    assert {key: tokens.merged for key, tokens in law.items()} == merged_by_tape(out)
    totals = read(out / "summary.json")["tokens"]
    assert totals["trained"] > 0
    assert totals["lost"] == 0
    assert totals["trained"] == pytest.approx(sum(totals.values()) - totals["trained"], abs=3)


def test_every_line_carries_run_and_time(out: Path) -> None:
    run = read(out / "status.json")["run"]
    assert run
    for path in [*out.glob("learners/*.jsonl"), *out.glob("syncer/*"), out / "evaluations.jsonl"]:
        for line in json_lines(path):
            assert line["time"] > 0
            assert line["run"] == run
    steps = [e for path in out.glob("learners/*.jsonl") for e in json_lines(path) if "t_m" in e]
    assert all(step.keys() >= STEP_FIELDS for step in steps)


def test_the_status_says_complete_in_every_condition_of_the_api(out: Path) -> None:
    status = read(out / "status.json")
    truth = {each["type"]: each["status"] for each in status["conditions"]}
    assert truth["Complete"] == "True"
    assert truth["Failed"] == truth["Progressing"] == "False"
    assert truth.keys() >= {"Accepted", "SyncerReady", "Degraded"}
    assert status["progress"]["step"] >= STEPS
    metrics = {each["name"]: each["value"] for each in status["progress"]["metrics"]}
    assert metrics["outer_loss"] == f"{json_lines(out / 'evaluations.jsonl')[-1]['loss']:.4f}"


def test_pictures_and_an_export_in_hugging_face_layout_are_there(out: Path) -> None:
    for picture in ("loss.png", "goodput.png", "rounds.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    index = read(out / "export" / "model.safetensors.index.json")
    for name, file in index["weight_map"].items():
        assert name in load_file(out / "export" / file)
