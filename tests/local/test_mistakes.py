"""A mistake in a training script is on the screen with its reason at the first exit."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

TELL_SECONDS_MAX = 3.0  # from a mistake to its reason on the screen
RUN_SECONDS_MAX = 120.0
ATOLL = Path(sys.executable).with_name("atoll")
SCRIPT = """
import os, sys, time
import torch
from torch import nn
from atoll import Learner

def now(): open("when", "w").write(str(time.time()))

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
HERE_BEFORE
with Learner(model, optimizer) as learner:
    for i in range(10**9):
        if learner.finished: break
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.01)
        HERE_INSIDE
        learner.step(tokens=4, loss=loss)
"""


def job(folder: Path, *, before: str = "", inside: str = "", regions: int = 2) -> Path:
    """The manifest of a script with lines of a mistake in it; both are written to the folder."""
    text = SCRIPT.replace("HERE_BEFORE", before).replace("HERE_INSIDE", inside or "pass")
    (folder / "train.py").write_text(text)
    container = {"name": "l", "command": ["python", "train.py"], "workingDir": str(folder)}
    spec = {
        "steps": 40,
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": name} for name in "abc"[:regions]],
        "syncer": {"startSeconds": 3},  # a learner with a mistake is not waited for
        "sync": {"fragments": 2, "period": 4, "overlap": 1, "quorum": 1},
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump({**kind, "metadata": {"name": "mist"}, "spec": spec}))
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
    done = subprocess.run(
        [ATOLL, "run", file, "--out", out, "--output", "lines"],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def conditions(out: Path) -> dict[str, dict[str, str]]:
    found = json.loads((out / "status.json").read_text())["conditions"]
    return {each["type"]: each for each in found}


def test_an_exception_in_a_step_is_on_the_screen_within_3_s(tmp_path: Path) -> None:
    mistake = 'if i == 5: now(); raise ValueError("boom in step 5")'
    with screen(job(tmp_path, inside=mistake), tmp_path / "out") as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        seconds = time.time() - float((tmp_path / "when").read_text())
    line = 1 + (tmp_path / "train.py").read_text().splitlines().index(f"        {mistake}")
    assert "-0 ended (exit code 1) and is started again: ValueError: boom in step 5" in said
    assert f"{tmp_path}/train.py:{line}" in said
    assert "out/logs/" in said
    assert seconds < TELL_SECONDS_MAX


def test_a_mistake_that_every_learner_meets_before_its_first_step_ends_the_job(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    code, said = run(job(tmp_path, before='now(); print("read me"); {}["lr"]'), out)
    seconds = time.time() - float((tmp_path / "when").read_text())
    assert code == 1
    assert any("failed: a-0: KeyError: 'lr'" in line for line in said), said
    failed = conditions(out)["Failed"]
    assert failed["status"] == "True"
    assert "KeyError: 'lr'" in failed["message"]
    assert "out/logs/a-0.log" in failed["message"]
    rows = json.loads((out / "processes.json").read_text())
    assert max(row["restarts"] for row in rows) <= 1
    assert seconds < 20  # with the pictures of the run
    assert "read me" in (out / "logs" / "a-0.log").read_text().splitlines()[0]


def test_a_mistake_of_one_learner_of_three_is_told_and_the_others_complete(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    mistake = 'if os.environ["ATOLL_SLOT"] == "b-0": raise OSError("no /data")'
    code, said = run(job(tmp_path, before=mistake, regions=3), out)
    assert code == 0, said
    assert [line for line in said if "b-0 ended (exit code 1)" in line and "no /data" in line]
    assert [line for line in said if "b-0 is given up (exit code 1): OSError: no /data" in line]
    assert json.loads((out / "summary.json").read_text())["without_work"] == ["b-0"]


def test_a_script_that_returns_early_is_told_so_and_given_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said = run(job(tmp_path, inside="if i == 4: break", regions=1), out)
    assert code == 1
    told = 'of 40; the job is not final: loop "while not learner.finished"'
    early = [line for line in said if line.startswith("a-0 returned at tick") and told in line]
    assert len(early) == 2
    assert any(line.startswith("a-0 is given up (exit code 0): returned at") for line in said)
    failed = conditions(out)["Failed"]
    assert failed["reason"] == "ProcessFailed"
    assert told in failed["message"]


@pytest.mark.parametrize(
    ("before", "words"),
    [("import no_such_library", "No module named 'no_such_library'"), ("x = (", "SyntaxError")],
)
def test_what_does_not_even_start_is_told_with_its_line(
    before: str, words: str, tmp_path: Path
) -> None:
    file = job(tmp_path, before=before, regions=1)
    code, said = run(file, tmp_path / "out")
    assert code == 1
    assert words in said[0]
    assert f"{tmp_path}/train.py:" in said[0]
