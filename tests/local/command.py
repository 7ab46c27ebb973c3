"""The command `atoll`, run as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
TINY = TESTS.parent / "examples" / "tiny.yaml"
TWO_LEARNERS = (
    *("--set", "spec.regions=[{name: us-east}, {name: eu-west}]"),
    *("--set", "spec.evaluator="),
)
RUN_SECONDS_MAX = 900.0
LOG_CHARACTERS = 2000


def python_path(*more: Path) -> str:
    """PYTHONPATH for a job's process: ours, then `more`."""
    ours = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*([ours] if ours else []), *map(str, more)])


def run_atoll(job: Path, out: Path, *arguments: str) -> str:
    """`atoll run` to its end, which must be Complete; returns its standard output."""
    atoll = Path(sys.executable).with_name("atoll")
    done = subprocess.run(
        [atoll, "run", job, "--out", out, "--output", "lines", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    logs = (f"{log.name}: {log.read_text()[-LOG_CHARACTERS:]}" for log in out.glob("logs/*.log"))
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    return done.stdout


def json_lines(path: Path) -> list[dict[str, Any]]:
    """A file of one JSON object a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def tapes(out: Path) -> list[dict[str, Any]]:
    """The event tapes of all shards of a run."""
    files = sorted((out / "syncer").glob("*.tape.jsonl"))
    return [line for file in files for line in json_lines(file)]


def commits(out: Path) -> list[dict[str, Any]]:
    """The commits on the tapes of all shards of a run."""
    return [line for line in tapes(out) if line.get("event") == "commit"]
