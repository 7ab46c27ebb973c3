"""A schedule that a trainer holds and that the learner moves."""

import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from atoll import Learner
from atoll_integrations.schedules import EveryTicks, NotStepped


def halved_each_step() -> StepLR:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    return StepLR(optimizer, step_size=1, gamma=0.5)


def test_a_trainer_may_step_it_as_it_likes_and_sees_its_rates() -> None:
    scheduler = halved_each_step()
    held = NotStepped(scheduler)
    for _ in range(5):
        held.step()
    held.load_state_dict({**scheduler.state_dict(), "last_epoch": 7})
    assert held.get_last_lr() == [1.0]
    assert held.state_dict() == scheduler.state_dict()
    assert copy.copy(held).scheduler is scheduler


def test_one_of_epochs_moves_once_in_so_many_ticks() -> None:
    scheduler = halved_each_step()
    every = EveryTicks(scheduler, period=3)
    rates = []
    for _ in range(7):
        scheduler.optimizer.step()
        every.step()
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_a_learner_takes_one_whose_own_length_is_in_epochs(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("ATOLL_STEPS", "12")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = OneCycleLR(optimizer, max_lr=1.0, total_steps=4)
    with Learner(model, optimizer) as learner:
        learner.schedule(EveryTicks(scheduler, period=4))
        while not learner.finished:
            optimizer.step()
            learner.step(tokens=1)
    assert scheduler.last_epoch == 3


def test_one_with_a_length_is_not_moved_beyond_its_last_step() -> None:
    scheduler = halved_each_step()
    scheduler.total_steps = 2  # type: ignore[attr-defined]
    every = EveryTicks(scheduler, period=3)
    assert every.total_steps == 6
    for _ in range(6):
        scheduler.optimizer.step()
        every.step()
    assert scheduler.last_epoch == 1
