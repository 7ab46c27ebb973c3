"""A learner that is alone, for tests of what does not depend on a job."""

import torch
from torch import nn
from torch.optim import Optimizer

from atoll_worker.learner import Learner


def tiny_model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def learn(model: nn.Module, optimizer: Optimizer) -> None:
    """One optimizer step."""
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(learner: Learner, model: nn.Module, optimizer: Optimizer) -> None:
    """Until the end, with a step() for each step."""
    while not learner.finished:
        learn(model, optimizer)
        learner.step(tokens=4)
