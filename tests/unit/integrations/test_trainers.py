"""What both callbacks share."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from atoll import Learner, SpecError
from atoll_integrations.trainers import (
    EveryTicks,
    NotStepped,
    OptimizerSteps,
    Ranks,
    check_all,
    slot_seed,
    tokens_in,
    unwrapped,
)

TEXT = torch.zeros(4, 32, dtype=torch.int64)
IMAGES = torch.zeros(6, 3, 8, 8)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"labels": torch.zeros(4, dtype=torch.int64), "input_ids": TEXT}, 4 * 32),
        ({"pixel_values": IMAGES, "labels": torch.zeros(6, dtype=torch.int64)}, 6),
        ([IMAGES, torch.zeros(6, dtype=torch.int64)], 6),
        ((TEXT, TEXT), 4 * 32),
        ({"one": [{"x": IMAGES}]}, 6),
        (torch.zeros(5, 7), 5),
        (torch.tensor(1.0), 1),
        (torch.zeros(0, 4), 1),
        (None, 1),
        ("no tensor at all", 1),
    ],
)
def test_integers_of_two_dimensions_are_tokens_and_all_else_samples(batch: Any, count: int) -> None:
    assert tokens_in(batch) == count


def test_the_main_input_of_a_model_counts_if_it_is_there() -> None:
    batch = {"labels": torch.zeros(4, 2, dtype=torch.int64), "frames": TEXT}
    assert tokens_in(batch, "frames") == 4 * 32
    assert tokens_in(batch, "absent") == 4 * 2


def test_no_epoch_of_a_slot_has_the_seed_of_another_slots_epoch() -> None:
    slots = [f"{region}-{number}" for region in ("us-east", "eu-west") for number in range(50)]
    seeds = [slot_seed(42, slot, epoch) for slot in slots for epoch in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_process_without_a_group_counts_its_own() -> None:
    loss = torch.tensor(2.0)
    assert Ranks().together(7, loss, loss.device) == (7, loss)
    assert Ranks().together(7, None, loss.device) == (7, None)


def test_a_trainer_that_divides_its_work_for_another_number_of_processes_is_refused() -> None:
    check_all("AtollCallback", 1, "")
    with pytest.raises(SpecError, match="knows 2 of 1 processes; give it one"):
        check_all("AtollCallback", 2, "give it one")


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


def test_a_step_that_a_scaler_skips_is_none_for_plain_and_fused_optimizers() -> None:
    for fused in (False, True):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        steps = OptimizerSteps([optimizer])
        for value, stepped in ((float("inf"), False), (1.0, True)):
            before = model.weight.detach().clone()
            scaler.scale((model(torch.ones(1, 2)) * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert steps.taken == stepped, (fused, value)
            assert torch.equal(before, model.weight) is not stepped
            steps.clear()
        steps.close()
        optimizer.step()
        assert not steps.taken


def test_the_optimizer_inside_a_wrapper_is_watched() -> None:
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert unwrapped(Wrapper(optimizer)) is optimizer
    steps = OptimizerSteps([Wrapper(optimizer)])
    optimizer.step()
    assert steps.taken
