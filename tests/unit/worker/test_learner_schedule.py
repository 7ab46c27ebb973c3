"""Learning rates, progress and the length of the job as a learner's script sees them."""

from collections.abc import Callable

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.link.messages import JobLength, Tick
from unit.worker.fake_transport import RUN_FILE, FakeTransport, Gate, playing
from unit.worker.tiny_learner import learner_of, model_and_optimizer


def test_learning_rates_follow_the_jobs_tick_and_not_the_own_steps() -> None:
    gates = [Gate(), Gate(), Gate()]

    def script(fake: FakeTransport) -> None:
        fake.begin(tick=3)
        for gate, tick in zip(gates, (3, 4, 8), strict=True):
            fake.send(Tick(tick=tick))
            gate.open()
            fake.boundary()
        fake.until_leaving()

    model, optimizer = model_and_optimizer()
    halves = LambdaLR(optimizer, lambda tick: 0.5**tick)
    with playing(script), learner_of(model, optimizer) as learner:
        learner.schedule(halves)
        rates = [optimizer.param_groups[0]["lr"]]
        for gate in gates:
            gate.pass_()
            optimizer.step()
            learner.step(tokens=1)
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.5 * 0.5**tick for tick in (3, 3, 4, 8)]


def test_a_schedule_may_be_given_before_entering_and_may_be_chained() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin(tick=12)
        fake.until_leaving()

    model, optimizer = model_and_optimizer()
    parts: list[LRScheduler] = [
        LambdaLR(optimizer, lambda tick: 1.0),
        LambdaLR(optimizer, lambda tick: 0.5**tick),
    ]
    chained = SequentialLR(optimizer, parts, milestones=[10])
    learner = learner_of(model, optimizer)
    learner.schedule(chained)
    with playing(script), learner:
        assert optimizer.param_groups[0]["lr"] == 0.5 * 0.25


def test_total_ticks_and_progress_follow_a_job_that_becomes_longer() -> None:
    def script(fake: FakeTransport) -> None:
        fake.send(JobLength(steps=400, tokens=None))
        fake.begin(tick=10)
        fake.until_leaving()

    with playing(script), learner_of(*model_and_optimizer()) as learner:
        assert (learner.total_ticks, learner.progress) == (400, 10 / 400)


def test_a_length_in_tokens_has_no_total_ticks_and_its_progress_is_estimated_after_a_step() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin(tick=10)
        fake.until_leaving()

    text = RUN_FILE.to_json().replace('"steps": 100', '"steps": null')
    run_file = RUN_FILE.from_json(text.replace('"tokens": null', '"tokens": 1000'))
    with playing(script), learner_of(*model_and_optimizer(), run_file) as learner:
        assert (learner.total_ticks, learner.progress) == (None, 0.0)
        learner.step(tokens=10)
        assert (learner.total_ticks, learner.progress) == (None, 0.2)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda learner: learner.step(tokens=0), "tokens: is 0"),
        (lambda learner: learner.step(tokens=1.5), "whole numbers"),
        (lambda learner: learner.step(tokens=1, cursor=4), "cursor: went from 5 back to 4"),
        (lambda learner: learner.step(tokens=1, loss=torch.ones(2)), r"loss: has shape \(2,\)"),
        (lambda learner: learner.step(tokens=1, loss="low"), "loss: is 'low'"),
    ],
)
def test_a_wrong_argument_of_step_is_named(step: Callable[[Learner], None], message: str) -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin(cursor=5)
        fake.until_leaving()

    learner = learner_of(*model_and_optimizer())
    with playing(script), pytest.raises(SpecError, match=message), learner:
        step(learner)
