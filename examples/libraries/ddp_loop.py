"""A learner of several GPUs by DistributedDataParallel: every rank has the whole model.

    atoll run ddp_loop.py --steps 400 --processes-per-learner 2
    atoll-worker launch --nproc-per-node 2 -- ddp_loop.py    # alone; on CPUs if there is no GPU

In a cluster, the second line is the command of the learner's container.
"""

import argparse
import os
from pathlib import Path

import torch
from digits import digits
from torch import distributed, nn, optim
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import atoll

BATCH = 16  # of one rank


def build() -> nn.Module:
    """Images [n, 1, 16, 16] -> logits [n, 10]."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", type=Path, help="folder for the final model of each rank")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    job = atoll.job()
    torch.manual_seed(job.seed)
    model = build().to(device)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    with atoll.Learner(model, optimizer) as learner:
        learner.schedule(lambda progress: max(0.1, 1 - progress))
        parallel = DistributedDataParallel(model, [device] if on_gpu else None)
        while not learner.finished:
            seed = (learner.cursor * len(job.slots) + job.index) * ranks + rank
            images, labels = (each.to(device) for each in digits(BATCH, seed))
            loss = functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.step(tokens=BATCH * ranks, loss=loss)
    if arguments.save:
        torch.save(model.state_dict(), arguments.save / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
