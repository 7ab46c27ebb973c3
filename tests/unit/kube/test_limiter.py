"""Requests beyond a burst wait for their turn, and none is refused."""

import asyncio
from typing import Any

import pytest

from atoll_operator.kube.edges.api import Api
from atoll_operator.kube.edges.limiter import Limiter


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, on a clock that stands still meanwhile."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))

    monkeypatch.setattr("time.monotonic", lambda: 128.0)
    monkeypatch.setattr("asyncio.sleep", sleep)
    return slept


def take(one: Limiter, count: int) -> None:
    async def scenario() -> None:
        for _ in range(count):
            await one.wait()

    asyncio.run(scenario())


def test_a_burst_passes_at_once_the_rest_at_the_rate_and_a_quiet_time_fills_the_bucket(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Limiter(per_second=8.0, burst=3)
    take(one, 3)
    assert waits == []
    take(one, 3)
    assert waits == [0.125, 0.25, 0.375]
    waits.clear()
    monkeypatch.setattr("time.monotonic", lambda: 1024.0)
    take(one, 4)  # no fuller than it was
    assert waits == [0.125]


def test_a_limiter_is_busy_while_less_than_half_of_the_burst_is_left(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Limiter(per_second=8.0, burst=8)
    assert not one.is_busy
    take(one, 4)
    assert not one.is_busy
    take(one, 1)
    assert one.is_busy
    monkeypatch.setattr("time.monotonic", lambda: 128.25)
    assert not one.is_busy
    assert waits == []


def test_what_is_only_tried_waits_for_its_turn_too(waits: list[float]) -> None:
    class Answer:
        status = 200

        async def read(self) -> bytes:
            return b"{}"

    class Dynamic:
        async def request(self, *_: object, **__: object) -> Answer:
            return Answer()

    nothing: Any = None
    dynamic: Any = Dynamic()
    api = Api(client=nothing, dynamic=dynamic, limiter=Limiter(per_second=1.0, burst=1))
    metadata = {"namespace": "demo", "name": "s"}

    async def scenario() -> None:
        await api.dry_run({"kind": "StatefulSet", "metadata": metadata})
        await api.dry_run_pod({"metadata": metadata})
        await api.dry_run({"kind": "StatefulSet", "metadata": metadata})

    asyncio.run(scenario())
    assert waits == [1.0, 2.0]
