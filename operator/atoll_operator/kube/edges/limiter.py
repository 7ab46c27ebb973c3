"""A limit on the requests of this operator to the API server: so many a second, with a burst.

It keeps an operator with many jobs from the API server's own limits (429). A request waits for its
turn; none is refused. Watches do not count. What only tells of progress waits while the bucket is
half empty (`is_busy`), so that statuses never use up what the loss of a node needs.
"""

import asyncio
import time
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Limiter:
    """A bucket of `burst` tokens that fills at `per_second`; a request takes one."""

    per_second: float
    burst: int
    free_at: float = float("-inf")  # monotonic: when the bucket would be empty but for new tokens

    async def wait(self) -> None:
        """Return when it is this request's turn, in the order of the calls."""
        now = time.monotonic()
        full_at = now - self.burst / self.per_second
        self.free_at = max(self.free_at, full_at) + 1 / self.per_second
        if self.free_at > now:
            await asyncio.sleep(self.free_at - now)

    @property
    def is_busy(self) -> bool:
        return time.monotonic() - self.free_at < self.burst / 2 / self.per_second
