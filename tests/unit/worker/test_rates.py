"""Schedules follow the job's tick, whoever else steps them or writes rates."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.scheduler import AcceleratedScheduler
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as rates
from torch.optim.lr_scheduler import LRScheduler

from atoll_protos.errors import SpecError
from atoll_worker.training.rates import Schedules
from unit.worker.alone import learn, tiny_model

torch.set_num_threads(1)

TICKS = 40
Make = Callable[[Optimizer], LRScheduler]
SCHEDULERS: dict[str, Make] = {
    "LambdaLR": lambda o: rates.LambdaLR(o, lambda tick: 0.9**tick),
    "MultiplicativeLR": lambda o: rates.MultiplicativeLR(o, lambda tick: 0.9),
    "ExponentialLR": lambda o: rates.ExponentialLR(o, 0.9),
    "StepLR": lambda o: rates.StepLR(o, 7),
    "CosineAnnealingLR": lambda o: rates.CosineAnnealingLR(o, TICKS),
    "CosineAnnealingWarmRestarts": lambda o: rates.CosineAnnealingWarmRestarts(o, 10),
    "OneCycleLR": lambda o: rates.OneCycleLR(o, 1.0, total_steps=TICKS),
    "CyclicLR": lambda o: rates.CyclicLR(o, 0.1, 1.0, step_size_up=5, cycle_momentum=False),
    "SequentialLR": lambda o: rates.SequentialLR(
        o, [rates.LinearLR(o, 0.1, 1.0, 5), rates.ExponentialLR(o, 0.9)], milestones=[5]
    ),
    "ChainedScheduler": lambda o: rates.ChainedScheduler(
        [rates.ConstantLR(o, 0.5, 4), rates.ExponentialLR(o, 0.9)], o
    ),
}


def optimizer_of(lr: float = 1.0) -> Optimizer:
    return AdamW(tiny_model().parameters(), lr=lr)


def rate(optimizer: Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def expected(make: Make) -> list[float]:
    """The rates at the ticks 0 to TICKS - 1, and at the end, from a scheduler that torch steps."""
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    found = [rate(optimizer)]
    for _ in range(TICKS):
        optimizer.step()
        scheduler.step()
        found.append(rate(optimizer))
    if isinstance(scheduler, rates.OneCycleLR):
        found[TICKS] = found[TICKS - 1]  # the scheduler would go up again
    return found


def followed(scheduler: object, ticks_max: int | None = TICKS) -> Schedules:
    schedules = Schedules()
    schedules.add(scheduler, ticks_max=ticks_max, optimizers=())
    return schedules


def move(schedules: Schedules, tick: int, ticks_max: int = TICKS) -> None:
    schedules.move_to(tick, min(1.0, tick / ticks_max))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_has_the_rate_of_the_tick_and_ends_where_the_job_does(name: str) -> None:
    optimizer = optimizer_of()
    scheduler = SCHEDULERS[name](optimizer)
    wanted = expected(SCHEDULERS[name])
    schedules = followed(scheduler)
    for tick in (0, 1, 2, 5, 6, 11, 39, 40, 41, 45):
        move(schedules, tick)
        optimizer.step()
        assert rate(optimizer) == pytest.approx(wanted[min(tick, TICKS)], rel=1e-6), tick


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_trainer_that_steps_the_scheduler_too_changes_nothing_and_is_told_once(name: str) -> None:
    optimizer = optimizer_of()
    scheduler = SCHEDULERS[name](optimizer)
    wanted = expected(SCHEDULERS[name])
    schedules = followed(scheduler)
    optimizer.step()
    move(schedules, 1)
    with pytest.warns(UserWarning, match=f"{name} was given to learner.schedule"):
        scheduler.step()
    for tick in range(2, 50):
        for _ in range(3):
            scheduler.step()
        move(schedules, tick)
        assert rate(optimizer) == pytest.approx(wanted[min(tick, TICKS)], rel=1e-6)
    schedules.close()


def test_accelerates_wrapper_of_a_scheduler_is_looked_through() -> None:
    optimizer = optimizer_of()
    inner = rates.LambdaLR(optimizer, lambda tick: 0.5**tick)
    wrapper = AcceleratedScheduler(inner, optimizer, step_with_optimizer=False)
    schedules = followed(wrapper)
    move(schedules, 3)
    with pytest.warns(UserWarning, match="follows the job's tick"):
        wrapper.step()
    assert rate(optimizer) == 0.125
    assert wrapper.get_last_lr() == [0.125]


def test_a_rate_that_another_schedule_writes_is_put_right_before_the_next_step() -> None:
    """As when a trainer has a constant schedule of its own, and steps it after every step."""
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=1.0)
    schedules = followed(rates.LambdaLR(optimizer, lambda tick: 0.5**tick))
    used: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: used.append(rate(optimizer)))
    for tick in range(4):
        move(schedules, tick)
        optimizer.param_groups[0]["lr"] = 17.0
        learn(model, optimizer)
    assert used == [1.0, 0.5, 0.25, 0.125]


def test_a_momentum_that_the_script_sets_by_hand_is_its_own() -> None:
    """As scripts with Muon do, whose momentum rises in the first steps."""
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.85)
    schedules = followed(rates.LambdaLR(optimizer, lambda tick: 0.5**tick))
    used: list[tuple[float, float]] = []
    optimizer.register_step_pre_hook(
        lambda *_: used.append((rate(optimizer), optimizer.param_groups[0]["momentum"]))
    )
    for tick in range(3):
        move(schedules, tick)
        optimizer.param_groups[0]["momentum"] = 0.85 + tick / 100
        learn(model, optimizer)
    assert used == [(1.0, 0.85), (0.5, 0.86), (0.25, 0.87)]


def test_a_momentum_that_a_schedule_moves_is_put_right_before_the_next_step() -> None:
    found: list[list[float]] = []
    for by_hand in (None, 0.5):
        model = tiny_model()
        optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
        schedules = followed(rates.OneCycleLR(optimizer, 1.0, total_steps=TICKS))
        used: list[float] = []
        optimizer.register_step_pre_hook(
            lambda stepped, *_, used=used: used.append(stepped.param_groups[0]["momentum"])
        )
        for tick in range(1, 5):
            move(schedules, tick)
            if by_hand is not None:
                optimizer.param_groups[0]["momentum"] = by_hand
            learn(model, optimizer)
        found.append(used)
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


def test_two_schedulers_of_one_optimizer_go_together() -> None:
    optimizer = optimizer_of()
    schedules = followed(rates.ExponentialLR(optimizer, 0.5))
    schedules.add(rates.ExponentialLR(optimizer, 0.1), ticks_max=TICKS, optimizers=())
    for tick in range(4):
        move(schedules, tick)
    assert rate(optimizer) == pytest.approx(0.05**3)


def test_a_function_of_the_progress_sets_the_rate_of_every_group() -> None:
    model = tiny_model()
    optimizer = SGD([{"params": [model.weight], "lr": 0.5}, {"params": [model.bias], "lr": 2.0}])
    schedules = Schedules()
    seen: list[float] = []

    def factor(progress: float) -> float:
        seen.append(progress)
        return 1 - progress

    schedules.add(factor, ticks_max=TICKS, optimizers=(optimizer,))
    for tick in (0, 10, 10, 45):
        move(schedules, tick)
        learn(model, optimizer)
        if tick == 10:
            assert [group["lr"] for group in optimizer.param_groups] == [0.375, 1.5]
    assert seen == [0.0, 0.25, 1.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]


def test_a_group_that_is_added_later_gets_its_rate_too() -> None:
    model = tiny_model()
    optimizer = SGD([model.weight], lr=1.0)
    schedules = Schedules()
    schedules.add(lambda progress: 1 - progress, ticks_max=TICKS, optimizers=(optimizer,))
    move(schedules, 10)
    optimizer.add_param_group({"params": [model.bias], "lr": 4.0})
    move(schedules, 20)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2.0]


def test_a_rate_in_a_tensor_is_written_in_place() -> None:
    optimizer = AdamW(tiny_model().parameters(), lr=torch.tensor(1.0), capturable=False)
    tensor = optimizer.param_groups[0]["lr"]
    schedules = Schedules()
    schedules.add(lambda progress: 1 - progress, ticks_max=TICKS, optimizers=(optimizer,))
    move(schedules, 10)
    assert optimizer.param_groups[0]["lr"] is tensor
    assert float(tensor) == 0.75


def test_a_state_that_is_loaded_into_a_scheduler_is_told_once() -> None:
    optimizer = optimizer_of()
    scheduler = rates.LambdaLR(optimizer, lambda tick: 0.9**tick)
    schedules = followed(scheduler)
    move(schedules, 2)
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 30})
    with pytest.warns(UserWarning, match="moved it from 2 to 30"):
        move(schedules, 3)
    move(schedules, 4)


def test_the_state_of_a_scheduler_can_be_saved_and_it_is_its_own_again_after_closing() -> None:
    optimizer = optimizer_of()
    scheduler = rates.ExponentialLR(optimizer, 0.5)
    schedules = followed(scheduler)
    assert isinstance(scheduler, rates.ExponentialLR)
    assert "step" not in copy.deepcopy(scheduler.state_dict())
    move(schedules, 2)
    schedules.close()
    assert type(scheduler) is rates.ExponentialLR
    optimizer.step()
    scheduler.step()
    assert rate(optimizer) == 0.125


class NeedsMetric:
    """A schedule that some other library could have."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.last_epoch = optimizer, 0

    def step(self, metric: float) -> None:
        self.last_epoch += 1


def test_a_schedule_that_needs_a_metric_is_refused_with_the_remedy() -> None:
    for given in (rates.ReduceLROnPlateau(optimizer_of()), NeedsMetric(optimizer_of())):
        with pytest.raises(SpecError, match=r"schedule: .* moves by a metric.*; use a schedule"):
            followed(given)


@pytest.mark.parametrize("given", [3, "cosine", object()])
def test_what_is_no_schedule_is_refused(given: object) -> None:
    with pytest.raises(SpecError, match="is no learning-rate schedule"):
        followed(given)


def test_a_one_cycle_that_ends_before_the_job_is_refused_at_once() -> None:
    scheduler = rates.OneCycleLR(optimizer_of(), 1.0, total_steps=30)
    with pytest.raises(SpecError, match=r"ends after 30 steps, the job after 40; build it for 40"):
        followed(scheduler)


def test_with_a_length_in_tokens_a_one_cycle_stops_at_its_own_end() -> None:
    optimizer = optimizer_of()
    schedules = followed(rates.OneCycleLR(optimizer, 1.0, total_steps=30), ticks_max=None)
    optimizer.step()
    move(schedules, 100)
    assert rate(optimizer) == pytest.approx(4e-6, rel=1e-3)


@pytest.mark.parametrize("factor", [math.nan, math.inf, None])
def test_a_function_that_gives_no_number_is_refused(factor: float) -> None:
    schedules = Schedules()
    schedules.add(lambda progress: factor, ticks_max=TICKS, optimizers=(optimizer_of(),))
    with pytest.raises(SpecError, match="schedule: the function gave"):
        move(schedules, 1)


def test_a_function_without_an_optimizer_is_refused() -> None:
    with pytest.raises(SpecError, match="needs an optimizer whose rates it sets"):
        followed(lambda progress: 1.0)


def test_a_process_that_trains_nothing_needs_no_optimizer_for_a_function() -> None:
    schedules, asked = Schedules(), list[float]()
    schedules.add(
        lambda progress: asked.append(progress) or 1.0,  # type: ignore[func-returns-value]
        ticks_max=TICKS,
        optimizers=(),
        trains=False,
    )
    move(schedules, 1)
    assert asked


def test_one_scheduler_is_followed_once() -> None:
    scheduler: Any = rates.ExponentialLR(optimizer_of(), 0.5)
    schedules = followed(scheduler)
    with pytest.raises(SpecError, match="is followed already"):
        schedules.add(scheduler, ticks_max=TICKS, optimizers=())


def test_a_late_learner_hears_no_warning_of_torch() -> None:
    schedules = followed(rates.ExponentialLR(optimizer_of(), 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedules.move_to(5, 0.1)
