"""Learners of several ranks train together with those of one process, through the whole program.

A rank says which host it is, so that two on this machine are two hosts; rank 0's carries everything
(mixed_script.py).
"""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll_protos.job.run_file import RunFile
from atoll_protos.transfer.codecs import Wire
from atoll_worker.link.shared_memory import memory_plan
from atoll_worker.model.parameters import travelling
from local.background import running
from local.command import commits
from local.law import check_law
from local.leftovers import check_none_is_left
from local.lockstep_model import Model
from local.ranks.jobs import (
    DECOUPLED,
    LOCK_STEP,
    MIXED,
    PERIOD,
    ROUNDS,
    SINGLE,
    check_ends,
    check_equals_single,
    everything,
    incarnations,
    lose,
    manifest,
    only_beside,
    only_itself,
)

HOSTS = 2
ON_HOSTS = {"ddp-0": HOSTS, "fsdp2-0": HOSTS}
LATE_TICKS_MAX = 300  # a grace is some ticks, 11 on a busy machine; a silence 600

Loss = tuple[str, Callable[[int], list[int]], int, int]  # slot, what of a rank, rank, signal
OF_RANKS: list[Loss] = [
    ("ddp-0", only_itself, 1, signal.SIGKILL),
    ("fsdp2-0", only_itself, 0, signal.SIGKILL),
    ("ddp-0", only_itself, 0, signal.SIGSTOP),
    ("fsdp2-0", only_itself, 1, signal.SIGSTOP),
    ("fsdp2-0", only_beside, 0, signal.SIGKILL),  # the transport process
    ("fsdp2-0", everything, 0, signal.SIGSTOP),
]


def check_memory(out: Path, slot: str) -> None:
    """Only rank 0's host has memory for the exchange: all of it."""
    run_file = RunFile.from_json((out / "run.json").read_text())
    layout = run_file.layout(place.spec for place in travelling(Model(seed=0)))
    plan = memory_plan(layout, run_file.sync, observer=False)
    memories = [int((out / f"{slot}.{rank}.memory").read_text()) for rank in range(HOSTS)]
    assert memories == [plan.byte_count, 0]


@pytest.mark.parametrize(
    ("wire", "on_hosts", "shards"),
    [
        (Wire.F32, {"fsdp2-0": HOSTS}, 2),
        pytest.param(Wire.INT8, ON_HOSTS, 1, marks=pytest.mark.long),
        pytest.param(Wire.INT4, ON_HOSTS, 1, marks=pytest.mark.long),
    ],
)
def test_rounds_of_diloco_with_ddp_and_fsdp2_equal_those_of_single_processes_bit_for_bit(
    wire: Wire, on_hosts: dict[str, int], shards: int, tmp_path: Path
) -> None:
    sync = {**LOCK_STEP, "wire": {"up": wire.value, "down": wire.value}}
    jobs = [
        manifest(shapes, sync, PERIOD * ROUNDS, shards, MEET="1", HOSTS=json.dumps(on_hosts))
        for shapes in (MIXED, SINGLE)
    ]
    check_equals_single(tmp_path, jobs, MIXED, PERIOD, Model(seed=0).state_dict())
    check_ends(tmp_path / "0")
    for slot in on_hosts if shards == 1 else ():  # else a slice may be too small to be divided
        check_memory(tmp_path / "0", slot)


def check_nobody_waited(out: Path) -> None:
    """Every round has closed soon after it was due, by the clock of the learners that were there.

    It is counted in ticks, since a machine that starts seven learners makes slow ones.
    """
    for commit in commits(out):
        assert commit["tick"] - commit["due"] <= LATE_TICKS_MAX, commit


@pytest.mark.long  # learners of several ranks start seven or ten times
def test_whatever_of_a_learner_is_killed_or_stopped_is_one_new_incarnation_and_the_law_holds(
    tmp_path: Path,
) -> None:
    """A rank, head or not, the process beside it, or both: the others' commits go on meanwhile."""
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    slow = {"STEP_SECONDS": "0.05", "ATOLL_RANKS_SILENCE_SECONDS": "30"}
    job.write_text(manifest(MIXED, DECOUPLED, 100_000, **slow))
    with running(job, out) as run:
        for number, (slot, which, rank, what) in enumerate(OF_RANKS):
            lose(run, slot, which, rank, what)
            expected = 2 + sum(slot == other for other, *_ in OF_RANKS[:number])
            assert max(incarnations(out, slot)) == expected, "each loss is one new incarnation"
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    check_none_is_left(out)
    check_law(out)
    check_nobody_waited(out)
    assert incarnations(out, "one-0") == {1}
