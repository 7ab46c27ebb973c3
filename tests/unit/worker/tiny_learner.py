"""A learner of a model of three layers, whose transport process a test plays."""

import torch
from torch import nn

from atoll_protos.run import RunFile
from atoll_worker.learner import Learner
from unit.worker.fake_transport import ENDPOINTS, RUN_FILE


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def learner_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, run_file: RunFile = RUN_FILE
) -> Learner:
    return Learner(model, optimizer, run_file=run_file, endpoints=ENDPOINTS, slot="here-1")


def train_for_ever(learner: Learner) -> None:
    while True:
        learner.step(tokens=1)
