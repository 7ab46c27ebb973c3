"""What a script does wrong while it trains is reported once, with the remedy."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as optimizer_module

from atoll_worker.learner import Learner
from atoll_worker.model.parameters import travelling
from atoll_worker.script import refusals
from atoll_worker.script.refusals import CALLS_SURE, STEPS_BETWEEN, StepWatch, Unshared
from unit.worker.fixtures import learn, tiny_model

Watched = Callable[..., StepWatch]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def watch_of(said: list[str]) -> Iterator[Watched]:
    made: list[StepWatch] = []

    def make(model: nn.Module, *given: Optimizer) -> StepWatch:
        made.append(StepWatch(models=[model], given=given, tell=said.append))
        made[-1].begin()
        return made[-1]

    yield make
    for each in made:
        each.end()


def stepper(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1)


UNCOUNTED = "20 optimizer steps were made without learner.step() ("
IN_A_ROW = "learner.step() was called 3 times in a row without an optimizer step before it ("
TOO_OFTEN = "learner.step() was called 20 times for 10 optimizer steps ("
FOLLOW, ALL = "let learner.follow(optimizer", "with the tokens of all its micro-batches"


@pytest.mark.parametrize(
    ("calls", "words", "remedy"),
    [
        (2 * (19 * "o" + "s"), "", ""),
        (19 * "o" + "s" + 60 * "o", UNCOUNTED, FOLLOW),
        (2 * "ossss", IN_A_ROW, ALL),  # of four micro-batches
        (20 * "oss", TOO_OFTEN, ALL),  # of two
    ],
)
def test_calls_at_the_wrong_places_are_told_once_with_the_line_of_the_script(
    calls: str, words: str, remedy: str, said: list[str], watch_of: Watched
) -> None:
    """The optimizer steps at o, and learner.step() is called at s."""
    model = tiny_model()
    optimizer, watch = stepper(model), watch_of(model)
    for each in calls:
        if each == "o":
            optimizer.step()
        else:
            watch.called()
    assert len(said) == bool(words)
    for each in said:
        assert each.startswith(f"{words}{__file__}:")
        assert remedy in each


def test_a_call_without_any_optimizer_step_is_told_where_one_would_have_been_seen(
    said: list[str], watch_of: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    monkeypatch.setattr(refusals, "COMPILER", "no such module")
    for given in ((), (stepper(model),)):  # what was not given may be none of torch's
        watch = watch_of(model, *given)
        for _ in range(3):
            watch.called()
        assert len(said) == len(given)
    said.clear()
    monkeypatch.setattr(refusals, "COMPILER", "torch")  # a compiled step is not seen
    watch = watch_of(model, stepper(model))
    for _ in range(50):
        watch.called()
    assert not said


def test_a_loop_that_is_right_is_looked_at_for_a_while_only(
    said: list[str], watch_of: Watched
) -> None:
    model, other = tiny_model(), tiny_model()
    optimizer, watch = stepper(model), watch_of(model)
    foreign = stepper(other)  # of a discriminator that is no part of what the learner trains
    for number in range(CALLS_SURE):
        assert watch.hook is not None
        for _ in range(30):
            foreign.step()
        if number % 10:  # GradScaler has skipped the others
            optimizer.step()
        watch.called()
    assert watch.hook is None
    assert not said


def test_a_learner_looks_until_it_is_left_or_follows_an_optimizer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_model()
    optimizer = stepper(model)
    with Learner(model, optimizer) as learner:
        for _ in range(20):
            learn(model, optimizer)
        assert "20 optimizer steps were made without learner.step()" in capsys.readouterr().out
    with Learner(model, optimizer) as learner:
        learn(model, optimizer)
        for _ in range(4):
            learner.step(tokens=1)
        assert "3 times in a row" in capsys.readouterr().out
    with Learner(model, optimizer) as learner:
        learner.follow(optimizer, tokens=1)
        for _ in range(40):
            learn(model, optimizer)
        assert "learner.step()" not in capsys.readouterr().out
    assert not optimizer_module._global_optimizer_post_hooks


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
