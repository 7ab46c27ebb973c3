"""A small model, trained by one process or, under a launcher, by all ranks of a learner."""

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import atoll

SAMPLES = 4


def main() -> None:
    """Train until the job is final."""
    torch.set_num_threads(1)
    together = "RANK" in os.environ
    if together:
        distributed.init_process_group("gloo")
    torch.manual_seed(atoll.job().seed)
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atoll.Learner(model, optimizer) as learner:
        trained = DistributedDataParallel(model) if together else model
        while not learner.finished:
            values = torch.randn(SAMPLES, 64)
            loss = (trained(values) - values[:, :8]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            learner.step(tokens=SAMPLES, loss=loss)
    if together:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
