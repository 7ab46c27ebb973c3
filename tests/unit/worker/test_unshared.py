"""Tensors that begin to train after the learner was opened are told of, once."""

import pytest
import torch
from torch import nn

from atoll_worker.model.parameters import travelling
from atoll_worker.script.refusals import STEPS_BETWEEN, Unshared


@pytest.fixture
def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    made[0].requires_grad_(False)
    return made


def opened(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Unshared:
    return Unshared([model], travelling(model), optimizers)


def steps(learner: Unshared, count: int = STEPS_BETWEEN) -> list[str]:
    return [reason for reason in (learner.step_made() for _ in range(count)) if reason]


def test_layers_that_are_unfrozen_later_are_named_once(model: nn.Sequential) -> None:
    learner = opened(model)
    assert steps(learner) == []
    model[0].requires_grad_(True)
    (reason,) = steps(learner, 3 * STEPS_BETWEEN)
    assert "0.weight, 0.bias" in reason
    assert "before the Learner is opened" in reason


def test_modules_and_parameter_groups_that_are_added_later_are_named(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    learner = opened(model, optimizer)
    model.append(nn.Linear(2, 3))
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, 4))]})
    (reason,) = steps(learner)
    assert "2.weight, 2.bias, SGD.param_groups[1] (3x4)" in reason


def test_masters_of_an_optimizer_and_a_parameter_that_was_replaced_are_no_news(
    model: nn.Sequential,
) -> None:
    masters = [nn.Parameter(p.detach().clone()) for p in model[1].parameters()]
    learner = opened(model, torch.optim.SGD(masters, lr=0.1))
    model[1].weight = nn.Parameter(torch.zeros(2, 2))
    assert steps(learner) == []
