"""A mistake in a training script is on the screen with its reason at the first exit."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.command import ATOLL, RUN_SECONDS_MAX, manifest, tapes

FIRST = "The run's folder is "  # what every run says first
OWN_DATA = 'sum(map(ord, os.environ["ATOLL_SLOT"]))'  # of each learner
SCRIPT = """
import os, sys, time
import torch
from torch import nn
from atoll import Learner

def only_once():
    # The second start of a learner comes to nothing: whatever is told is told of the first.
    started = "started-" + os.environ["ATOLL_SLOT"]
    if os.path.exists(started): time.sleep(1e6)
    open(started, "w").close()

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(DATA_SEED)
HERE_BEFORE
with Learner(model, optimizer) as learner:
    for i in range(10**9):
        if learner.finished: break
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(STEP_SECONDS)
        HERE_INSIDE
        learner.step(tokens=4, loss=loss)
"""


def job(
    folder: Path,
    *,
    before: str = "",
    inside: str = "",
    after: str = "",
    regions: int = 2,
    step_seconds: float = 0.01,
    quorum: int = 1,
    data_seed: str = OWN_DATA,
) -> Path:
    """The manifest of a script with lines of a mistake in it; both are written to the folder."""
    text = SCRIPT.replace("HERE_BEFORE", before).replace("HERE_INSIDE", inside or "pass") + after
    text = text.replace("STEP_SECONDS", str(step_seconds)).replace("DATA_SEED", data_seed)
    (folder / "train.py").write_text(text)
    text = manifest(
        folder / "train.py",
        regions="abc"[:regions],
        start_seconds=600,  # who is given up or refused for good is not waited for
        steps=40,
        sync={"fragments": 2, "period": 4, "overlap": 1, "quorum": quorum},
    )
    file = folder / "job.yaml"
    file.write_text(text)
    return file


@contextmanager
def screen(file: Path, out: Path) -> Iterator["subprocess.Popen[str]"]:
    """`atoll run` whose lines on stderr are read as they come; what still runs is interrupted."""
    process = subprocess.Popen(
        [ATOLL, "run", file, "--out", out, "--output", "lines"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=RUN_SECONDS_MAX)


def run(file: Path, out: Path) -> tuple[int, list[str]]:
    """The exit code of a run to its end, and its lines on stderr."""
    with screen(file, out) as process:
        _, said = process.communicate(timeout=RUN_SECONDS_MAX)
    return process.returncode, [line for line in said.splitlines() if not line.startswith(FIRST)]


def conditions(out: Path) -> dict[str, dict[str, str]]:
    found = json.loads((out / "status.json").read_text())["conditions"]
    return {each["type"]: each for each in found}


def test_an_exception_in_a_step_is_on_the_screen_at_the_first_exit(tmp_path: Path) -> None:
    mistake = 'if i == 5: raise ValueError("boom in step 5")'
    file = job(tmp_path, before="only_once()", inside=mistake)
    with screen(file, tmp_path / "out") as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if not line.startswith(FIRST))
    line = 1 + (tmp_path / "train.py").read_text().splitlines().index(f"        {mistake}")
    assert "-0 ended (exit code 1) and is started again: ValueError: boom in step 5" in said
    assert f"{tmp_path}/train.py:{line}" in said
    assert "out/logs/" in said


def test_a_mistake_that_every_learner_meets_before_its_first_step_ends_the_job(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    code, said = run(job(tmp_path, before='print("read me"); {}["lr"]'), out)
    assert code == 1
    assert any("failed: a-0: KeyError: 'lr'" in line for line in said), said
    failed = conditions(out)["Failed"]
    assert failed["status"] == "True"
    assert "KeyError: 'lr'" in failed["message"]
    assert "out/logs/a-0.log" in failed["message"]
    rows = json.loads((out / "processes.json").read_text())
    assert max(row["restarts"] for row in rows) <= 1
    assert "read me" in (out / "logs" / "a-0.log").read_text().splitlines()[0]


def test_a_mistake_of_one_learner_of_three_is_told_and_the_others_complete(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    mistake = 'if os.environ["ATOLL_SLOT"] == "b-0": raise OSError("no /data")'
    # The others make their first steps at one pace, so that neither adopts anything before.
    meet = (
        'open(os.environ["ATOLL_SLOT"] + str(i), "w").close()\n'
        '        while i < 3 and not all(os.path.exists(f"{x}-0{i}") for x in "ac"):'
        " time.sleep(0.01)"
    )
    file = job(tmp_path, before=mistake, inside=meet, regions=3, data_seed="0")
    code, said = run(file, out)
    assert code == 0, said
    assert [line for line in said if "b-0 ended (exit code 1)" in line and "no /data" in line]
    assert [line for line in said if "b-0 is given up (exit code 1): OSError: no /data" in line]
    assert json.loads((out / "summary.json").read_text())["without_work"] == ["b-0"]
    (same,) = [line for line in said if "equal losses" in line]
    assert same.startswith("warning: a-0, c-0 had equal losses in their first steps")


def test_one_with_another_model_is_refused_and_the_others_begin_without_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    other = """
if os.environ["ATOLL_SLOT"] == "c-0":
    model[0] = nn.Linear(9, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tape = os.path.join("out", "syncer", "0.tape.jsonl")
    while not os.path.exists(tape) or '"seeded"' not in open(tape).read(): time.sleep(0.05)
"""
    code, said = run(job(tmp_path, before=other, regions=3), out)
    assert code == 4, said
    assert "; refused for good: c-0 (--allow-refused: 0); exit code 4; see " in said[-1]
    (given_up,) = [line for line in said if "c-0 is given up (exit code 65)" in line]
    assert re.search("another model than this run's, which [ab]-0 brought: 0.weight is", given_up)
    assert "is float32 [8, 9], in the run float32 [8, 8]; remedy: give every" in given_up
    assert [line["missing"] for line in tapes(out) if line["event"] == "start"] == [["c-0"]]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["without_work"] == ["c-0"]


NOT_FINITE = "model.1.weight: has values that are not finite, and the job would begin with them"


@pytest.mark.parametrize(
    ("before", "fragments", "code", "words"),
    [
        ("model[1].weight.data[0, 0] = torch.inf", 2, 2, ("given up (exit code 64)", NOT_FINITE)),
        ("", 24, 2, ("sync.fragments: 24 fragments",)),
    ],
)
def test_what_cannot_train_at_all_ends_the_job_at_once_with_its_reason(
    before: str, fragments: int, code: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    file, out = job(tmp_path, before=before, regions=1), tmp_path / "out"
    text = file.read_text().replace("fragments: 2", f"fragments: {fragments}")
    file.write_text(text.replace("period: 4", "period: 24"))
    ended, said = run(file, out)
    assert ended == code, said
    assert all(each in said[0] for each in words), said
    if NOT_FINITE in words:
        failed = conditions(out)["Failed"]
        assert failed["reason"] == "BadInput"
        assert NOT_FINITE in failed["message"]


def test_a_mask_of_infinities_trains_and_what_fails_behind_the_loop_is_told_once(
    tmp_path: Path,
) -> None:
    mask = (
        'model.register_buffer("mask",'
        " torch.triu(torch.full((4, 4), -torch.inf), 1), persistent=True)"
    )
    out = tmp_path / "out"
    saving = 'raise OSError("Disk quota exceeded")'
    code, said = run(job(tmp_path, before=mask, after=saving, regions=1), out)
    assert code == 3, said
    assert not [line for line in said if "is started again" in line]
    assert "once the job was over a-0: exit code 1: OSError: Disk quota exceeded (" in said[-1]
    assert [line for line in said if "Disk quota" in line] == said[-1:]
    rows = json.loads((out / "processes.json").read_text())
    assert [row["restarts"] for row in rows] == [0] * len(rows)
    assert conditions(out)["Complete"]["status"] == "True"
