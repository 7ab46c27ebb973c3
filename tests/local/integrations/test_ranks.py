"""A learner of two processes, by DDP and by FSDP2: as the page of the libraries shows it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from local.command import TESTS, ended, python_path
from local.one_shard import OneShard, one_shard

LIBRARIES = TESTS.parent / "examples" / "libraries"
STEPS, RANKS = 24, 2


def torchrun(script: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = (*launcher, f"--nproc-per-node={RANKS}", script, *arguments)
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(TESTS)}
    return ended(*command, env={**os.environ, **own})


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    with one_shard(tmp_path, steps=STEPS) as found:
        yield found


@pytest.mark.parametrize("script", ["ddp_loop.py", "fsdp_loop.py"])
def test_every_rank_ends_with_the_values_that_the_job_exports(
    script: str, shard: OneShard, tmp_path: Path
) -> None:
    done = torchrun(LIBRARIES / script, "--save", str(tmp_path))
    assert done.returncode == 0, done.stderr
    exported = load_file(shard.exported())
    for rank in range(RANKS):
        own = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        travels = {name: tensor for name, tensor in own.items() if tensor.is_floating_point()}
        assert exported.keys() == travels.keys()
        for name, tensor in travels.items():
            assert torch.equal(exported[name], tensor), (rank, name)
    assert shard.commits
    assert {line["tokens"] for line in shard.steps} == {16 * RANKS}
