"""A deadline that moves: forward it rings earlier, back it rings later, and never too early."""

import asyncio
import time

from atoll_protos.deadline import Deadline

SOON, LATE = 0.02, 300.0


class Due:
    """A time that a test moves."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.deadline = Deadline(time.monotonic, lambda: self.at)

    def move(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.deadline.moved()


def test_it_returns_when_it_is_due_and_not_before() -> None:
    due = Due(SOON)
    asyncio.run(due.deadline.wait())
    assert time.monotonic() >= due.at


def test_one_that_comes_forward_returns_earlier() -> None:
    due = Due(LATE)

    async def scenario() -> None:
        waits = asyncio.create_task(due.deadline.wait())
        await asyncio.sleep(0)
        due.move(SOON)
        await asyncio.wait_for(waits, LATE / 3)

    asyncio.run(scenario())


def test_one_that_moves_back_is_waited_for() -> None:
    due = Due(SOON)

    async def scenario() -> None:
        waits = asyncio.create_task(due.deadline.wait())
        await asyncio.sleep(0)
        due.move(4 * SOON)
        await waits
        assert time.monotonic() >= due.at

    asyncio.run(scenario())


def test_it_can_be_waited_for_again_and_moves_without_a_waiter_mean_nothing() -> None:
    due = Due(SOON)

    async def scenario() -> None:
        await due.deadline.wait()
        due.move(SOON)
        await due.deadline.wait()
        assert time.monotonic() >= due.at

    asyncio.run(scenario())


def test_a_waiter_that_is_cancelled_leaves_no_timer() -> None:
    due = Due(SOON)

    async def scenario() -> None:
        waits = asyncio.create_task(due.deadline.wait())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await asyncio.sleep(2 * SOON)
        due.move(SOON)
        await due.deadline.wait()

    asyncio.run(scenario())
