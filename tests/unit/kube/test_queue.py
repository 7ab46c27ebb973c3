"""When a job gets its next pass: back-off, spacing, and what is logged of a failure."""

import asyncio
from types import SimpleNamespace

import pytest
import structlog

from atoll_operator.kube.edges.queue import SPACING_SECONDS, WORKERS, Queue, backoff
from atoll_operator.kube.observed.cache import Key
from unit.kube.api_server import running, until


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_back_off_grows_from_one_second_to_a_minute(chance: float) -> None:
    waits = [backoff(failures, chance) for failures in range(12)]
    assert waits == sorted(waits)
    assert 1.0 <= waits[0] <= 1.0
    assert 30.0 <= waits[-1] <= 60.0


KEY, OTHER = ("demo", "tiny"), ("demo", "other")
NOW = 1000.0


async def test_a_failed_pass_is_logged_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll_operator.kube.edges.queue.BACKOFF_SECONDS", (0.01, 0.01))
    calls: list[Key] = []

    async def reconcile(key: Key) -> float | None:
        calls.append(key)
        if len(calls) == 1:
            raise ValueError("no such thing")
        return None

    queue = Queue(reconcile=reconcile)
    for _ in range(50):  # many events are one pass
        queue.add(KEY)
    with structlog.testing.capture_logs() as logs:
        async with running(queue.run()):
            await until(lambda: len(calls) > 1 and not queue.running)
    assert calls == [KEY, KEY]
    (failed,) = [each for each in logs if each["event"] == "pass failed"]
    assert failed["exc_info"] is True
    assert failed["error"] == "ValueError: no such thing"


class RefusedError(Exception):
    retry_after_seconds = 40.0


async def failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue whose only pass has failed, by a clock that stands still."""
    clock = SimpleNamespace(monotonic=lambda: NOW)
    monkeypatch.setattr("atoll_operator.kube.edges.queue.time", clock)
    monkeypatch.setattr("atoll_operator.kube.edges.queue.BACKOFF_SECONDS", (5.0, 60.0))

    async def reconcile(key: Key) -> float | None:
        queue.add(key)  # an event that the pass has caused
        raise error

    queue = Queue(reconcile=reconcile)
    queue.add(KEY)
    async with running(queue.run()):
        await until(lambda: bool(queue.failures))
    return queue


@pytest.mark.parametrize(
    ("error", "lifted", "seconds"),
    [
        (ValueError("no"), False, 5.0),
        (RefusedError(), False, RefusedError.retry_after_seconds),
        (ValueError("no"), True, SPACING_SECONDS),
    ],
)
async def test_a_failed_pass_waits_whatever_events_come_but_for_an_edit_of_the_job(
    error: Exception, lifted: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await failing(error, monkeypatch)
    if lifted:
        queue.lift(KEY)
    queue.add(KEY)
    assert queue.due[KEY] == NOW + seconds
    assert bool(queue.failures) != lifted


async def test_a_job_has_one_pass_at_a_time() -> None:
    begun: list[Key] = []

    async def reconcile(key: Key) -> float | None:
        begun.append(key)
        await asyncio.sleep(60)
        return None

    queue = Queue(reconcile=reconcile)
    queue.add(KEY)
    async with running(queue.run()):
        await until(lambda: begun == [KEY])
        queue.add(KEY)
        queue.add(OTHER)  # this one is not held up
        await until(lambda: OTHER in begun)
        assert begun == [KEY, OTHER]


async def test_long_passes_of_one_namespace_hold_up_no_other_and_those_due_begin_in_turn() -> None:
    begun: list[Key] = []
    ends = asyncio.Event()

    async def reconcile(key: Key) -> float | None:
        begun.append(key)
        if key[0] == "many":
            await ends.wait()
        return None

    queue = Queue(reconcile=reconcile)
    many = [("many", str(n)) for n in range(2 * WORKERS)]
    for key in many:
        queue.add(key)
    async with running(queue.run()):
        await until(lambda: len(begun) == WORKERS)
        queue.add(OTHER, 0.05)  # a time that comes while no worker is free
        await until(lambda: OTHER in begun)
        assert begun == [*many[:WORKERS], OTHER]
        queue.add(KEY)
        ends.set()
        await until(lambda: len(begun) == len(many) + 2)
        assert begun.index(KEY) < begun.index(many[-1])


def test_a_namespace_whose_passes_run_already_has_its_turn_behind_others() -> None:
    async def reconcile(_: Key) -> float | None:
        return None

    queue = Queue(reconcile=reconcile)
    queue.running = {("a", "1"): 0.0, ("a", "2"): 0.0}
    queue.due = dict.fromkeys([("a", "3"), ("a", "4"), ("b", "1"), ("b", "2"), ("c", "1")], 0.0)
    chosen = queue._next(1.0)
    assert [f"{namespace}{name}" for namespace, name in chosen] == ["b1", "c1", "b2", "a3", "a4"]
