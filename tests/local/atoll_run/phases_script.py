"""Several Learners one after the other in one process, as in the cells of a notebook."""

import time

import torch
from torch import nn

import atoll

STEPS_IN_A_PHASE = 15
STEP_SECONDS = 0.03


def main() -> None:
    """Open a Learner for each phase until the job is final."""
    torch.set_num_threads(1)
    job = atoll.job()
    torch.manual_seed(job.seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    finished = False
    while not finished:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with atoll.Learner(model, optimizer) as learner:
            for _ in range(STEPS_IN_A_PHASE):
                values = torch.randn(16, 8)
                (model(values) - values[:, :4]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                finished = learner.step(tokens=16).finished
                time.sleep(STEP_SECONDS)
                if finished:
                    break


if __name__ == "__main__":
    main()
