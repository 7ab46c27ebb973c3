"""Learning rates, progress and the length of the job as a learner's script sees them."""

from collections.abc import Callable

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.link.messages import JobLength, Tick
from unit.worker.fixtures import entered, learner_of, model_and_optimizer


def test_learning_rates_follow_the_jobs_tick_and_not_the_own_steps() -> None:
    model, optimizer = model_and_optimizer()
    halves = LambdaLR(optimizer, lambda tick: 0.5**tick)
    learner = learner_of(model, optimizer)
    with entered(learner, tick=3) as fake:
        learner.schedule(halves)
        rates = [optimizer.param_groups[0]["lr"]]
        for tick in (3, 4, 8):
            fake.send(Tick(tick=tick))
            optimizer.step()
            learner.step(tokens=1)
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.5 * 0.5**tick for tick in (3, 3, 4, 8)]


def test_a_schedule_may_be_given_before_entering_and_may_be_chained() -> None:
    model, optimizer = model_and_optimizer()
    parts: list[LRScheduler] = [
        LambdaLR(optimizer, lambda tick: 1.0),
        LambdaLR(optimizer, lambda tick: 0.5**tick),
    ]
    chained = SequentialLR(optimizer, parts, milestones=[10])
    learner = learner_of(model, optimizer)
    learner.schedule(chained)
    with entered(learner, tick=12):
        assert optimizer.param_groups[0]["lr"] == 0.5 * 0.25


def test_total_ticks_and_progress_follow_a_job_that_becomes_longer() -> None:
    learner = learner_of(*model_and_optimizer())
    with entered(learner, tick=10) as fake:
        fake.send(JobLength(steps=400, tokens=None))
        learner.step(tokens=1)
        assert (learner.total_ticks, learner.progress) == (400, 10 / 400)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda learner: learner.step(tokens=0), "tokens: is 0"),
        (lambda learner: learner.step(tokens=1.5), "whole numbers"),
        (lambda learner: learner.step(tokens=1, cursor=4), "cursor: went from 5 back to 4"),
        (
            lambda learner: learner.step(tokens=1, cursor=5, state=b"x"),
            "cursor: stays at 5 in a step with a state",
        ),
        (lambda learner: learner.step(tokens=1, loss=torch.ones(2)), r"loss: has shape \(2,\)"),
        (lambda learner: learner.step(tokens=1, loss="low"), "loss: is 'low'"),
    ],
)
def test_a_wrong_argument_of_step_is_named(step: Callable[[Learner], None], message: str) -> None:
    learner = learner_of(*model_and_optimizer())
    with pytest.raises(SpecError, match=message), entered(learner, cursor=5):
        step(learner)
