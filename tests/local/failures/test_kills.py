"""Processes of a real run are killed with -9, and it is interrupted: nothing is counted twice."""

import json
import signal
import time
from pathlib import Path
from typing import Any

from atoll_operator.local.folder.run_files import read_lines
from atoll_operator.local.progress.last_status import read_status
from local.background import SECONDS_MAX, running
from local.command import LIGHT, TINY, TWO_LEARNERS, commits, json_lines
from local.law import check_law, learners_lines
from local.leftovers import lives
from local.replays import check_replay

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
    check_replay(out)


def test_chaos_kills_a_process_that_comes_back_and_the_run_completes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = "podOverrides: {args: ['--batch=2', '--context=32', '--step-milliseconds-min=100']}"
    settings = (
        *("--set", f"spec.regions=[{{name: us-east, {slow}}}, {{name: eu-west, {slow}}}]"),
        *("--set", "spec.syncer.shards=1", "--set", "spec.evaluator="),
        *("--set", "spec.steps=1000000"),
        *("--set", "spec.sync.quorum=2"),  # it cannot end before whoever was killed is back
    )
    with running(TINY, out, "--chaos", *settings) as run:
        run.until((out / "processes.json").exists, "processes.json")

        def killed_once() -> bool:
            rows = json.loads((out / "processes.json").read_text())
            return any(row["restarts"] > 0 for row in rows)

        run.until(killed_once, "a kill, which comes when both have trained for 20 s")
        lines = [line for path in out.glob("learners/*.jsonl") for line in read_lines(path)]
        end = max(line.get("tick", 0) for line in lines) + MORE_STEPS
        run.edit(f"spec.steps={end}")
        code, stderr = run.finish()
    assert code == 0, stderr
    killed = {line.split()[-1] for line in stderr.splitlines() if line.startswith("chaos: kill -9")}
    assert killed
    assert all(f"{name} ended (SIGKILL) and is started again" in stderr for name in killed)
    rows = json.loads((out / "processes.json").read_text())
    names = {row.get("slot", f"shard-{row.get('shard')}"): row["restarts"] for row in rows}
    assert {name for name, restarts in names.items() if restarts} == killed
    for path in (*out.glob("learners/*.jsonl"), *out.glob("syncer/*.jsonl")):
        assert json_lines(path)[-1]["event"] == "end"  # the last start's: the killed are back
    assert json.loads((out / "summary.json").read_text())["result"] == "Complete"
    check_law(out)


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
