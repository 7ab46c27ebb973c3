"""Jobs of the benchmarks: a manifest from its parts, `atoll run`, and the files that it leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

LOG_CHARACTERS = 2000
TINY = {"fragments": 4, "period": 16, "overlap": 2}


def manifest(
    regions: Mapping[str, Sequence[str]],
    *,
    steps: int,
    sync: Mapping[str, Any],
    seed: int = 0,
    shards: int = 1,
    storage: Mapping[str, str] | None = None,
) -> str:
    """A job of one learner in each region; the value is its arguments of the built-in example."""
    named = [
        {"name": name, "podOverrides": {"args": list(arguments)}}
        for name, arguments in regions.items()
    ]
    spec = {
        "steps": steps,
        "seed": seed,
        "regions": named,
        "syncer": {"shards": shards, **({"storage": dict(storage)} if storage else {})},
        "sync": dict(sync),
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    return yaml.safe_dump({**kind, "metadata": {"name": "bench"}, "spec": spec})


def run(job: str, out: Path, *more: str, environment: Mapping[str, str] | None = None) -> None:
    """`atoll run` to its end; RuntimeError with the end of the logs if it is not Complete."""
    out.mkdir(parents=True)
    file = out / "bench.yaml"
    file.write_text(job)
    done = subprocess.run(
        [command("atoll"), "run", file, "--out", out / "run", "--output", "lines", *more],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        logs = [log.read_text()[-LOG_CHARACTERS:] for log in out.glob("run/logs/*.log")]
        raise RuntimeError("\n".join([done.stdout, done.stderr, *logs]))


def command(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(out: Path, slot: str) -> list[dict[str, Any]]:
    """The lines of a learner that are steps, without those after the job's last tick."""
    found = [line for line in lines(out / "run" / "learners" / f"{slot}.jsonl") if "t_m" in line]
    return [line for line in found if line["step_seconds"] > 0]


def commits(out: Path) -> list[dict[str, Any]]:
    """The commits on the tapes of all shards."""
    tapes = sorted((out / "run" / "syncer").glob("*.tape.jsonl"))
    return [each for tape in tapes for each in lines(tape) if each.get("event") == "commit"]
