"""Who leads: what a replica of the operator decides about the Lease that all of them share.

The holder of the Lease leads and renews it every two seconds (`Times`); the others keep their
watches and write nothing. Each write names the version that it replaces, so of two at the same time
the API server takes one. Nobody compares clocks of two machines: a standby notes by its own
monotonic clock when it last saw the Lease *change* (`Lease.at`), and may take it when it has not
changed for as long as its holder has promised (`Lease.seconds`). A leader counts from the moment
*before* it sent its last successful renewal. So with clocks of about the same rate

    leader stops       10 s (renew_seconds_max) after its last renewal was sent
    another may begin  15 s (lease_seconds) after that renewal was seen, at the earliest

and the 5 s between them are for a write that was under way. A Lease that is deleted is not free:
who has seen its holder waits as if it were still there.

A replica that leads may be stopped at any point and go on a minute later, while another one leads;
only a look at a clock shows it. So whoever writes, to the API server (`api`) or to a shard
(`polls`), asks the `Fence` immediately before, and a write gets no more time than is left until
another replica may lead. No lease closes the moment between that look and the write's arrival; so
deletes carry a UID, children are applied to the object of one UID, and owners carry a generation.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

NOBODY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The clock of an election; equal in all replicas, but for the moment of an upgrade."""

    lease_seconds: int = 15  # a Lease that has not changed for so long may be taken
    renew_seconds_max: float = 10.0  # a leader that could not renew for so long leads no more
    retry_seconds: float = 2.0  # between two looks, and between two renewals


TIMES = Times()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The Lease as it was last seen, and since when it is so, in monotonic seconds."""

    spec: Mapping[str, Any] = field(default_factory=dict)  # renewTime is compared for equality only
    version: str = ""  # its resourceVersion; empty: the API server has none of this name
    at: float

    @property
    def holder(self) -> str:
        return self.spec.get("holderIdentity") or NOBODY

    @property
    def seconds(self) -> int:
        """For how long its holder has promised to renew it."""
        return int(self.spec.get("leaseDurationSeconds") or TIMES.lease_seconds)


class Move(Enum):
    """What a replica does now."""

    WAIT = "another one leads, or may"
    TAKE = "write the Lease, and lead once the API server has accepted that"
    RENEW = "write the Lease again and go on leading"
    STEP_DOWN = "stop every pass: this replica leads no more"


def see(before: Lease | None, raw: Mapping[str, Any] | None, now: float) -> Lease:
    """Note the Lease as it was read at `now`; its clock restarts when it has changed."""
    before = before or Lease(at=now)
    if raw is None:
        return Lease(at=now) if before.holder == NOBODY else replace(before, version="")
    spec, version = raw.get("spec") or {}, raw["metadata"]["resourceVersion"]
    at = before.at if before.spec == spec else now  # somebody's label changes the version alone
    return Lease(spec=spec, version=version, at=at)


def pause(took: float, left: float | None, spread: float, times: Times = TIMES) -> float:
    """Seconds until the next look, after one that took so long.

    Looks are counted from their beginning: an API server that answers slowly has delayed the
    leader's renewal already, and is asked again at once. `left`: the seconds for which this replica
    still leads; None where it does not. `spread`, a factor by chance, keeps replicas apart.
    """
    found = max(0.0, times.retry_seconds * spread - took)
    return found if left is None else min(found, max(0.0, left))


def next_move(
    me: str, seen: Lease, renewed_at: float | None, now: float, times: Times = TIMES
) -> tuple[Move, str]:
    """Decide at `now`, in monotonic seconds; `renewed_at`: the last renewal, None: not leading."""
    if renewed_at is not None:
        silent = now - renewed_at
        if seen.holder != me:
            return Move.STEP_DOWN, f"the Lease was taken by {seen.holder or 'nobody'}"
        if silent >= times.renew_seconds_max:
            return Move.STEP_DOWN, f"the Lease was not renewed for {silent:.1f} s"
        return Move.RENEW, ""
    unchanged = now - seen.at
    if seen.holder == NOBODY:
        return Move.TAKE, "nobody holds the Lease"
    if seen.holder == me:
        return Move.TAKE, "nobody has taken the Lease since this replica stepped down"
    if unchanged >= seen.seconds:
        return Move.TAKE, f"{seen.holder} has not renewed the Lease for {unchanged:.1f} s"
    return Move.WAIT, f"{seen.holder} leads"


def renewed(me: str, before: Lease, wall: str, times: Times = TIMES) -> dict[str, Any]:
    """Return the spec that `me` writes over `before`; `wall` is the time of day in RFC 3339."""
    stays = before.holder == me
    transitions = int(before.spec.get("leaseTransitions") or 0)
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": times.lease_seconds,
        "acquireTime": (before.spec.get("acquireTime") if stays else "") or wall,
        "renewTime": wall,
        "leaseTransitions": transitions + (not stays and bool(before.version)),
    }


def released(before: Lease, wall: str) -> dict[str, Any]:
    """Return the spec that names nobody, so that another replica may take the Lease at once."""
    return {
        **before.spec,
        "holderIdentity": NOBODY,
        "leaseDurationSeconds": 1,
        "renewTime": wall,
    }


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
