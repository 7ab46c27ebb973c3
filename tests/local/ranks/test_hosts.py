"""Learners on several hosts, each of which has its share of every slice, through the whole program.

A rank says which host it is, so that two on this machine are two hosts: the second one has a
memory and a lane process of its own (mixed_script.py).
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atoll_protos.codecs import Wire
from atoll_protos.parts import Share
from atoll_protos.run import RunFile
from atoll_worker.link.socket import memory_plan
from atoll_worker.training.parameters import travelling
from local.background import Running, running
from local.command import commits, run_atoll
from local.law import check_law
from local.leftovers import beside, check_none_is_left, of_run
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

HOSTS = 2
ON_HOSTS = {"ddp-0": HOSTS, "fsdp2-0": HOSTS}
SILENCE_SECONDS = 15


def check_memory(out: Path) -> None:
    """The second host has had memory for its share, and for nothing more."""
    run_file = RunFile.from_json((out / "run.json").read_text())
    layout = run_file.layout(place.spec for place in travelling(Model(seed=0)))
    plan = memory_plan(layout, run_file.sync, observer=False, share=Share(1, HOSTS, HOSTS))
    assert all(form.element_count for form in plan.forms)
    assert all(
        form.element_count < owned.element_count
        for form, owned in zip(plan.forms, layout.slices, strict=True)
    )
    for slot in ON_HOSTS:
        assert int((out / f"{slot}.1.memory").read_text()) == plan.byte_count


@pytest.mark.long  # f32 is in test_mixed.py
@pytest.mark.parametrize("wire", [Wire.INT8, Wire.INT4])
def test_rounds_of_diloco_with_learners_of_two_hosts_equal_single_processes_bit_for_bit(
    wire: Wire, tmp_path: Path
) -> None:
    sync = {**LOCK_STEP, "wire": {"up": wire.value, "down": wire.value}}
    found = []
    for number, shapes in enumerate((MIXED, SINGLE)):
        job, out = tmp_path / f"{number}.yaml", tmp_path / f"{number}"
        hosts = json.dumps(ON_HOSTS)
        job.write_text(manifest(shapes, sync, PERIOD * ROUNDS, 1, MEET="1", HOSTS=hosts))
        run_atoll(job, out)
        check_none_is_left(out)
        for commit in commits(out):
            parts = [(each["slot"], each["steps"]) for each in commit["participants"]]
            assert sorted(parts) == [(slot, PERIOD) for slot in sorted(shapes)]
        found.append(exported(out))
    check_ends(tmp_path / "0")
    check_memory(tmp_path / "0")
    several, single = found
    first = dict(Model(seed=0).state_dict())
    assert several.keys() == single.keys() == first.keys()
    assert [name for name in single if not torch.equal(several[name], single[name])] == []
    assert max((several[name] - first[name]).abs().max().item() for name in first) > MOVED_MIN


@pytest.mark.long  # learners of several ranks start ten times
def test_whatever_of_a_host_is_killed_or_stands_still_is_one_new_incarnation_and_the_law_holds(
    tmp_path: Path,
) -> None:
    """The process beside a rank, the rank, or both: the commits of the others go on meanwhile."""
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    slow = {"STEP_SECONDS": "0.05", "ATOLL_RANKS_SILENCE_SECONDS": str(SILENCE_SECONDS)}
    job.write_text(manifest(MIXED, DECOUPLED, 100_000, HOSTS=json.dumps(ON_HOSTS), **slow))
    events: list[tuple[str, Callable[[int], list[int]], int, int]] = [
        ("ddp-0", only_beside, 1, signal.SIGKILL),  # a lane process
        ("fsdp2-0", only_beside, 0, signal.SIGKILL),  # the head's transport process
        ("fsdp2-0", only_itself, 1, signal.SIGKILL),  # an owner's training process
        ("ddp-0", everything, 1, signal.SIGSTOP),
        ("fsdp2-0", everything, 0, signal.SIGSTOP),
        ("fsdp2-0", only_beside, 1, signal.SIGSTOP),
    ]
    with running(job, out) as run:
        for number, (slot, which, host, what) in enumerate(events):
            lose(run, slot, which, host, what)
            expected = 2 + sum(slot == other for other, *_ in events[:number])
            assert max(incarnations(out, slot)) == expected, "each loss is one new incarnation"
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    check_none_is_left(out)
    check_law(out)
    assert incarnations(out, "one-0") == {1}


def only_itself(rank: int) -> list[int]:
    """The training process."""
    return [rank]


def only_beside(rank: int) -> list[int]:
    """The process beside it."""
    found = beside(rank)
    assert found is not None, "nothing runs beside this rank"
    return [found]


def everything(rank: int) -> list[int]:
    """What a host that is lost takes along."""
    return [rank, *only_beside(rank)]


def lose(
    run: Running, slot: str, which: Callable[[int], list[int]], host: int, number: int
) -> None:
    """Signal processes of one host; the others' work is merged before its learner starts again."""
    run.until(lambda: slot in merged(run), f"a merge of {slot}")
    restarts, before = run.row(slot)["restarts"], len(run.commits(0))
    lost = which(int((run.out / f"{slot}.{host}.pid").read_text()))
    for pid in lost:
        os.kill(pid, number)
    others = set(MIXED) - {slot}
    run.until(lambda: others <= merged(run, before), "merges of the others")
    run.until(lambda: run.row(slot)["restarts"] > restarts, f"restart of {slot}")
    back = len(run.commits(0))
    run.until(lambda: slot in merged(run, back), f"{slot} is back")
    for pid in set(lost) & set(of_run(run.out)):  # what only stood still goes on, and ends
        os.kill(pid, signal.SIGCONT)
