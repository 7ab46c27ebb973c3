"""A shard's tasks and threads: errors of the store are retried, a bug is reported."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from atoll_syncer.duties import background
from atoll_syncer.duties.background import Background, Thread, start_threads
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.storage.files import StoreCorrupt, StoreError, StoreFull, StoreUnavailable


def failing(*kinds: type[StoreError]) -> Callable[[], str]:
    """Raises these, one after the other, and then names its thread."""
    left = list(kinds)

    def work() -> str:
        if left:
            raise left.pop(0)("objects/x", "it cannot be had", "wait")
        return threading.current_thread().name

    return work


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> ShardMetrics:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.0)
    return ShardMetrics(CollectorRegistry())


def run(
    metrics: ShardMetrics,
    scenario: Callable[[Background], Awaitable[None]],
    make_room: Callable[[str], int] = lambda full: 0,
) -> None:
    """With threads that report no bug."""

    def no_bug(error: BaseException) -> None:
        pytest.fail(repr(error))

    async def whole() -> None:
        threads = Background(start_threads(), metrics, no_bug, make_room)
        await scenario(threads)
        threads.stop()

    asyncio.run(whole())


def troubles(metrics: ShardMetrics) -> dict[str, float]:
    (family,) = metrics.store_troubles.collect()
    samples = (s for s in family.samples if s.name.endswith("_total"))
    return {s.labels["trouble"]: s.value for s in samples if s.value}


def test_a_store_that_does_not_take_it_is_asked_again_and_counted_rule_23(
    metrics: ShardMetrics,
) -> None:
    """What is tried again is told until it works; what a retry cannot fix is raised."""
    told: list[list[str]] = []
    work = failing(StoreFull, StoreUnavailable, StoreFull)

    async def scenario(threads: Background) -> None:
        def looking() -> str:
            told.append(list(threads.troubles))
            return work()

        assert await threads.until_stored(Thread.MERGE, looking) == "merge_0"
        assert threads.troubles == []
        with pytest.raises(StoreCorrupt):
            await threads.until_stored(Thread.LOG, failing(StoreCorrupt))

    run(metrics, scenario)
    assert told == [[], *[["objects/x: it cannot be had; wait"]] * 3]
    assert troubles(metrics) == {"full": 2, "unavailable": 1}


def test_what_decides_nothing_gives_way_to_what_finds_no_room(
    metrics: ShardMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 3600.0)
    asked: list[str] = []

    def make_room(full: str) -> int:
        asked.append(full)
        return 5

    async def scenario(threads: Background) -> None:
        assert await threads.until_stored(Thread.MERGE, failing(StoreFull, StoreFull)) == "merge_0"

    run(metrics, scenario, make_room)
    assert asked == ["objects/x"] * 2


def test_one_thread_does_one_thing_after_the_other_and_waits_for_no_other_thread(
    metrics: ShardMetrics,
) -> None:
    done: list[str] = []

    async def scenario(threads: Background) -> None:
        gate = threading.Event()

        def first() -> None:
            assert gate.wait(60)
            done.append("first")

        waits = [
            asyncio.create_task(threads.run(Thread.LOG, work))
            for work in (first, lambda: done.append("second"))
        ]
        await threads.run(Thread.MERGE, lambda: done.append("another thread's"))
        gate.set()
        await asyncio.gather(*waits)

    run(metrics, scenario)
    assert done == ["another thread's", "first", "second"]


def test_a_task_that_raises_is_reported_and_one_that_is_stopped_is_not(
    metrics: ShardMetrics,
) -> None:
    reported: list[BaseException] = []

    async def scenario() -> None:
        told, stopped = asyncio.Event(), asyncio.Event()

        def hear(error: BaseException) -> None:
            reported.append(error)
            told.set()

        async def broken() -> None:
            raise ValueError("a bug")

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        threads = Background(start_threads(), metrics, hear, lambda full: 0)
        threads.spawn(endless())
        threads.spawn(broken())
        await told.wait()
        threads.stop()
        await stopped.wait()

    asyncio.run(scenario())
    assert [repr(error) for error in reported] == ["ValueError('a bug')"]
