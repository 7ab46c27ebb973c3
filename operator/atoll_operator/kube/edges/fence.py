"""The clock that stands before every write: nothing is written without a Lease renewed in time.

A replica that leads may be stopped at any point and go on a minute later, while another one leads;
only a look at a clock tells it. So whoever writes, to the API server (`api`) or in words to a shard
(`syncers`), asks immediately before, and a write gets no more time than is left until another
replica may lead. No lease closes the moment between that look and the write's arrival; so deletes
carry a UID, children are applied to the object of one UID, and owners' words carry a number.
"""

import time
from dataclasses import dataclass

from atoll_operator.kube.election import TIMES, Times

NEVER = float("-inf")


class NotLeaderError(Exception):
    """This replica does not lead, or could not renew its Lease in time: nothing was written."""


@dataclass(slots=True, kw_only=True)
class Fence:
    """Open for `times.renew_seconds_max` after each renewal."""

    times: Times = TIMES
    renewed_at: float = NEVER  # monotonic: when the last renewal that succeeded was sent

    def check(self) -> float:
        """Seconds that a write which is sent now may take; raises NotLeaderError."""
        age = time.monotonic() - self.renewed_at
        if age == float("inf"):
            raise NotLeaderError("this replica of the operator does not lead")
        if age >= self.times.renew_seconds_max:
            raise NotLeaderError(f"the operator's Lease was not renewed for {age:.1f} s")
        return self.times.lease_seconds - age

    @property
    def is_open(self) -> bool:
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds for which this replica still leads without another renewal."""
        return self.renewed_at + self.times.renew_seconds_max - time.monotonic()
