"""A learner of a model of three layers, whose transport process a test plays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from atoll_protos.job.run_file import RunFile
from atoll_worker.learner import Learner
from unit.worker.fake_transport import RUN_FILE, SECONDS_MAX, FakeTransport, job_of, playing


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def learner_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, run_file: RunFile = RUN_FILE
) -> Learner:
    learner = Learner(model, optimizer)
    learner._job = job_of(run_file)
    return learner


@contextmanager
def entered(learner: Learner, reason: str = "", **begun: Any) -> Iterator[FakeTransport]:
    """A learner that has begun; the test speaks for its transport. It leaves, for that reason.

    Keywords as of `FakeTransport.begin`.
    """
    fakes: list[FakeTransport] = []

    def begin(fake: FakeTransport) -> None:
        fakes.append(fake)
        fake.begin(**begun)

    with playing(begin, stays=True) as threads:
        try:
            with learner:
                threads[0].join(SECONDS_MAX)
                yield fakes[0]
        finally:
            found = fakes[0].until_leaving().reason
            fakes[0].end.link.close()
            assert found == reason or not reason


def train_for_ever(learner: Learner) -> None:
    while True:
        learner.step(tokens=1)
