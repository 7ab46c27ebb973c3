"""Optimizers that keep copies of the parameters are noticed; all others are left alone."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from atoll_protos.errors import SpecError
from atoll_worker.training.staging import DirectStaging
from atoll_worker.training.undone import KEPT_MIN, LOOKS_MAX, Watch
from unit.worker.fake_transport import FakeTransport, Gate, playing
from unit.worker.masters import SgdWithMasters
from unit.worker.tiny_learner import learner_of

torch.set_num_threads(1)

Make = Callable[[list[nn.Parameter]], Optimizer]
ORDINARY: list[Make] = [
    lambda parameters: SGD(parameters, lr=1e-3, momentum=0.9),
    lambda parameters: AdamW(parameters, lr=1e-3),
    lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
    lambda parameters: torch.optim.Rprop(parameters, lr=1e-3),
]


def wide_model(dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(16, 16, bias=False).to(dtype)


def adopt(watch: Watch, model: nn.Linear, change: float, *, entering: bool = False) -> None:
    """Every element moves by about `change`, some up and some down."""
    theta = model.weight.detach()
    value = theta + change * torch.randn_like(theta)
    sample = watch.before([(theta, value)], [False], entering=entering)
    theta.copy_(value)
    if sample:
        watch.after(sample)


def train(model: nn.Linear, optimizer: Optimizer, watch: Watch, adoptions: int) -> None:
    for _ in range(adoptions):
        adopt(watch, model, 0.05)
        for _ in range(3):
            model(torch.randn(8, 16, dtype=model.weight.dtype)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.judge()


def test_masters_that_undo_adoptions_are_refused_with_the_remedy() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    optimizer = SgdWithMasters(model.parameters(), lr=1e-2)
    with pytest.raises(SpecError, match=r"undo what the learner adopts.*learner\.on_adopt\(fn\)"):
        train(model, optimizer, watch, 10)


@pytest.mark.parametrize("make", ORDINARY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_ordinary_optimizer_is_never_refused(make: Make, dtype: torch.dtype) -> None:
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    train(model, make([*model.parameters()]), watch, LOOKS_MAX + 10)
    assert watch.undone == 0


def test_a_watch_ends_when_the_adoptions_are_kept() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    train(model, SGD(model.parameters(), lr=1e-3), watch, 10)
    assert (watch.over, watch.kept, watch.looks) == (True, KEPT_MIN, KEPT_MIN)


def test_a_quick_optimizer_of_a_toy_in_f32_is_watched_on_entering_only() -> None:
    """With lr 1 this quadratic is at its optimum after each step, wherever it began."""
    model, watch = wide_model(torch.float32), Watch(staging=DirectStaging())
    optimizer = SGD(model.parameters(), lr=1.0)
    for number in range(10):
        adopt(watch, model, 0.5, entering=not number)
        (model.weight - 1.0).square().sum().div(2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        watch.judge()
    assert (watch.looks, watch.undone) == (1, 0)


def test_a_step_that_was_skipped_says_nothing() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    for _ in range(10):
        adopt(watch, model, 0.5)
        watch.judge()
    assert (watch.undone, watch.kept) == (0, 0)


@pytest.mark.parametrize("told", [False, True])
def test_a_learner_whose_optimizer_has_masters_needs_on_adopt(told: bool) -> None:
    gates = [Gate() for _ in range(8)]

    def script(fake: FakeTransport) -> None:
        fake.begin(value=0.0)
        for number, gate in enumerate(gates, 1):
            fake.offer_values(float(number), number=number)
            gate.open()
            try:
                fake.boundary()
            except AssertionError:
                return  # it has left
        fake.until_leaving()

    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).to(torch.bfloat16)
    optimizer = SgdWithMasters(model.parameters(), lr=1e-3)
    learner = learner_of(model, optimizer)
    if told:
        learner.on_adopt(optimizer.reload_masters)

    def run() -> None:
        with learner:
            for gate in gates:
                gate.pass_()
                model(torch.ones(2, 16, dtype=torch.bfloat16)).mean().backward()
                optimizer.step()
                learner.step(tokens=1)

    with playing(script):
        if told:
            run()
            assert {round(float(each.max())) for each in optimizer.masters.values()} == {8}
        else:
            with pytest.raises(SpecError, match="undo what the learner adopts"):
                run()
