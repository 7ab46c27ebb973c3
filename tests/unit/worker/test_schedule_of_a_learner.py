"""What a learner foresees of the schedule (docs/protocol.md, rules 9, 10, 15)."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.run import Sync
from atoll_worker.rules.schedule import ahead, hands_over, next_due
from atoll_worker.rules.state import Clock

SYNCS = st.integers(1, 24).flatmap(
    lambda period: st.builds(
        Sync,
        fragments=st.integers(1, period),
        period=st.just(period),
        overlap=st.just(0),
        lockstep=st.just(True),
    )
)


@given(sync=SYNCS, tick=st.integers(0, 200))
def test_every_fragment_is_next_due_within_a_period_at_its_offset(sync: Sync, tick: int) -> None:
    for p in range(sync.fragments):
        due = next_due(sync, p, tick)
        assert tick < due <= tick + sync.period
        assert due % sync.period == p * sync.period // sync.fragments


@given(
    sync=SYNCS,
    tick=st.integers(0, 200),
    rate=st.floats(0.0, 4.0),
    step_seconds=st.floats(0.0, 1.0),
)
def test_what_comes_due_between_the_next_two_boundaries_is_captured_ahead(
    sync: Sync, tick: int, rate: float, step_seconds: float
) -> None:
    """Unless more than H/2 ticks pass in two steps: such a learner is called and then answers."""
    asked = ahead(sync, tick, rate, step_seconds)
    until = tick + math.floor(2 * rate * step_seconds)
    if until <= tick + sync.distance:
        assert {p for p in range(sync.fragments) if next_due(sync, p, tick) <= until} <= {*asked}


def test_a_tick_that_has_not_been_received_yet_is_allowed_for() -> None:
    sync = Sync(fragments=24, period=24)
    assert ahead(sync, 0, 1.0, 1.0) == [1, 2, 3]
    assert ahead(sync, 0, 0.0, 1.0) == [1]  # the rate is unknown at first


@given(sync=SYNCS)
def test_in_lock_step_every_slice_is_handed_over_once_in_a_period(sync: Sync) -> None:
    for p in range(sync.fragments):
        at = [tick for tick in range(1, 5 * sync.period) if hands_over(sync, p, tick)]
        assert at[0] >= sync.distance  # rule 9: version 0 counts as a start at tick 0
        assert {later - one for one, later in pairwise(at)} == {sync.period}


def test_the_rate_of_the_clock_is_unknown_at_first_and_follows_the_last_changes() -> None:
    clock = Clock()
    assert clock.ticks_per_second == 0.0
    assert clock.move(4, 10.0)
    assert clock.ticks_per_second == 0.0
    assert clock.move(8, 12.0)
    assert clock.ticks_per_second == 2.0
    assert not clock.move(7, 13.0)
    for second in range(100):
        clock.move(9 + second, 20.0 + second)
    assert clock.ticks_per_second == 1.0
