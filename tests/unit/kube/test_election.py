"""Who leads, decided: one holder at a time, whatever the clocks of the machines say."""

from typing import Any

import pytest

from atoll_operator.kube.edges.election import (
    NOBODY,
    TIMES,
    Lease,
    Move,
    next_move,
    pause,
    renewed,
    see,
)

LEASE_SECONDS, RENEW_SECONDS_MAX = TIMES.lease_seconds, TIMES.renew_seconds_max
A, B = "pod-a_1", "pod-b_2"
NOW = "2026-01-01T00:00:00.000000Z"


def held(by: str, version: str = "7", renewed: str = NOW, **more: object) -> dict[str, Any]:
    """The Lease as the API server has it."""
    spec = {"holderIdentity": by, "renewTime": renewed, "acquireTime": NOW, **more}
    return {"metadata": {"resourceVersion": version}, "spec": spec}


LONG: dict[str, Any] = {"leaseDurationSeconds": 40}


@pytest.mark.parametrize(
    ("me", "found", "sent_at", "seconds", "move", "why"),
    [
        (A, None, None, 0.0, Move.TAKE, "nobody holds the Lease"),
        (A, held(NOBODY), None, 0.0, Move.TAKE, "nobody holds the Lease"),
        (A, held(B), None, LEASE_SECONDS - 0.1, Move.WAIT, f"{B} leads"),
        (A, held(B), None, LEASE_SECONDS, Move.TAKE, f"{B} has not renewed the Lease for 15.0 s"),
        (A, held(B, **LONG), None, 39.9, Move.WAIT, f"{B} leads"),
        (A, held(B, **LONG), None, 40.0, Move.TAKE, f"{B} has not renewed the Lease for 40.0 s"),
        (A, held(A), 100.0, RENEW_SECONDS_MAX - 0.1, Move.RENEW, ""),
        (A, held(A), 100.0, 10.0, Move.STEP_DOWN, "the Lease was not renewed for 10.0 s"),
        (B, held(A), None, RENEW_SECONDS_MAX, Move.WAIT, f"{A} leads"),  # when its leader ends
        (A, held(B), 40.0, 0.0, Move.STEP_DOWN, f"the Lease was taken by {B}"),  # it has woken up
        (A, held(A), None, 12.0, Move.TAKE, "nobody has taken the Lease since this replica"),
    ],
)
def test_what_is_done_follows_from_who_holds_the_lease_and_since_when(
    me: str, found: Any, sent_at: float | None, seconds: float, move: Move, why: str
) -> None:
    """A leader counts from when it sent its last renewal, others from when they saw it."""
    decided = next_move(me, see(None, found, 100.0), sent_at, 100.0 + seconds)
    assert decided[0] is move
    assert decided[1].startswith(why)


@pytest.mark.parametrize(
    ("later", "takes_at"),
    [
        *((held(B, "8", renewed=f"2026-01-01T{hour}:00:00.000000Z"), 29.0) for hour in (23, 12)),
        (held(B), 15.0),  # a look at it does not prolong it
        (held(B, "8"), 15.0),  # nor does a label that somebody has set on it
        (None, 15.0),  # it is deleted: it is waited for as if it were there
    ],
)
def test_a_lease_lives_on_when_it_was_seen_to_change_whatever_time_of_day_it_names(
    later: Any, takes_at: float
) -> None:
    seen = see(see(None, held(B), 0.0), later, 14.0)
    assert seen.version == (later["metadata"]["resourceVersion"] if later else "")
    assert next_move(A, seen, None, takes_at - 0.1)[0] is Move.WAIT
    assert next_move(A, seen, None, takes_at)[0] is Move.TAKE


@pytest.mark.parametrize(("before", "transitions"), [(A, 3), (B, 4), (NOBODY, 4)])
def test_a_change_of_holder_is_counted_and_a_renewal_is_not(before: str, transitions: int) -> None:
    old = see(None, held(before, leaseTransitions=3, acquireTime="then"), 0.0)
    assert renewed(A, old, NOW) == {
        "holderIdentity": A,
        "leaseDurationSeconds": LEASE_SECONDS,
        "acquireTime": "then" if before == A else NOW,
        "renewTime": NOW,
        "leaseTransitions": transitions,
    }
    assert renewed(A, Lease(at=0.0), NOW)["leaseTransitions"] == 0


@pytest.mark.parametrize(
    ("took", "left", "spread", "seconds"),
    [
        (0.1, None, 1.0, 1.9),
        (1.5, 8.5, 0.8, 0.1),
        (4.0, 6.0, 1.0, 0.0),  # the renewal is late already
        (0.1, 0.5, 1.0, 0.5),
        (0.1, -0.5, 1.0, 0.0),
    ],
)
def test_looks_keep_their_pace_however_slow_the_api_server_is_until_a_leaders_time_is_over(
    took: float, left: float | None, spread: float, seconds: float
) -> None:
    assert pause(took=took, left=left, spread=spread) == pytest.approx(seconds)
