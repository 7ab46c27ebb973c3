"""Who leads: what a replica of the operator decides about the Lease that all of them share.

Theory. The replicas of one install share one object, a `coordination.k8s.io/v1` Lease. Its holder
leads: it runs passes and writes. The others stand by: they keep their watches, and write nothing.
The holder renews the Lease every two seconds (`Times`). Each write of it names the version that it
replaces, so of two that write at the same time the API server takes one.

Nobody compares clocks of two machines. The times in the Lease are for people to read. A standby
notes by its own monotonic clock when it last saw the Lease *change* (`Seen.at`), and may take it
when it has not changed for as long as its holder has promised (`Record.seconds`). A leader counts
from the moment *before* it sent its last successful renewal, which is earlier than anybody can
have seen it, and leads for `renew_seconds_max` from then on. So with every clock running at about
the same rate

    leader stops       10 s (renew_seconds_max) after its last renewal was sent
    another may begin  15 s (lease_seconds) after that renewal was seen, at the earliest

and the 5 s between them are for a write that was under way. Both hold when the leader's process is
stopped for a minute and goes on: its first look at the clock tells it (`edges.fence`).

A holder that ends in good order gives the Lease back by naming nobody, which ends the wait at once.
A Lease that is deleted is not free: who has seen it with a holder waits for as long as if it were
still there, because that holder does not know of the deletion yet.

Everything here is pure. `edges.lease` reads and writes the Lease and has the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
class Record:
    """What a Lease says. `version` is empty when the API server has none of this name."""

    holder: str = NOBODY
    seconds: int = TIMES.lease_seconds  # that its holder has promised to renew it in
    renewed: str = ""  # RFC 3339; compared for equality only
    acquired: str = ""
    transitions: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The newest record, and since when it is so, in monotonic seconds."""

    record: Record
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Another one leads, or may."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Write the Lease, and lead once the API server has accepted that."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Write the Lease again and go on leading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """Stop every pass: this replica leads no more."""

    reason: str


def record(raw: Mapping[str, Any] | None) -> Record:
    """A Lease as the API server has it; None: it has none."""
    if raw is None:
        return Record()
    spec = raw.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or NOBODY,
        seconds=int(spec.get("leaseDurationSeconds") or TIMES.lease_seconds),
        renewed=spec.get("renewTime") or "",
        acquired=spec.get("acquireTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
        version=raw["metadata"]["resourceVersion"],
    )


def see(before: Seen | None, found: Record, now: float) -> Seen:
    """What is known after the Lease was read at `now`; its clock restarts when it has changed."""
    if before is None:
        return Seen(record=found, at=now)
    if not found.version and before.record.holder != NOBODY:
        return replace(before, record=replace(before.record, version=""))
    known = replace(before.record, version=found.version)  # somebody's label changes only that
    return Seen(record=found, at=before.at if known == found else now)


def pause(took: float, left: float | None, spread: float, times: Times = TIMES) -> float:
    """Seconds until the next look, after one that took so long.

    The time between two looks is counted from the beginning of each: an API server that answers
    slowly has delayed the leader's renewal already, and is asked again at once. `left`: the seconds
    for which this replica still leads, at whose end it looks to step down; None where it does not.
    `spread` is a factor, by chance, that keeps replicas apart.
    """
    found = max(0.0, times.retry_seconds * spread - took)
    return found if left is None else min(found, max(0.0, left))


def decide(
    me: str, seen: Seen, renewed_at: float | None, now: float, times: Times = TIMES
) -> Wait | Take | Renew | StepDown:
    """What to do now.

    `renewed_at`: when the last renewal that succeeded was sent, None for one that does not lead.
    Times are monotonic seconds.
    """
    holder = seen.record.holder
    if renewed_at is not None:
        silent = now - renewed_at
        if holder != me:
            return StepDown(reason=f"the Lease was taken by {holder or 'nobody'}")
        if silent >= times.renew_seconds_max:
            return StepDown(reason=f"the Lease was not renewed for {silent:.1f} s")
        return Renew()
    unchanged = now - seen.at
    if holder == NOBODY:
        return Take(reason="nobody holds the Lease")
    if holder == me:
        return Take(reason="nobody has taken the Lease since this replica stepped down")
    if unchanged >= seen.record.seconds:
        return Take(reason=f"{holder} has not renewed the Lease for {unchanged:.1f} s")
    return Wait(reason=f"{holder} leads")


def written(me: str, before: Record, wall: str, times: Times = TIMES) -> Record:
    """The Lease that `me` writes over `before`; `wall` is the time of day in RFC 3339."""
    stays = before.holder == me
    return Record(
        holder=me,
        seconds=times.lease_seconds,
        renewed=wall,
        acquired=before.acquired if stays and before.acquired else wall,
        transitions=before.transitions + (not stays and bool(before.version)),
        version=before.version,
    )


def released(before: Record, wall: str) -> Record:
    """The Lease that names nobody, so that another replica may take it at once."""
    return replace(before, holder=NOBODY, seconds=1, renewed=wall)


def to_object(name: str, namespace: str, found: Record) -> dict[str, Any]:
    """The Lease as it is sent: with a version a merge patch of that version, else a new object."""
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata | ({"resourceVersion": found.version} if found.version else {}),
        "spec": {
            "holderIdentity": found.holder,
            "leaseDurationSeconds": found.seconds,
            "acquireTime": found.acquired,
            "renewTime": found.renewed,
            "leaseTransitions": found.transitions,
        },
    }
