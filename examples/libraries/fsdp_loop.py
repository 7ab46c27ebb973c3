"""A learner of several GPUs by FSDP2: no rank holds the whole model.

    atoll run fsdp_loop.py --steps 400 --processes-per-learner 2
    atoll-worker launch --nproc-per-node 2 -- fsdp_loop.py    # alone; on CPUs if there is no GPU

In a cluster, the second line is the command of the learner's container.
"""

import argparse
import os
from pathlib import Path

import torch
from digits import digits
from torch import distributed, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import atoll

BATCH = 16  # of one rank


def build() -> nn.Sequential:
    """Images [n, 1, 16, 16] -> logits [n, 10]."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10)
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", type=Path, help="folder for the final model, as rank 0 sees it")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda" if on_gpu else "cpu")
    job = atoll.job()
    torch.manual_seed(job.seed)
    model = build().to(device)
    for layer in (model[1], model[4]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    with atoll.Learner(model, optimizer) as learner:
        learner.schedule(lambda progress: max(0.1, 1 - progress))
        while not learner.finished:
            seed = (learner.cursor * len(job.slots) + job.index) * ranks + rank
            images, labels = (each.to(device) for each in digits(BATCH, seed))
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.step(tokens=BATCH * ranks, loss=loss)
    values = {name: each.full_tensor() for name, each in model.state_dict().items()}
    if arguments.save:
        torch.save(values, arguments.save / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
