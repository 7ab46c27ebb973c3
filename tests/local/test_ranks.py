"""Learners of several ranks train together with those of one process, through the whole program."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from local.background import Running, running
from local.command import RUN_SECONDS_MAX, TESTS, commits, python_path, run_atoll
from local.leftovers import check_none_is_left
from local.lockstep_model import Model
from local.test_kills import check_law, learners_lines

PERIOD, ROUNDS = 20, 6
DECOUPLED_PERIOD = 16
MOVED_MIN = 0.1  # else there is nothing to compare
LATE_TICKS_MAX = 6 * DECOUPLED_PERIOD  # a grace is some ticks, 11 on a busy machine; a silence 300
RANKS = 2
MIXED = {"one-0": "one", "ddp-0": "ddp", "fsdp2-0": "fsdp2"}
SINGLE = dict.fromkeys(MIXED, "one")
LOCK_STEP = {"preset": "DiLoCo", "period": PERIOD, "outer": {"learningRate": "0.7"}}
DECOUPLED = {"period": DECOUPLED_PERIOD, "overlap": 2, "quorum": 1, "fragments": 4}


def manifest(
    shapes: dict[str, str],
    sync: dict[str, Any],
    steps: int,
    shards: int = 2,
    /,
    *,
    script: str = "shapes_script.py",
    **env: str,
) -> str:
    """A job with one learner of each shape."""
    settings = {"PYTHONPATH": python_path(TESTS), "SHAPES": json.dumps(shapes), **env}
    settings["OMP_NUM_THREADS"] = "1"
    container = {
        "name": "learner",
        "command": [sys.executable, str(TESTS / "local" / script)],
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


@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
def test_rounds_of_diloco_with_ddp_and_fsdp2_equal_those_of_single_processes_bit_for_bit(
    tmp_path: Path,
) -> None:
    """One of them is on two hosts, each of which has its share of every slice."""
    found = []
    for number, shapes in enumerate((MIXED, SINGLE)):
        job, out = tmp_path / f"{number}.yaml", tmp_path / f"{number}"
        hosts = json.dumps({"fsdp2-0": 2})
        job.write_text(manifest(shapes, LOCK_STEP, PERIOD * ROUNDS, MEET="1", HOSTS=hosts))
        run_atoll(job, out)
        check_none_is_left(out)
        for commit in commits(out):
            parts = [(each["slot"], each["steps"]) for each in commit["participants"]]
            assert sorted(parts) == [(slot, PERIOD) for slot in sorted(shapes)]
        found.append(exported(out))
    check_ends(tmp_path / "0")
    mixed, single = found
    first = dict(Model(seed=0).state_dict())
    assert mixed.keys() == single.keys() == first.keys()
    assert all(torch.equal(mixed[name], single[name]) for name in single)
    assert max((mixed[name] - first[name]).abs().max().item() for name in first) > MOVED_MIN


def check_nobody_waited(out: Path) -> None:
    """Every round has closed soon after it was due, by the clock of the learners that were there.

    It is counted in ticks, since a machine that starts seven learners makes slow ones.
    """
    for commit in commits(out):
        assert commit["tick"] - commit["due"] <= LATE_TICKS_MAX, commit


def incarnations(out: Path, slot: str) -> set[int]:
    lines = learners_lines(out)
    return {line["incarnation"] for line in lines if line["slot"] == slot and "t_m" in line}  # type: ignore[misc]


@pytest.mark.long  # learners of several ranks start seven times
@pytest.mark.timeout(3 * RUN_SECONDS_MAX)
def test_ranks_that_are_killed_or_stopped_are_one_new_incarnation_and_the_law_holds(
    tmp_path: Path,
) -> None:
    """Whoever it is, head or not: the commits of the others go on meanwhile."""
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    slow = {"STEP_SECONDS": "0.05", "ATOLL_RANKS_SILENCE_SECONDS": "15"}
    job.write_text(manifest(MIXED, DECOUPLED, 100_000, **slow))
    events = [
        ("ddp-0", 1, signal.SIGKILL),
        ("fsdp2-0", 0, signal.SIGKILL),
        ("ddp-0", 0, signal.SIGSTOP),
        ("fsdp2-0", 1, signal.SIGSTOP),
    ]
    with running(job, out) as run:
        for slot, rank, number in events:
            lose(run, slot, rank, number)
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    check_law(out)
    check_nobody_waited(out)
    for slot in ("ddp-0", "fsdp2-0"):
        assert incarnations(out, slot) >= {1, 2}
    assert incarnations(out, "one-0") == {1}


def lose(run: Running, slot: str, rank: int, number: int) -> None:
    """Signal one rank; the others' work is merged before its learner starts again."""
    run.until(lambda: slot in merged(run), f"a merge of {slot}")
    restarts, before = run.row(slot)["restarts"], len(run.commits(0))
    os.kill(int((run.out / f"{slot}.{rank}.pid").read_text()), number)
    others = set(MIXED) - {slot}
    run.until(lambda: others <= merged(run, before), "merges of the others")
    run.until(lambda: run.row(slot)["restarts"] > restarts, f"restart of {slot}")
    back = len(run.commits(0))
    run.until(lambda: slot in merged(run, back), f"{slot} is back")


def merged(run: Running, since: int = 0) -> set[str]:
    """Whose work is in a shard's commits."""
    return {part["slot"] for each in run.commits(0)[since:] for part in each["participants"]}
