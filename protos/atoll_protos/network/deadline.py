"""A deadline that moves: who waits for it sleeps once, not once for every move."""

import asyncio
from collections.abc import Callable


class Deadline:
    """`wait` returns once the clock has reached `when()`, which may change at any time.

    Call `moved` after what may have brought it forward; one that has moved back costs a look at the
    old time. Both are seconds of `clock`, which must run like the event loop's own.
    """

    def __init__(self, clock: Callable[[], float], when: Callable[[], float]) -> None:
        self._clock, self._when = clock, when
        self._looks_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def moved(self) -> None:
        when = self._when()
        if self._waiter is None or when >= self._looks_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, when - self._clock()), self._look)

    async def wait(self) -> None:
        """For one task."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self.moved()
            await self._waiter
        finally:
            self._waiter = None
            self._looks_at = float("inf")
            if self._timer is not None:
                self._timer.cancel()

    def _look(self) -> None:
        self._looks_at = float("inf")
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._when() <= self._clock():
            waiter.set_result(None)
        else:
            self.moved()
