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
from atoll_worker.script.optimizers import Schedules
from unit.worker.fixtures import learn, tiny_model

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


def followed(scheduler: object, ticks_max: int | None = TICKS, **more: Any) -> Schedules:
    schedules = Schedules()
    schedules.add(scheduler, ticks_max=ticks_max, **{"optimizers": (), **more})
    return schedules


def move(schedules: Schedules, tick: int) -> None:
    schedules.move_to(tick, min(1.0, tick / TICKS))


def halving(optimizer: Optimizer) -> LRScheduler:
    return rates.LambdaLR(optimizer, lambda tick: 0.5**tick)


def falling(progress: float) -> float:
    """A function of the progress."""
    return 1 - progress


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_has_the_rate_of_the_tick_whoever_steps_it_and_ends_where_the_job_does(
    name: str,
) -> None:
    optimizer = optimizer_of()
    scheduler = SCHEDULERS[name](optimizer)
    schedules = followed(scheduler)
    wanted = expected(SCHEDULERS[name])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for tick in (0, 1, 2, 5, 6, 11, 39, 40, 41, 45):
            move(schedules, tick)
            optimizer.step()
            for _ in range(3):
                assert rate(optimizer) == pytest.approx(wanted[min(tick, TICKS)], rel=1e-6), tick
                scheduler.step()  # as a trainer does
    assert [f"{name} was given to learner.schedule" in str(each.message) for each in told] == [True]
    schedules.close()


@pytest.mark.parametrize("trainer", ["lightning.pytorch.core.module", "transformers.trainer"])
def test_a_trainer_of_a_library_that_steps_the_scheduler_too_is_refused(trainer: str) -> None:
    scheduler = halving(optimizer_of())
    schedules = followed(scheduler)
    with pytest.raises(SpecError, match=f"{trainer} also steps the LambdaLR"):
        exec("scheduler.step()", {"__name__": trainer, "scheduler": scheduler})
    schedules.close()


def test_accelerates_wrapper_of_a_scheduler_is_looked_through() -> None:
    optimizer = optimizer_of()
    wrapper = AcceleratedScheduler(halving(optimizer), optimizer, step_with_optimizer=False)
    schedules = followed(wrapper)
    move(schedules, 3)
    with pytest.warns(UserWarning, match="follows the job's tick"):
        wrapper.step()
    assert wrapper.get_last_lr() == [rate(optimizer)] == [0.125]


@pytest.mark.parametrize(
    ("make", "by_hand", "used"),
    [
        # as when a trainer has a constant schedule of its own, and steps it after every step
        (halving, [{"lr": 17.0}] * 3, [(0.5, 0.9), (0.25, 0.9), (0.125, 0.9)]),
        # as scripts with Muon do, whose momentum rises in the first steps
        (halving, [{"momentum": each} for each in (0.85, 0.86, 0.87)],
         [(0.5, 0.85), (0.25, 0.86), (0.125, 0.87)]),
        # what the schedule moves is its own
        (SCHEDULERS["OneCycleLR"], [{"momentum": 0.5}] * 3, "as without a hand"),
    ],
)  # fmt: skip
def test_what_a_schedule_moves_is_put_right_before_each_step_and_all_else_is_the_scripts(
    make: Make, by_hand: list[dict[str, float]], used: Any
) -> None:
    found: list[list[tuple[float, float]]] = []
    for moved in (True, False):
        model = tiny_model()
        optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
        schedules = followed(make(optimizer))
        group, seen = optimizer.param_groups[0], list[tuple[float, float]]()
        optimizer.register_step_pre_hook(
            lambda *_, seen=seen, group=group: seen.append((group["lr"], group["momentum"]))
        )
        for tick, change in enumerate(by_hand, 1):
            move(schedules, tick)
            group.update(change if moved else {})
            learn(model, optimizer)
        found.append(seen)
    assert found[0] == (found[1] if isinstance(used, str) else used)
    assert len(set(found[1])) == 3


def test_two_schedulers_of_one_optimizer_go_together_but_one_is_followed_once() -> None:
    optimizer = optimizer_of()
    scheduler: Any = rates.ExponentialLR(optimizer, 0.5)
    schedules = followed(scheduler)
    schedules.add(rates.ExponentialLR(optimizer, 0.1), ticks_max=TICKS, optimizers=())
    for tick in range(4):
        move(schedules, tick)
    assert rate(optimizer) == pytest.approx(0.05**3)
    with pytest.raises(SpecError, match="is followed already"):
        schedules.add(scheduler, ticks_max=TICKS, optimizers=())


def test_a_function_of_the_progress_sets_the_rate_of_every_group_also_of_later_ones() -> None:
    model = tiny_model()
    optimizer = SGD([{"params": [model.weight], "lr": 0.5}])
    seen: list[float] = []

    def factor(progress: float) -> float:
        seen.append(progress)
        return falling(progress)

    schedules = followed(factor, optimizers=(optimizer,))
    found = []
    for tick in (0, 10, 10, 45):
        move(schedules, tick)
        learn(model, optimizer)
        found.append([group["lr"] for group in optimizer.param_groups])
        if tick == 0:
            optimizer.add_param_group({"params": [model.bias], "lr": 2.0})
    assert seen == [0.0, 0.25, 1.0]
    assert found == [[0.5], [0.375, 1.5], [0.375, 1.5], [0.0, 0.0]]


def test_a_rate_in_a_tensor_is_written_in_place() -> None:
    optimizer = AdamW(tiny_model().parameters(), lr=torch.tensor(1.0), capturable=False)
    tensor = optimizer.param_groups[0]["lr"]
    move(followed(falling, optimizers=(optimizer,)), 10)
    assert optimizer.param_groups[0]["lr"] is tensor
    assert float(tensor) == 0.75


def test_a_state_that_is_loaded_into_a_scheduler_is_told_once() -> None:
    scheduler = halving(optimizer_of())
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (rates.ReduceLROnPlateau, r"schedule: .* moves by a metric.*; use a schedule"),
        (NeedsMetric, r"schedule: .* moves by a metric.*; use a schedule"),
        (lambda _: 3, "is no learning-rate schedule"),
        (lambda _: "cosine", "is no learning-rate schedule"),
        (lambda _: object(), "is no learning-rate schedule"),
        (lambda _: falling, "needs an optimizer whose rates it sets"),
        (lambda optimizer: rates.OneCycleLR(optimizer, 1.0, total_steps=30),
         r"ends after 30 steps, the job after 40; build it for 40"),
    ],
)  # fmt: skip
def test_what_is_no_schedule_or_ends_before_the_job_is_refused(
    make: Callable[[Optimizer], object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        followed(make(optimizer_of()))


def test_with_a_length_in_tokens_a_one_cycle_stops_at_its_own_end() -> None:
    optimizer = optimizer_of()
    schedules = followed(rates.OneCycleLR(optimizer, 1.0, total_steps=30), ticks_max=None)
    optimizer.step()
    move(schedules, 100)
    assert rate(optimizer) == pytest.approx(4e-6, rel=1e-3)


@pytest.mark.parametrize("factor", [math.nan, math.inf, None])
def test_a_function_that_gives_no_number_is_refused(factor: float) -> None:
    schedules = followed(lambda progress: factor, optimizers=(optimizer_of(),))
    with pytest.raises(SpecError, match="schedule: the function gave"):
        move(schedules, 1)


def test_a_process_that_trains_nothing_needs_no_optimizer_for_a_function() -> None:
    asked: list[float] = []
    schedules = followed(lambda progress: asked.append(progress) or 1.0, trains=False)  # type: ignore[func-returns-value]
    move(schedules, 1)
    assert asked


def test_a_late_learner_hears_no_warning_of_torch() -> None:
    schedules = followed(halving(optimizer_of()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        move(schedules, 5)
