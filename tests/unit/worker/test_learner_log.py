"""What a script logs, and which process of a job is the main one."""

from typing import Any

import pytest
import torch

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.link.messages import LoggedValues
from atoll_worker.model.staging import Scalar
from atoll_worker.rules.learner_state import TelemetryRecord
from atoll_worker.training.logged_values import CHARACTERS_MAX, NAMES_MAX, Logged
from unit.worker.fake_driver import learner_side
from unit.worker.fake_transport import job_of
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
