"""Optimizers that keep copies of the parameters are noticed; all others are left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from atoll_worker.link.messages import Warned
from atoll_worker.model.staging import DirectStaging
from atoll_worker.model.undone import KEPT_MIN, LOOKS_MAX, WARNING, Watch
from unit.worker.masters import SgdIn8Bits, SgdWithMasters
from unit.worker.tiny_learner import entered, learner_of

torch.set_num_threads(1)

Make = Callable[[list[nn.Parameter]], Optimizer]
ORDINARY: list[Make] = [
    lambda parameters: SGD(parameters, lr=1e-3, momentum=0.9),
    lambda parameters: AdamW(parameters, lr=1e-3),
    lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
    lambda parameters: torch.optim.Rprop(parameters, lr=1e-3),
    lambda parameters: SgdIn8Bits(parameters, lr=1e-3),
]


def wide_model(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(16, 16, bias=False).to(dtype)


def adopt(watch: Watch, model: nn.Linear, change: float) -> None:
    """Every element moves by about `change`, some up and some down."""
    theta = model.weight.detach()
    value = theta + change * torch.randn_like(theta)
    sample = watch.before([(theta, value)], [False])
    theta.copy_(value)
    if sample:
        watch.after(sample)


def train(model: nn.Linear, optimizer: Optimizer, watch: Watch, adoptions: int) -> str:
    """Returns the warning, if there is one."""
    warning = ""
    for _ in range(adoptions):
        adopt(watch, model, 0.05)
        for _ in range(3):
            model(torch.randn(8, 16, dtype=model.weight.dtype)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            warning = warning or watch.judge()
    watch.end()
    return warning


WITH_MASTERS: list[Callable[[nn.Linear], Any]] = [
    lambda model: SgdWithMasters(model.parameters(), lr=1e-2),
    lambda model: SgdIn8Bits(model.parameters(), lr=1e-2, masters=True),  # made in its first step
]


@pytest.mark.parametrize("make", WITH_MASTERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_of_masters_that_undo_adoptions_the_user_is_warned_with_the_remedy(
    make: Callable[[nn.Linear], Any], dtype: torch.dtype
) -> None:
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    warning = train(model, make(model), watch, 10)
    assert "if it keeps copies of the parameters, register learner.on_adopt(fn)" in warning
    assert watch.over


@pytest.mark.parametrize("make", ORDINARY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_ordinary_optimizer_is_not_warned_of(make: Make, dtype: torch.dtype) -> None:
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    assert train(model, make([*model.parameters()]), watch, LOOKS_MAX + 10) == ""
    assert watch.undone == 0


def test_a_watch_ends_when_the_adoptions_are_kept() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    train(model, SGD(model.parameters(), lr=1e-3), watch, 10)
    assert (watch.over, watch.kept, watch.looks) == (True, KEPT_MIN, KEPT_MIN + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_of_a_quick_optimizer_of_a_toy_the_user_is_warned_once_at_most(dtype: torch.dtype) -> None:
    """With this rate a quadratic is near its optimum after each step, wherever it began."""
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    optimizer = SGD(model.parameters(), lr=0.9, momentum=0.01)
    warnings = []
    for _ in range(10):
        adopt(watch, model, 0.5)
        (model.weight - 1.0).square().sum().div(2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        warnings.append(watch.judge())
    assert watch.undone >= 3
    assert sum("if it keeps copies" in each for each in warnings) == 1


def test_a_step_that_was_skipped_says_nothing() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    for _ in range(10):
        adopt(watch, model, 0.5)
        watch.judge()
    assert (watch.undone, watch.kept) == (0, 0)


def test_a_buffer_that_the_model_computes_itself_is_no_undone_adoption() -> None:
    """Each forward pass sets it as it was, whatever the job has put there."""
    model, statistics = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(64)
    model.register_buffer("statistics", statistics)
    optimizer = SGD(model.parameters(), lr=1e-3)
    learner = learner_of(model, optimizer)
    with entered(learner, value=0.0) as fake:
        for number in range(1, 9):
            fake.offer_values(float(number), number=number)
            learner.step(tokens=1)  # adopts
            statistics.fill_(1.0)
            model(torch.ones(2, 2)).mean().backward()
            optimizer.step()
    assert not [each for each in fake.received if isinstance(each, Warned)]


@pytest.mark.parametrize("told", [False, True])
def test_a_learner_whose_optimizer_has_masters_needs_on_adopt(told: bool) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).to(torch.bfloat16)
    optimizer = SgdWithMasters(model.parameters(), lr=1e-3)
    learner = learner_of(model, optimizer)
    if told:
        learner.on_adopt(optimizer.reload_masters)
    with entered(learner, value=0.0) as fake:
        for number in range(1, 9):
            fake.offer_values(float(number), number=number)
            model(torch.ones(2, 16, dtype=torch.bfloat16)).mean().backward()
            optimizer.step()
            learner.step(tokens=1)
    warned = [each for each in fake.received if isinstance(each, Warned)]
    assert warned == ([] if told else [Warned(reason=WARNING)])
    reloaded = {round(float(each.max())) for each in optimizer.masters.values()} == {8}
    assert reloaded == told
