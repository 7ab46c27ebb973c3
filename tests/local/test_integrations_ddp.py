"""A learner of two processes, by DistributedDataParallel: as the page of the libraries shows it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ddp_loop import build
from safetensors.torch import load_file

from local.command import RUN_SECONDS_MAX, TESTS
from local.one_shard import OneShard, one_shard

SCRIPT = TESTS.parent / "examples" / "libraries" / "ddp_loop.py"
STEPS, RANKS = 24, 2


def torchrun(script: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """All ranks, to their end."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, f"--nproc-per-node={RANKS}", script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    with one_shard(tmp_path, steps=STEPS) as found:
        yield found


def test_every_rank_ends_with_the_values_that_the_job_exports(
    shard: OneShard, tmp_path: Path
) -> None:
    done = torchrun(SCRIPT, "--save", str(tmp_path))
    assert done.returncode == 0, done.stderr
    exported = load_file(shard.exported())
    build().load_state_dict(exported, strict=True)
    for rank in range(RANKS):
        own = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, tensor in own.items():
            assert torch.equal(exported[name], tensor), (rank, name)
    assert shard.commits
    assert {line["tokens"] for line in shard.steps} == {16 * RANKS}


def test_a_learner_on_every_rank_is_refused_and_named(shard: OneShard, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import atoll, torch\nwith atoll.Learner(torch.nn.Linear(2, 2)):\n    pass\n")
    done = torchrun(script)
    assert done.returncode != 0
    assert f"this is rank 1 of {RANKS} processes that train one model" in done.stderr
    assert "open the Learner on rank 0 only" in done.stderr
