"""The command `atoll`, run as a user does."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from atoll_operator.local.run_files import read_tapes
from atoll_protos.job.run_file import START_SECONDS

ATOLL = Path(sys.executable).with_name("atoll")
TESTS = Path(__file__).resolve().parents[1]
TINY = TESTS.parent / "examples" / "tiny.yaml"
TWO_LEARNERS = (
    *("--set", "spec.regions=[{name: us-east}, {name: eu-west}]"),
    *("--set", "spec.evaluator="),
)
# For a run whose learners only have to be there: they take less than half of a core each.
LIGHT_ARGUMENTS = "['--batch=2', '--context=32', '--step-milliseconds-min=30']"
LIGHT = ("--set", f"spec.learner.template.spec.containers=[{{args: {LIGHT_ARGUMENTS}}}]")
RUN_SECONDS_MAX = 900.0
LOG_CHARACTERS = 2000


def python_path(*more: Path) -> str:
    """PYTHONPATH for a job's process: ours, then `more`."""
    ours = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*([ours] if ours else []), *map(str, more)])


def manifest(
    script: Path,
    *arguments: str,
    regions: Sequence[str | Mapping[str, Any]],
    shards: int = 2,
    start_seconds: int = START_SECONDS,
    env: Mapping[str, str] | None = None,
    **spec: Any,
) -> str:
    """A job whose learners run a script of the tests, one in each region."""
    settings = {"PYTHONPATH": python_path(TESTS), **(env or {})}
    container = {
        "name": "learner",
        "command": [sys.executable, str(script), *arguments],
        "workingDir": str(script.parent),
        "env": [{"name": name, "value": value} for name, value in settings.items()],
    }
    spec |= {
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": each} if isinstance(each, str) else each for each in regions],
        "syncer": {"shards": shards, "startSeconds": start_seconds},
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    return yaml.safe_dump({**kind, "metadata": {"name": "tests"}, "spec": spec})


def ended(
    *command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """A command to its end, and what it wrote."""
    return subprocess.run(
        [*map(str, command)],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


def run_atoll(job: Path, out: Path, *arguments: str) -> str:
    """`atoll run` to its end, which must be Complete; returns its standard output."""
    done = ended(ATOLL, "run", job, "--out", out, "--output", "lines", *arguments)
    logs = (f"{log.name}: {log.read_text()[-LOG_CHARACTERS:]}" for log in out.glob("logs/*.log"))
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    return done.stdout


def json_lines(path: Path) -> list[dict[str, Any]]:
    """A file of one JSON object a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def tapes(out: Path) -> list[dict[str, Any]]:
    """The event tapes of all shards of a run."""
    return [*chain.from_iterable(read_tapes(out))]


def commits(out: Path) -> list[dict[str, Any]]:
    """The commits on the tapes of all shards of a run."""
    return [line for line in tapes(out) if line.get("event") == "commit"]
