"""A deadline that moves: forward it rings earlier, back it rings later, and never too early."""

import asyncio
import time

import pytest

from atoll_protos.network.channels import Deadline

SOON, LATE = 0.02, 300.0


class Due:
    """A time that a test moves."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.deadline = Deadline(time.monotonic, lambda: self.at)

    def move(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.deadline.moved()


def test_it_returns_when_it_is_due_and_can_be_waited_for_again() -> None:
    due = Due(SOON)

    async def scenario() -> None:
        for _ in range(2):
            await due.deadline.wait()
            assert time.monotonic() >= due.at
            due.move(SOON)  # without a waiter this means nothing
        waits = asyncio.create_task(due.deadline.wait())
        await asyncio.sleep(0)
        waits.cancel()  # leaves no timer
        await asyncio.gather(waits, return_exceptions=True)
        await asyncio.sleep(2 * SOON)
        due.move(SOON)
        await due.deadline.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize(("first", "then"), [(LATE, SOON), (SOON, 4 * SOON)])
def test_one_that_moves_is_waited_for_at_its_new_time(first: float, then: float) -> None:
    due = Due(first)

    async def scenario() -> None:
        waits = asyncio.create_task(due.deadline.wait())
        await asyncio.sleep(0)
        due.move(then)
        await asyncio.wait_for(waits, LATE / 3)
        assert time.monotonic() >= due.at

    asyncio.run(scenario())
