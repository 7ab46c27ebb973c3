"""A learner of several GPUs: DistributedDataParallel, with the Learner on rank 0 alone.

    torchrun --standalone --nproc-per-node 2 ddp_loop.py    # alone; on CPUs if there is no GPU

As the learner of a job, the line with torchrun is the command of the container. Rank 0 exchanges
values with the other learners. After each step it tells the other ranks what has happened, and
gives them the model if it has adopted something.
"""

import argparse
import os
from contextlib import nullcontext
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


def told(model: nn.Module, learner: atoll.Learner | None, adopted: bool) -> tuple[bool, int, int]:
    """What rank 0 knows, on every rank: whether the job is finished, its tick, and the cursor."""
    news = torch.zeros(4, dtype=torch.int64)
    if learner is not None:
        news = torch.tensor([adopted, learner.finished, learner.tick, learner.cursor])
    news = news.to(next(model.parameters()).device)
    distributed.broadcast(news, 0)
    has_adopted, finished, tick, cursor = news.tolist()
    if has_adopted:
        for tensor in model.state_dict().values():
            distributed.broadcast(tensor, 0)
    return bool(finished), tick, cursor


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
    with atoll.Learner(model, optimizer) if rank == 0 else nullcontext() as learner:
        finished, tick, cursor = told(model, learner, adopted=True)
        parallel = DistributedDataParallel(model, [device] if on_gpu else None)
        while not finished:
            for group in optimizer.param_groups:  # the rate of every rank follows the job's tick
                group["lr"] = 3e-3 * max(0.1, 1 - tick / (job.steps or 1000))
            seed = (cursor * len(job.slots) + job.index) * ranks + rank
            images, labels = (each.to(device) for each in digits(BATCH, seed))
            loss = functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            adopted = False
            if learner is not None:
                adopted = bool(learner.step(tokens=BATCH * ranks, loss=loss).adopted)
            finished, tick, cursor = told(model, learner, adopted)
    if arguments.save:
        torch.save(model.state_dict(), arguments.save / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
