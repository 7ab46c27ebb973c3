"""What a script gives to its Learner: data states, losses, values to draw, schedules."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.link.messages import Capture, JobLength, LoggedValues, Proceed, Tick
from atoll_worker.model.staging import Scalar
from atoll_worker.rules.learner_state import TelemetryRecord
from atoll_worker.training import boundary
from atoll_worker.training.boundary import BoundaryWork, Counts
from atoll_worker.training.logged_values import (
    CHARACTERS_MAX,
    FIRST_STEPS,
    NAMES_MAX,
    Logged,
    Losses,
    digest_of,
)
from unit.worker.fake_driver import learner_side
from unit.worker.fake_transport import LOCKSTEP, FakeTransport, job_of, playing
from unit.worker.fixtures import entered, learner_of, model_and_optimizer


def test_numbers_and_tensors_that_are_logged_reach_the_transport_in_their_order() -> None:
    learner = learner_of(*model_and_optimizer())
    with entered(learner) as fake:
        learner.log({"accuracy": 0.5, "norm": torch.tensor([2.0])})
        learner.log({"count": 3})
        found = [fake.next(), fake.next()]
    expected = [{"accuracy": 0.5, "norm": 2.0}, {"count": 3.0}]
    assert found == [LoggedValues(values=tuple(each.items())) for each in expected]


def test_what_is_logged_gets_the_tick_of_the_step_lines_around_it() -> None:
    side = learner_side().begin()
    side.ticks(7)
    record = TelemetryRecord({"event": "logged", "tick": 7, "values": {"a": 1.0}})
    assert side.exchange.logged([("a", 1.0)]) == [record]


class Later:
    """A device that has not yet given a tensor."""

    over = False

    def done(self) -> bool:
        return self.over

    def wait(self) -> None:
        raise AssertionError("the script waits for the device")


def test_a_call_waits_for_its_tensors_and_for_the_calls_before_it() -> None:
    logged, ticket = Logged(), Later()
    logged.note({"a": torch.ones(())}, lambda value: Scalar(host=value, ticket=ticket))
    logged.note({"b": 2.0}, lambda value: Scalar(host=value, ticket=ticket))
    assert not [*logged.known()]
    ticket.over = True
    assert [*logged.known()] == [{"a": 1.0}, {"b": 2.0}]
    assert not [*logged.known()]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": "high"}, "log.a: is 'high'"),
        ({"a": torch.ones(2)}, r"log.a: has shape \(2,\)"),
        ({"": 1.0}, "log: has the name ''"),
        ({3: 1.0}, "log: has the name 3"),
        ({"a" * (CHARACTERS_MAX + 1): 1.0}, "log: has the name"),
        ({"loss": 1.0}, "log.loss: is what the steps report"),
        ({str(number): 1.0 for number in range(NAMES_MAX + 1)}, "log: has 1001 names"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_name(values: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Logged().note(values, lambda value: pytest.fail("it is read"))


def test_alone_there_is_nothing_to_draw_in_and_outside_nothing_can_be_logged() -> None:
    learner = Learner(*model_and_optimizer())
    with pytest.raises(RuntimeError, match="inside `with Learner"):
        learner.log({"a": 1.0})
    with learner:
        learner.log({"a": 1.0})
        assert learner.is_main


@pytest.mark.parametrize(
    ("slot", "rank", "is_main"), [("here-0", 0, True), ("here-0", 1, False), ("here-1", 0, False)]
)
def test_one_process_of_a_job_is_the_main_one(
    slot: str, rank: int, is_main: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda _: rank)
    learner = Learner(*model_and_optimizer())
    learner._job = job_of(slot=slot)
    assert learner._job.first == (slot == "here-0")
    assert learner.is_main == is_main
    learner._rank_known = learner._rank()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)  # behind the loop
    assert learner.is_main == is_main


def test_a_data_state_goes_with_the_capture_of_its_step_and_comes_back_on_entering() -> None:
    learner = learner_of(*model_and_optimizer())
    with entered(learner, cursor=7, data_state=b"at 7") as fake:
        assert (learner.cursor, learner.data_state) == (7, b"at 7")
        fake.send(Capture(slices=fake.end.memory.plan.slices))
        learner.step(tokens=1, state=b"at 8")
        learner.step(tokens=1, state=b"at 9")
        assert (learner.cursor, learner.data_state) == (9, b"at 7")
        assert [fake.boundary().data_state for _ in range(2)] == [b"at 8", None]


def test_a_function_of_the_data_state_is_called_in_the_step_of_a_capture_and_no_other() -> None:
    learner = learner_of(*model_and_optimizer())
    called: list[int] = []

    def state() -> bytes:
        called.append(learner.cursor)
        return f"at {learner.cursor}".encode()

    with entered(learner, cursor=7) as fake:
        learner.step(tokens=1, state=state)
        assert called == [8]  # once, to see that it is right
        learner.step(tokens=1, state=state)
        fake.send(Capture(slices=fake.end.memory.plan.slices))
        learner.step(tokens=1, state=state)
        learner.step(tokens=1, state=state)
        states = [fake.boundary().data_state for _ in range(4)]
    assert (called, states) == ([8, 10], [None, None, b"at 10", None])


def test_in_lock_step_the_data_state_is_that_of_the_step_that_waits() -> None:
    def script(fake: FakeTransport) -> None:
        fake.begin()
        for state in (b"1", b"2"):
            assert fake.boundary().data_state is None
            for key in fake.end.memory.plan.slices:
                fake.send(Capture(slices=(key,)))
                assert fake.boundary().data_state == state
            fake.send(Proceed())
        fake.until_leaving()

    states = iter([b"1", b"2", b"3"])
    with playing(script), learner_of(*model_and_optimizer(), LOCKSTEP) as learner:
        for _ in range(2):
            learner.step(tokens=1, state=lambda: next(states))
        assert next(states) == b"3"


def give(kept: boundary.KeptDataState, state: Any) -> None:
    """As the first step of a script does."""
    kept.give(state)
    kept.try_once()


@pytest.mark.parametrize("state", [bytes(17), lambda: bytes(17), "here", lambda: 3])
def test_what_is_no_data_state_is_refused_in_the_step_that_gives_it(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundary, "DATA_STATE_BYTES_MAX", 16)
    kept = boundary.KeptDataState()
    kept.give(b"0123456789abcdef")
    assert kept.take() == b"0123456789abcdef"
    with pytest.raises(SpecError, match="state"):
        give(kept, state)


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


def test_on_the_head_the_scripts_numbers_count_and_its_state_is_kept() -> None:
    counts = Counts(cursor=10)
    tokens, cursor = counts.given(7, 15, b"state", is_head=True)
    counts.count(tokens, cursor)
    assert (counts.own_steps, counts.tokens, counts.cursor) == (1, 7, 15)
    work = BoundaryWork(captured=[(0, 0)])
    assert counts.state(work) == b"state"
    assert counts.state(BoundaryWork()) is None


def test_of_what_the_script_of_another_rank_gives_only_the_state_is_kept() -> None:
    counts = Counts(cursor=10)
    for tokens, cursor in ((7, 15), (-1, 3)):
        counts.count(*counts.given(tokens, cursor, b"state", is_head=False))
    counts.heard(14, 20)
    assert (counts.own_steps, counts.tokens, counts.cursor) == (2, 14, 20)
    assert counts.state(BoundaryWork(captured=[(0, 0)])) == b"state"


def test_a_length_in_tokens_is_estimated_from_the_tokens_of_a_step() -> None:
    length, counts = JobLength(steps=None, tokens=1000), Counts()
    assert counts.progress(5, length, learners=2) == 0.0
    counts.count(10, 1)
    assert counts.progress(5, length, learners=2) == 0.1
    assert counts.progress(500, length, learners=2) == 1.0


LOSSES = [11.0 + 0.3 * math.sin(n) for n in range(FIRST_STEPS)]


def never(tensor: torch.Tensor) -> Scalar:
    raise AssertionError(tensor)


def noted(values: list[float]) -> Losses:
    losses = Losses()
    for value in values:
        losses.note(value, never)
    return losses


def test_the_digest_is_of_the_first_steps_and_differs_with_the_last_bit_of_one() -> None:
    assert noted(LOSSES[:-1]).first_digest == 0
    found = noted(LOSSES).first_digest
    assert 0 < found < 1 << 64
    assert noted([*LOSSES, 3.0, 2.0]).first_digest == found
    for place in range(FIRST_STEPS):
        other = [*LOSSES]
        other[place] = math.nextafter(other[place], 0.0)
        assert noted(other).first_digest not in (0, found)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * FIRST_STEPS,
        [math.nan] * FIRST_STEPS,
        [*LOSSES[:-1], math.inf],
        [math.log(50257.0) - 1e-6 * n for n in range(FIRST_STEPS)],  # a head of zeros, warm-up
        [float(np.float16(each)) for each in LOSSES],
        [torch.tensor(each, dtype=torch.bfloat16).item() for each in LOSSES],
        [1.0 / (1 + (n > 1)) for n in range(FIRST_STEPS)],
    ],
    ids=["zero", "nan", "infinite", "log of the vocabulary", "f16", "bf16", "of few digits"],
)
def test_losses_that_may_be_equal_on_other_data_have_no_digest(values: list[float]) -> None:
    assert digest_of(values) == 0


def test_losses_in_f32_have_one() -> None:
    assert digest_of([float(np.float32(each)) for each in LOSSES])
