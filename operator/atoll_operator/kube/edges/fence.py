"""The clock that stands before every write: nothing is written without a Lease renewed in time.

A replica that leads may be stopped at any point, by a debugger, by a machine without memory, by
SIGSTOP, and go on a minute later in the middle of a pass, while another one leads. It learns that
it was stopped only by looking at a clock. So whoever writes, to the API server (`api`) or in
words to a shard (`syncers`), asks immediately before, and a write gets no more time than is left
until another replica may lead.

There is a moment between that look and the write's arrival, and no lease closes it. What is left
to do harm in it is little: deletes carry a UID, children are applied to the object of one UID, and
owners' words carry the number of the word before. An intent is said again each second by whoever
leads.
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
        """Whether something that is sent now may say what this replica has decided."""
        return time.monotonic() - self.renewed_at < self.times.renew_seconds_max

    def renewed(self, at: float) -> None:
        """Open, or keep open: the API server has taken a renewal that was sent at this time."""
        self.renewed_at = at

    def close(self) -> None:
        """Let nothing through from now on."""
        self.renewed_at = NEVER
