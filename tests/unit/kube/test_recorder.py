"""Events are few: one object for what happens again, and none for what is taken back at once."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from atoll_operator.api.status.job_status import Condition
from atoll_operator.kube.edges.api import ApiError
from atoll_operator.kube.effects.report import FORGET_SECONDS, TELL_SECONDS, Recorder
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.plan import actions
from atoll_operator.kube.plan.actions import SETTLE_SECONDS, Event

JOB = {"metadata": {"name": "tiny", "namespace": "demo", "uid": "job-uid"}}


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.refuses = 100.0, False
        self.written: list[dict[str, Any]] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        api: Any = self
        self.recorder = Recorder(api=api, metrics=Metrics())

    async def apply_event(self, event: Mapping[str, Any]) -> None:
        self.written.append(dict(event))
        if self.refuses:
            raise ApiError(403, "no")

    def tell(self, event: Event) -> None:
        asyncio.run(self.recorder.tell(event))

    def later(self, seconds: float) -> None:
        self.now += seconds
        asyncio.run(self.recorder.flush("job-uid"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def lost(pod: str = "tiny-us-east-0", at: str = "10:00") -> Event:
    return actions.warning(JOB, actions.NODE_LOST, pod, "its node n1 is gone", at)


def changed(status: str, before: str, kind: str = "Degraded") -> Event:
    condition = Condition(type=kind, status=status, reason="PodsMissing", message="why")
    return actions.of_transition(JOB, condition, before, "10:00", begun=True)


def test_what_happens_again_is_the_same_object_with_a_higher_count(world: World) -> None:
    world.tell(lost(at="10:00"))
    world.later(TELL_SECONDS)
    world.tell(lost(at="10:05"))
    first, second = world.written
    assert first["metadata"] == second["metadata"]
    assert (first["count"], second["count"]) == (1, 2)
    assert (second["firstTimestamp"], second["lastTimestamp"]) == ("10:00", "10:05")


def test_pods_and_reasons_have_objects_of_their_own(world: World) -> None:
    world.tell(lost("a"))
    world.tell(lost("b"))
    world.tell(actions.warning(JOB, actions.REVERTED, "Service a", "x" * 2000, "10:00"))
    assert len({each["metadata"]["name"] for each in world.written}) == 3
    assert all(each["involvedObject"]["uid"] == "job-uid" for each in world.written)
    assert len(world.written[-1]["message"]) == actions.MESSAGE_CHARACTERS_MAX


def test_what_happens_often_is_counted_and_written_once_in_a_while(world: World) -> None:
    for second in range(60):
        world.tell(lost(at=f"10:{second:02}"))
        world.later(1.0)
    assert [each["count"] for each in world.written] == [1, 30, 60]
    assert world.written[-1]["lastTimestamp"] == "10:59"
    world.tell(lost(at="11:00"))
    assert len(world.written) == 3
    world.later(TELL_SECONDS)
    assert (world.written[-1]["count"], world.written[-1]["lastTimestamp"]) == (61, "11:00")
    world.later(TELL_SECONDS)
    assert len(world.written) == 4


def test_a_condition_that_flaps_is_not_told(world: World) -> None:
    for _ in range(100):
        world.tell(changed("True", "False"))
        world.later(SETTLE_SECONDS / 2)
        world.tell(changed("False", "True"))
        world.later(1.0)
    assert world.written == []
    assert not world.recorder.jobs["job-uid"].unsettled


def test_what_follows_from_the_end_of_a_job_takes_back_what_waits(world: World) -> None:
    world.tell(changed("True", "False"))
    ended = Condition(type="Degraded", status="False", reason="Suspended", message="")
    world.tell(actions.of_transition(JOB, ended, "True", "10:01", begun=True))
    world.later(2 * SETTLE_SECONDS)
    assert not world.written


def test_a_condition_that_is_as_it_was_before_a_gap_is_not_told_again(world: World) -> None:
    world.tell(changed("True", "False"))
    world.later(SETTLE_SECONDS)
    assert len(world.written) == 1
    silent = Condition(type="Degraded", status="Unknown", reason="SyncerSilent", message="")
    world.tell(actions.of_transition(JOB, silent, "True", "10:01", begun=True))
    world.tell(changed("True", "Unknown"))
    world.later(10 * SETTLE_SECONDS)
    assert len(world.written) == 1
    world.tell(changed("False", "Unknown"))
    world.later(SETTLE_SECONDS)
    assert world.written[-1]["reason"] == "DegradedFalse"


@pytest.mark.parametrize("first", ["True", "Unknown"])
def test_a_condition_is_told_once_when_its_change_has_lasted(first: str, world: World) -> None:
    world.tell(changed(first, "False"))
    assert world.recorder.due_seconds("job-uid") == SETTLE_SECONDS
    world.later(SETTLE_SECONDS - 1)
    if first == "Unknown":  # it goes on to a third state
        world.tell(changed("True", first))
        world.later(SETTLE_SECONDS - 1)
    assert world.written == []
    world.later(1.0)
    (event,) = world.written
    assert (event["reason"], event["type"]) == ("DegradedTrue", "Warning")
    assert world.recorder.due_seconds("job-uid") is None


@pytest.mark.parametrize("kind", ["Accepted", "Failed", "Complete", "Suspended"])
def test_what_does_not_flap_is_told_at_once(kind: str, world: World) -> None:
    world.tell(changed("True", "False", kind))
    assert [each["reason"] for each in world.written] == [f"{kind}True"]


def test_a_refused_event_ends_nothing_and_is_not_tried_without_end(world: World) -> None:
    world.refuses = True
    world.tell(lost())
    world.later(1.0)
    assert len(world.written) == 1
    world.refuses = False
    world.later(TELL_SECONDS)
    world.tell(lost())
    assert world.written[-1]["count"] == 2


def test_other_jobs_and_old_events_are_forgotten(world: World) -> None:
    world.tell(lost())
    world.tell(changed("True", "False"))
    world.recorder.forget("another")
    known = world.recorder.jobs["job-uid"]
    assert (len(known.told), len(known.unsettled)) == (1, 1)
    world.later(FORGET_SECONDS + 1)
    assert set(known.told) == {changed("True", "False").name}
    world.recorder.forget("job-uid")
    assert not world.recorder.jobs
