"""Processes of a real run are killed with -9, and it is interrupted: nothing is counted twice."""

import json
import signal
import time
from pathlib import Path
from typing import Any

from atoll_operator.local.last_status import read_status
from local.background import SECONDS_MAX, running
from local.command import ATOLL, LIGHT, TINY, TWO_LEARNERS, commits, ended, json_lines
from local.law import check_law, learners_lines
from local.leftovers import lives

MORE_STEPS = 40
TWO_LIGHT = (*TWO_LEARNERS, *LIGHT)


def incarnations(commits: list[dict[str, Any]], slot: str) -> set[int]:
    """Those of which commits have work."""
    parts = (part for line in commits for part in line["participants"])
    return {part["incarnation"] for part in parts if part["slot"] == slot}


def test_a_run_goes_on_after_kills_stops_when_interrupted_and_resume_is_the_same_run(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    # It does not end by itself: the other learner trains on however long a start takes.
    recorded = (*TWO_LIGHT, "--record", "1000000")
    with running(TINY, out, "--set", "spec.steps=100000", *recorded) as run:
        run.until(lambda: incarnations(run.commits(0), "eu-west-0") == {1}, "work of the first")
        run.until(lambda: len(run.commits(1)) >= 6, "commits")
        run.kill("eu-west-0")
        before = len(run.commits(1))
        run.until(lambda: len(run.commits(1)) >= before + 2, "commits of the others")
        run.kill(1)
        before = len(run.commits(1))
        run.until(lambda: len(run.commits(1)) >= before + 2, "commits of the new reign")
        run.until(lambda: incarnations(run.commits(0), "eu-west-0") == {1, 2}, "work of the second")
        rows = json.loads((out / "processes.json").read_text())
        code, stderr = run.finish(signal.SIGINT)
        assert code == 130, stderr
        assert not [row["pid"] for row in rows if lives(row["pid"])]
    assert "eu-west-0 ended (SIGKILL) and is started again" in stderr
    check_law(out)
    epochs = {line["epoch"] for line in commits(out) if line["shard"] == 1}
    assert len(epochs) == 2
    assert incarnations(commits(out), "us-east-0") == {1}
    for path in (out / "learners").glob("*.jsonl"):
        last = json_lines(path)[-1]  # it ended by itself, and was not killed in the end
        assert (last["event"], last["reason"]) == ("end", "terminated")
    assert "--resume" in stderr
    assert read_status(out).true_condition("Suspended") is not None
    summary = json.loads((out / "summary.json").read_text())
    assert summary["result"] == "Interrupted"
    assert summary["tokens"]["lost"] >= 0
    first = {line["run"] for line in commits(out)}
    before = len(commits(out))
    ticks = [line["tick"] for line in learners_lines(out) if "tick" in line]
    steps = ("--set", f"spec.steps={max(ticks) + MORE_STEPS}")

    other_seed = ("--resume", "--set", "spec.seed=7")
    with running(TINY, out, *steps, *TWO_LIGHT, *other_seed) as run:
        code, stderr = run.finish()
    assert code == 2
    assert stderr.startswith("spec.sync: ")

    with running(TINY, out, *steps, *recorded, "--resume") as run:
        code, stderr = run.finish()
    assert code == 0, stderr
    assert {line["run"] for line in commits(out)} == first
    assert len(commits(out)) > before
    check_law(out)
    replayed = ended(ATOLL, "replay", out)  # equal bits, also of processes that were killed
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert int(replayed.stdout.splitlines()[-1].split()[0]) >= len(commits(out))


def test_no_process_outlives_an_atoll_run_that_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running(TINY, out, "--set", "spec.steps=5000", *TWO_LIGHT) as run:
        run.until((out / "processes.json").exists, "processes.json")
        rows = run.until(
            lambda: [row for row in json.loads((out / "processes.json").read_text()) if row["pid"]],
            "processes",
        )
        run.process.kill()
        run.process.wait()
    deadline = time.monotonic() + SECONDS_MAX
    while left := [row["pid"] for row in rows if lives(row["pid"])]:
        assert time.monotonic() < deadline, f"{left} still run"
        time.sleep(0.1)
