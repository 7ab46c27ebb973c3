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
from unit.worker.masters import SgdIn8Bits, SgdWithMasters
from unit.worker.quantised import Quantised
from unit.worker.tiny_learner import learner_of

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
    watch.begin()
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_masters_that_undo_adoptions_are_refused_with_the_remedy(dtype: torch.dtype) -> None:
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    optimizer = SgdWithMasters(model.parameters(), lr=1e-2)
    with pytest.raises(SpecError) as caught:
        train(model, optimizer, watch, 10)
    problem = "SgdWithMasters keeps copies of the parameters, and its steps undo what is adopted"
    assert caught.value.problem == problem
    assert caught.value.remedy.startswith("register learner.on_adopt(fn)")


def test_masters_beside_moments_in_8_bits_are_refused_with_the_remedy() -> None:
    """They are made in the first step, of what the model had adopted by then."""
    model, watch = wide_model(), Watch(staging=DirectStaging())
    optimizer = SgdIn8Bits(model.parameters(), lr=1e-2, masters=True)
    with pytest.raises(SpecError, match="SgdIn8Bits keeps copies of the parameters, and its steps"):
        train(model, optimizer, watch, 10)


class Flattened:
    """An engine that is no torch optimizer and has one inside for its flat masters."""

    def __init__(self, model: nn.Linear) -> None:
        self.model = model
        self.flat = nn.Parameter(model.weight.detach().float().flatten())
        self.inner = SGD([self.flat], lr=1e-2)

    def step(self) -> None:
        assert self.model.weight.grad is not None
        self.flat.grad = self.model.weight.grad.float().flatten()
        self.inner.step()
        self.model.weight.data.copy_(self.flat.detach().view_as(self.model.weight))

    def zero_grad(self) -> None:
        self.model.weight.grad = None


def test_masters_of_an_engine_are_found_by_the_optimizer_inside_that_nobody_has_named() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    with pytest.raises(SpecError, match="SGD steps copies of the parameters, and its steps undo"):
        train(model, Flattened(model), watch, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", ORDINARY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_ordinary_optimizer_is_neither_refused_nor_warned_of(
    make: Make, dtype: torch.dtype
) -> None:
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    assert train(model, make([*model.parameters()]), watch, LOOKS_MAX + 10) == ""
    assert watch.undone == 0


def test_a_watch_ends_when_the_adoptions_are_kept() -> None:
    model, watch = wide_model(), Watch(staging=DirectStaging())
    train(model, SGD(model.parameters(), lr=1e-3), watch, 10)
    assert (watch.over, watch.kept, watch.looks) == (True, KEPT_MIN, KEPT_MIN + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_quick_optimizer_of_a_toy_is_never_refused(dtype: torch.dtype) -> None:
    """With this rate a quadratic is near its optimum after each step, wherever it began."""
    model, watch = wide_model(dtype), Watch(staging=DirectStaging())
    optimizer = SGD(model.parameters(), lr=0.9, momentum=0.01)
    watch.begin()
    warnings = []
    for _ in range(10):
        adopt(watch, model, 0.5)
        (model.weight - 1.0).square().sum().div(2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        warnings.append(watch.judge())
    assert watch.undone >= 3
    assert any(warnings) == (dtype == torch.bfloat16)
    assert sum("if it keeps copies" in each for each in warnings) <= 1


def test_moments_of_a_quantised_class_are_no_copies_and_no_operation_is_asked_of_them() -> None:
    """Its rate is so high that the adoptions seem to be undone, so that it is searched."""
    model, watch = wide_model(), Watch(staging=DirectStaging())
    optimizer = SGD(model.parameters(), lr=0.9, momentum=0.01)
    moments = Quantised(torch.zeros(16, 16, dtype=torch.int8), torch.tensor(1.0))
    optimizer.state[model.weight]["exp_avg"] = moments
    watch.begin()
    for _ in range(10):
        adopt(watch, model, 0.5)
        (model.weight - 1.0).square().sum().div(2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        watch.judge()
    assert watch.undone >= 3


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
            with pytest.raises(SpecError, match="its steps undo what is adopted"):
                run()
