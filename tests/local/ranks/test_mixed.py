"""Learners of several ranks train together with those of one process, through the whole program."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from local.background import Running, running
from local.command import commits, run_atoll
from local.law import check_law
from local.leftovers import check_none_is_left
from local.lockstep_model import Model
from local.ranks.jobs import (
    DECOUPLED,
    LOCK_STEP,
    MIXED,
    MOVED_MIN,
    PERIOD,
    ROUNDS,
    SINGLE,
    check_ends,
    exported,
    incarnations,
    manifest,
    merged,
)

LATE_TICKS_MAX = 300  # a grace is some ticks, 11 on a busy machine; a silence 600


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


@pytest.mark.long  # learners of several ranks start seven times
def test_ranks_that_are_killed_or_stopped_are_one_new_incarnation_and_the_law_holds(
    tmp_path: Path,
) -> None:
    """Whoever it is, head or not: the commits of the others go on meanwhile."""
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    slow = {"STEP_SECONDS": "0.05", "ATOLL_RANKS_SILENCE_SECONDS": "30"}
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
