"""A user's own script: two ranks with data of their own stop and go on; then one goes on alone.

    python state_script.py FOLDER

The ranks are forks of this process. FOLDER/RANK.jsonl says of every opening which data state the
rank has found, and for which cursor.
"""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from atoll import Learner
from local.forked import script_of

RANKS = 2
STEPS = 30  # of an opening, at least
STEP_SECONDS = 0.03
ADOPTIONS = 4  # two slices may be from before; then at least one is of this opening's work


def train(folder: Path, rank: int, group: dist.ProcessGroup | None) -> None:
    """Enter the job, make steps until some of them are merged, and leave."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Learner(model, optimizer, group=group) as learner:
        found = None if learner.data_state is None else learner.data_state.decode()
        line = {"cursor": learner.cursor, "state": found}
        with (folder / f"{rank}.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        steps = adoptions = 0
        while steps < STEPS or adoptions < ADOPTIONS:  # the same on all ranks
            model(torch.ones(1, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(STEP_SECONDS)
            place = f"{learner.cursor + 1} of {rank}"
            done = learner.step(tokens=1, state=place.encode)
            steps, adoptions = steps + 1, adoptions + bool(done.adopted)


def be(rank: int, folder: Path) -> None:
    """One rank; the last opening is that of rank 0 alone."""
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    for _ in range(2):
        train(folder, rank, None)
    alone = dist.new_group([0])
    if rank == 0:
        assert isinstance(alone, dist.ProcessGroup)
        train(folder, rank, alone)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    script_of(RANKS, be)
