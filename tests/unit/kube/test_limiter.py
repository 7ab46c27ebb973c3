"""Requests beyond a burst wait for their turn, in turn of their namespaces; none is refused."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from atoll_operator.kube.edges.api import CROWD, Api, Limiter, namespace_of, path


@dataclass(slots=True)
class Clock:
    """Time that moves only by sleeping."""

    now: float = 128.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    monkeypatch.setattr("asyncio.sleep", found.sleep)
    return found


def take(one: Limiter, namespaces: Sequence[str]) -> list[str]:
    """Ask for all of them at once; the order in which they had their turns."""
    had: list[str] = []

    async def ask(namespace: str) -> None:
        await one.wait(namespace)
        had.append(namespace)

    async def scenario() -> None:
        await asyncio.gather(*map(ask, namespaces))

    asyncio.run(scenario())
    return had


def test_a_burst_passes_at_once_the_rest_at_the_rate_and_a_quiet_time_fills_the_bucket(
    clock: Clock,
) -> None:
    one = Limiter(per_second=8.0, burst=3)
    take(one, ["a"] * 3)
    assert clock.slept == []
    take(one, ["a"] * 3)
    assert clock.slept == [0.125, 0.125, 0.125]
    clock.slept.clear()
    clock.now += 900.0
    take(one, ["a"] * 4)  # no fuller than it was
    assert clock.slept == [0.125]


def test_turns_go_round_the_namespaces_whatever_one_of_them_asks_for(clock: Clock) -> None:
    one = Limiter(per_second=8.0, burst=2)
    asked = ["a"] * 8 + ["b", "c", "b"]
    assert "".join(take(one, asked)) == "aa" + "abc" + "ab" + "aaaa"
    assert len(clock.slept) == 9
    assert namespace_of(path("Pod", "team", "x", "status")) == "team"
    assert namespace_of("/api/v1/nodes") == ""


async def test_a_caller_that_is_cancelled_takes_no_turn(clock: Clock) -> None:
    one = Limiter(per_second=8.0, burst=1)
    await one.wait("a")
    gone, waits = (asyncio.ensure_future(one.wait("a")) for _ in range(2))
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    await waits
    assert clock.slept == [0.125]


def test_a_limiter_is_busy_while_less_than_half_of_the_burst_is_left(clock: Clock) -> None:
    one = Limiter(per_second=8.0, burst=8)
    assert not one.is_busy("a")
    take(one, ["a"] * 4)
    assert not one.is_busy("a")
    take(one, ["a"])
    assert one.is_busy("a")
    clock.now += 0.25
    assert not one.is_busy("a")
    assert clock.slept == []


async def never() -> None:
    await asyncio.Event().wait()


async def test_progress_waits_for_its_own_namespace_and_for_a_crowd_alone(clock: Clock) -> None:
    one = Limiter(per_second=8.0, burst=1)
    await one.wait("a")
    one.turns = asyncio.create_task(never())
    waits = asyncio.create_task(one.wait("0"))
    await asyncio.wait([waits], timeout=0)
    assert (one.is_busy("0"), one.is_busy("b")) == (True, False)
    one.waiting = {str(n): one.waiting["0"] for n in range(CROWD)}
    assert one.is_busy("b")
    for each in (waits, one.turns):
        each.cancel()


def test_what_is_only_tried_waits_for_its_turn_too_which_is_its_namespace_s(clock: Clock) -> None:
    asked: list[str] = []

    class Answer:
        status = 200

        async def read(self) -> bytes:
            return b"{}"

    class Dynamic:
        async def request(self, method: str, where: str, **_: object) -> Answer:
            asked.append(f"{method} {where.partition('/namespaces/')[2]}")
            return Answer()

    nothing: Any = None
    dynamic: Any = Dynamic()
    api = Api(client=nothing, dynamic=dynamic, limiter=Limiter(per_second=1.0, burst=1))

    async def scenario() -> None:
        many, other = ({"namespace": each, "name": "s"} for each in ("many", "other"))
        await asyncio.gather(
            *(api.dry_run({"kind": "Service", "metadata": many}) for _ in range(3)),
            api.dry_run_pod({"metadata": other}),
        )

    asyncio.run(scenario())
    tried = "patch many/services/s"
    assert asked == [tried, tried, "post other/pods", tried]
    assert clock.slept == [1.0, 1.0, 1.0]
