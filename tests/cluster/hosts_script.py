"""A small model with DistributedDataParallel; every rank of a learner of several hosts runs it.

Rank 0 prints the time of each of its steps, and how many ranks there are.
"""

import sys
import time

import torch
from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

import atoll

STEP_SECONDS = 0.3
SAMPLES = 4  # of one rank in each step


def main() -> None:
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(atoll.job().seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    with atoll.Learner(model, optimizer) as learner:
        parallel = DistributedDataParallel(model)
        while not learner.finished:
            time.sleep(STEP_SECONDS)
            seed = torch.Generator().manual_seed(learner.cursor * ranks + rank)
            values = torch.randn(SAMPLES, 64, generator=seed)
            loss = (parallel(values) - values[:, :8]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.step(tokens=SAMPLES * ranks, loss=loss)
            if rank == 0:
                sys.stdout.write(f"step {time.time()} of {ranks}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
