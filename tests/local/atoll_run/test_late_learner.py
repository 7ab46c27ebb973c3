"""A short job does not end before a learner that is slow to start has had its part."""

import json
import sys
from pathlib import Path

import yaml

from local.command import TESTS, commits, python_path, run_atoll, tapes

STEPS = 24


def manifest(start_seconds: int, late_after: str, quorum: int) -> str:
    """Two learners, of which one comes after the other; the whole job takes a moment."""
    container = {
        "name": "learner",
        "command": [sys.executable, "-m", "local.atoll_run.late_script"],
        "env": [
            {"name": "PYTHONPATH", "value": python_path(TESTS)},
            {"name": "LATE_AFTER", "value": late_after},
        ],
    }
    spec = {
        "steps": STEPS,
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": "quick"}, {"name": "late"}],
        "syncer": {"startSeconds": start_seconds},
        "sync": {"fragments": 3, "period": 12, "quorum": quorum},
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    return yaml.safe_dump({**kind, "metadata": {"name": "late"}, "spec": spec})


def run(
    folder: Path, start_seconds: int, late_after: str = "", quorum: int = 1
) -> tuple[Path, str]:
    """The run's folder, and what `atoll run` said."""
    job, out = folder / "job.yaml", folder / "out"
    job.write_text(manifest(start_seconds, late_after, quorum))
    return out, run_atoll(job, out)


def test_the_quick_one_begins_with_the_late_one(tmp_path: Path) -> None:
    # Both are awaited in every round too: once they have begun, none can be quicker.
    out, said = run(tmp_path, start_seconds=1800, quorum=2)
    assert {part["slot"] for each in commits(out) for part in each["participants"]} == {
        "quick-0",
        "late-0",
    }
    assert [line["missing"] for line in tapes(out) if line["event"] == "start"] == [[]]
    assert json.loads((out / "summary.json").read_text())["without_work"] == []
    assert "no work of" not in said


def test_one_that_comes_too_late_is_named_and_stops_nobody(tmp_path: Path) -> None:
    out, _ = run(tmp_path, start_seconds=1, late_after="start")
    assert [line["missing"] for line in tapes(out) if line["event"] == "start"] == [["late-0"]]
    assert json.loads((out / "summary.json").read_text())["result"] == "Complete"
