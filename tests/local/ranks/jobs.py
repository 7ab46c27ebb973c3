"""How the learners of this folder are started, alone or in a job, and what is read of a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from local.background import Running
from local.command import RUN_SECONDS_MAX, TESTS, python_path
from local.law import learners_lines

PERIOD, ROUNDS = 20, 6
DECOUPLED_PERIOD = 16
MOVED_MIN = 0.1  # else there is nothing to compare
RANKS = 2
MIXED = {"one-0": "one", "ddp-0": "ddp", "fsdp2-0": "fsdp2"}
SINGLE = dict.fromkeys(MIXED, "one")
LOCK_STEP = {"preset": "DiLoCo", "period": PERIOD, "outer": {"learningRate": "0.7"}}
DECOUPLED = {"period": DECOUPLED_PERIOD, "overlap": 2, "quorum": 1, "fragments": 4}


def run_script(name: str, *arguments: Path, **variables: str) -> str:
    """A script of this folder to its end, which must be 0; returns its output and errors.

    It starts the ranks of a learner itself, each of which computes with one thread.
    """
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(name), *arguments],
        env={
            **os.environ, "OMP_NUM_THREADS": "1", **variables, "PYTHONPATH": python_path(TESTS)
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def manifest(
    shapes: dict[str, str],
    sync: dict[str, Any],
    steps: int,
    shards: int = 2,
    /,
    *,
    script: str = "mixed_script.py",
    **env: str,
) -> str:
    """A job with one learner of each shape."""
    settings = {"PYTHONPATH": python_path(TESTS), "SHAPES": json.dumps(shapes), **env}
    settings["OMP_NUM_THREADS"] = "1"
    container = {
        "name": "learner",
        "command": [sys.executable, str(Path(__file__).with_name(script))],
        "env": [{"name": name, "value": value} for name, value in settings.items()],
    }
    spec = {
        "steps": steps,
        "learner": {"template": {"spec": {"containers": [container]}}},
        "regions": [{"name": slot.removesuffix("-0")} for slot in shapes],
        "syncer": {"shards": shards, "startSeconds": 600},  # ranks start slowly on a busy machine
        "sync": sync,
    }
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    return yaml.safe_dump({**kind, "metadata": {"name": "shapes"}, "spec": spec})


def exported(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "export" / "model.safetensors")


def check_ends(out: Path) -> None:
    """Every rank of every learner has just the exported values, and made as many steps."""
    expected = exported(out)
    for slot, shape in MIXED.items():
        ranks = 1 if shape == "one" else RANKS
        ends = [torch.load(out / f"{slot}.{rank}.pt", weights_only=True) for rank in range(ranks)]
        assert len({int(end.pop("steps")) for end in ends}) == 1
        for rank, end in enumerate(ends):
            for name, tensor in end.items():
                assert torch.equal(expected[name], tensor), (slot, rank, name)


def incarnations(out: Path, slot: str) -> set[int]:
    lines = learners_lines(out)
    return {line["incarnation"] for line in lines if line["slot"] == slot and "t_m" in line}


def merged(run: Running, since: int = 0) -> set[str]:
    """Whose work is in a shard's commits."""
    return {part["slot"] for each in run.commits(0)[since:] for part in each["participants"]}
