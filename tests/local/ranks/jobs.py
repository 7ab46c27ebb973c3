"""How the learners of this folder are started, alone or in a job, and what is read of a run."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from atoll_operator.local.run_files import read_lines
from local import command
from local.background import Running
from local.command import TESTS, commits, ended, python_path, run_atoll
from local.leftovers import beside, check_none_is_left, of_run

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
    ours = {"OMP_NUM_THREADS": "1", **variables, "PYTHONPATH": python_path(TESTS)}
    script = Path(__file__).with_name(name)
    done = ended(sys.executable, script, *arguments, env={**os.environ, **ours})
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
    return command.manifest(
        Path(__file__).with_name(script),
        regions=[slot.removesuffix("-0") for slot in shapes],
        shards=shards,
        start_seconds=600,  # ranks start slowly on a busy machine
        env={"SHAPES": json.dumps(shapes), "OMP_NUM_THREADS": "1", **env},
        steps=steps,
        sync=sync,
    )


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


def check_equals_single(
    folder: Path,
    jobs: Sequence[str],
    slots: Iterable[str],
    period: int,
    first: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """A job with ranks ends with the values of the one with single processes; returns these.

    `jobs` are the manifests of both, which begin with the values `first`.
    """
    found = []
    for number, text in enumerate(jobs):
        job, out = folder / f"{number}.yaml", folder / f"{number}"
        job.write_text(text)
        run_atoll(job, out)
        check_none_is_left(out)
        for commit in commits(out):
            parts = [(each["slot"], each["steps"]) for each in commit["participants"]]
            assert sorted(parts) == [(slot, period) for slot in sorted(slots)]
        found.append(exported(out))
    mixed, single = found
    assert mixed.keys() == single.keys() == first.keys()
    assert [name for name in single if not torch.equal(mixed[name], single[name])] == []
    assert max((mixed[name] - first[name]).abs().max().item() for name in first) > MOVED_MIN
    return mixed


def only_itself(rank: int) -> list[int]:
    return [rank]


def only_beside(rank: int) -> list[int]:
    found = beside(rank)
    assert found is not None, "nothing runs beside this rank"
    return [found]


def everything(rank: int) -> list[int]:
    """What a host that is lost takes along."""
    return [rank, *only_beside(rank)]


def lose(
    run: Running, slot: str, which: Callable[[int], list[int]], rank: int, number: int
) -> None:
    """Signal processes of one rank; the others' work is merged before its learner starts again."""
    run.until(lambda: slot in merged(run), f"a merge of {slot}")
    restarts, before = run.row(slot)["restarts"], len(run.commits(0))
    last = max(incarnations(run.out, slot))
    lost = which(int((run.out / f"{slot}.{rank}.pid").read_text()))
    for pid in lost:
        os.kill(pid, number)
    others = set(MIXED) - {slot}
    run.until(lambda: others <= merged(run, before), "merges of the others")
    run.until(lambda: run.row(slot)["restarts"] > restarts, f"restart of {slot}")
    # what the former one has offered may be merged still
    run.until(lambda: max(incarnations(run.out, slot)) > last, f"steps of the next {slot}")
    back = len(run.commits(0))
    run.until(lambda: slot in merged(run, back), f"{slot} is back")
    for pid in set(lost) & set(of_run(run.out)):  # what only stood still goes on, and ends
        os.kill(pid, signal.SIGCONT)


def incarnations(out: Path, slot: str) -> set[int]:
    lines = read_lines(out / "learners" / f"{slot}.jsonl")  # which may just be written
    return {line["incarnation"] for line in lines if "t_m" in line}


def merged(run: Running, since: int = 0) -> set[str]:
    """Whose work is in a shard's commits."""
    return {part["slot"] for each in run.commits(0)[since:] for part in each["participants"]}
