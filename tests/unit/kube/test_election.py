"""Who leads, decided: one holder at a time, whatever the clocks of the machines say."""

import pytest

from atoll_operator.kube.election import (
    NOBODY,
    TIMES,
    Record,
    Renew,
    Seen,
    StepDown,
    Take,
    Wait,
    decide,
    pause,
    record,
    released,
    see,
    to_object,
    written,
)

LEASE_SECONDS, RENEW_SECONDS_MAX = TIMES.lease_seconds, TIMES.renew_seconds_max
A, B = "pod-a_1", "pod-b_2"
NOW = "2026-01-01T00:00:00.000000Z"


def held(by: str, version: str = "7", **more: object) -> Record:
    return Record(holder=by, version=version, renewed=NOW, acquired=NOW, **more)  # type: ignore[arg-type]


def test_a_lease_that_nobody_holds_is_taken_at_once() -> None:
    for found in (Record(), held(NOBODY)):
        assert isinstance(decide(A, Seen(record=found, at=5.0), None, 5.0), Take)


def test_a_standby_waits_for_as_long_as_the_holder_has_promised_to_renew_in() -> None:
    for seconds in (LEASE_SECONDS, 40):
        seen = Seen(record=held(B, seconds=seconds), at=100.0)
        waits = decide(A, seen, None, 100.0 + seconds - 0.1)
        assert waits == Wait(reason=f"{B} leads")
        taken = decide(A, seen, None, 100.0 + seconds)
        assert taken == Take(reason=f"{B} has not renewed the Lease for {seconds:.1f} s")


def test_the_time_of_day_in_a_lease_is_compared_with_no_clock() -> None:
    """A holder whose clock is an hour ahead, or behind, or stands, keeps what it renews."""
    seen, now = None, 0.0
    for hour in ("23", "00", "01", "12"):
        now += 10.0
        renewed = f"2026-01-01T{hour}:00:00.000000Z"
        seen = see(seen, Record(holder=B, version=hour, renewed=renewed), now)
        assert isinstance(decide(A, seen, None, now + LEASE_SECONDS - 0.1), Wait)


def test_reading_an_unchanged_lease_does_not_prolong_it() -> None:
    first = see(None, held(B), 0.0)
    again = see(first, held(B), 14.0)
    assert isinstance(decide(A, again, None, 15.0), Take)
    labelled = see(first, held(B, version="8"), 14.0)  # somebody has set a label on it
    assert isinstance(decide(A, labelled, None, 15.0), Take)
    assert labelled.record.version == "8"


def test_a_lease_that_is_deleted_is_waited_for_as_if_it_were_there() -> None:
    seen = see(see(None, held(B), 0.0), Record(), 14.0)
    assert isinstance(decide(A, seen, None, 14.9), Wait)
    assert isinstance(decide(A, seen, None, 15.0), Take)
    assert seen.record.version == ""  # it has to be made


def test_a_leader_whose_lease_is_deleted_makes_it_again() -> None:
    seen = see(see(None, held(A), 0.0), Record(), 2.0)
    assert decide(A, seen, 0.0, 2.0) == Renew()
    assert "resourceVersion" not in to_object("l", "n", written(A, seen.record, NOW))["metadata"]


def test_a_leader_steps_down_before_another_may_take_its_lease() -> None:
    """It counts from when it sent its last renewal, others from when they saw it."""
    sent_at, seen_at = 100.0, 100.0  # seen as soon as it was sent: the least that others may wait
    ours = Seen(record=held(A), at=sent_at)
    assert decide(A, ours, sent_at, sent_at + RENEW_SECONDS_MAX - 0.1) == Renew()
    last = decide(A, ours, sent_at, sent_at + RENEW_SECONDS_MAX)
    assert last == StepDown(reason="the Lease was not renewed for 10.0 s")
    theirs = Seen(record=held(A), at=seen_at)
    assert isinstance(decide(B, theirs, None, sent_at + RENEW_SECONDS_MAX), Wait)


def test_a_leader_that_wakes_up_finds_its_lease_taken_or_too_old() -> None:
    woken = decide(A, Seen(record=held(B), at=60.0), 0.0, 60.0)
    assert woken == StepDown(reason=f"the Lease was taken by {B}")
    assert isinstance(decide(A, Seen(record=held(A), at=0.0), 0.0, 60.0), StepDown)


def test_one_that_stepped_down_takes_its_own_lease_again_if_nobody_has() -> None:
    assert isinstance(decide(A, Seen(record=held(A), at=0.0), None, 12.0), Take)


@pytest.mark.parametrize(("before", "transitions"), [(A, 3), (B, 4), (NOBODY, 4)])
def test_a_change_of_holder_is_counted_and_a_renewal_is_not(before: str, transitions: int) -> None:
    old = Record(holder=before, transitions=3, acquired="then", version="7")
    new = written(A, old, NOW)
    assert (new.transitions, new.holder, new.seconds) == (transitions, A, LEASE_SECONDS)
    assert new.acquired == ("then" if before == A else NOW)


def test_what_is_sent_names_the_version_that_it_replaces_and_is_read_back_the_same() -> None:
    new = written(A, held(B, transitions=1), NOW)
    raw = to_object("atoll", "system", new)
    assert raw["metadata"] == {"name": "atoll", "namespace": "system", "resourceVersion": "7"}
    assert record(raw) == new


def test_a_lease_that_is_given_back_names_nobody() -> None:
    given = released(held(A, transitions=2), NOW)
    assert (given.holder, given.transitions, given.version) == (NOBODY, 2, "7")
    assert isinstance(decide(B, see(None, given, 0.0), None, 0.0), Take)


def test_a_lease_without_a_spec_is_nobodys() -> None:
    assert record({"metadata": {"resourceVersion": "3"}}) == Record(version="3")
    assert record(None) == Record()


def test_looks_keep_their_pace_however_slowly_the_api_server_answers() -> None:
    assert pause(took=0.1, left=None, spread=1.0) == pytest.approx(1.9)
    assert pause(took=1.5, left=8.5, spread=0.8) == pytest.approx(0.1)
    assert pause(took=4.0, left=6.0, spread=1.0) == 0.0  # the renewal is late already


def test_a_leader_looks_when_its_time_is_over() -> None:
    assert pause(took=0.1, left=0.5, spread=1.0) == 0.5
    assert pause(took=0.1, left=-0.5, spread=1.0) == 0.0
