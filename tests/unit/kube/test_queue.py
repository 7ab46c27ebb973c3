"""When a job gets its next pass: back-off, spacing, and what is logged of a failure."""

import asyncio
from types import SimpleNamespace

import pytest
import structlog

from atoll_operator.kube.cache import Key
from atoll_operator.kube.edges.queue import SPACING_SECONDS, Queue, backoff


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_back_off_grows_from_one_second_to_a_minute(chance: float) -> None:
    waits = [backoff(failures, chance) for failures in range(12)]
    assert waits == sorted(waits)
    assert 1.0 <= waits[0] <= 1.0
    assert 30.0 <= waits[-1] <= 60.0


KEY, OTHER = ("demo", "tiny"), ("demo", "other")
NOW = 1000.0


async def _run_until(queue: Queue, done: asyncio.Event) -> None:
    task = asyncio.create_task(queue.run())
    try:
        await asyncio.wait_for(done.wait(), 60)
    finally:
        task.cancel()


def test_a_failed_pass_is_logged_with_its_traceback_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atoll_operator.kube.edges.queue.BACKOFF_SECONDS", (0.01, 0.01))
    calls: list[Key] = []

    async def run() -> None:
        done = asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            calls.append(key)
            if len(calls) == 1:
                raise ValueError("no such thing")
            done.set()
            return None

        queue = Queue(reconcile=reconcile)
        queue.add(KEY)
        await _run_until(queue, done)

    with structlog.testing.capture_logs() as logs:
        asyncio.run(run())
    assert calls == [KEY, KEY]
    (failed,) = [each for each in logs if each["event"] == "pass failed"]
    assert failed["exc_info"] is True
    assert failed["error"] == "ValueError: no such thing"


def test_many_events_of_one_job_are_one_pass() -> None:
    calls: list[Key] = []

    async def run() -> None:
        done = asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            calls.append(key)
            done.set()
            return None

        queue = Queue(reconcile=reconcile)
        for _ in range(50):
            queue.add(KEY)
        await _run_until(queue, done)

    asyncio.run(run())
    assert calls == [KEY]


class RefusedError(Exception):
    retry_after_seconds = 40.0


def failing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue whose only pass has failed, by a clock that stands still."""
    clock = SimpleNamespace(monotonic=lambda: NOW)
    monkeypatch.setattr("atoll_operator.kube.edges.queue.time", clock)
    monkeypatch.setattr("atoll_operator.kube.edges.queue.BACKOFF_SECONDS", (5.0, 60.0))

    async def run() -> Queue:
        failed = asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            failed.set()
            queue.add(key)  # an event that the pass has caused
            raise error

        queue = Queue(reconcile=reconcile)
        queue.add(KEY)
        await _run_until(queue, failed)
        return queue

    return asyncio.run(run())


def test_events_do_not_shorten_the_time_until_a_failed_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = failing(ValueError("no"), monkeypatch)
    queue.add(KEY)
    assert queue.due[KEY] == NOW + 5.0


def test_retry_after_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = failing(RefusedError(), monkeypatch)
    queue.add(KEY)
    assert queue.due[KEY] == NOW + RefusedError.retry_after_seconds


def test_an_edit_of_the_job_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = failing(ValueError("no"), monkeypatch)
    queue.lift(KEY)
    queue.add(KEY)
    assert queue.due[KEY] == NOW + SPACING_SECONDS
    assert not queue.failures


def test_a_job_has_one_pass_at_a_time() -> None:
    running, most = 0, 0

    async def run() -> None:
        begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            (done if begun.is_set() else begun).set()
            await go_on.wait()
            running -= 1
            return None

        queue = Queue(reconcile=reconcile)
        queue.add(KEY)
        task = asyncio.create_task(queue.run())
        await begun.wait()
        queue.add(KEY)
        queue.add(OTHER)  # this one is not held up
        await done.wait()
        go_on.set()
        task.cancel()

    asyncio.run(run())
    assert most == 2  # one of each job
