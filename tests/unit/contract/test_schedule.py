"""When fragments are due, what a shard starts and what a learner copies (rules 9, 10, 15)."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.job.run_file import Sync
from atoll_protos.job.schedule import (
    EARLY_SHARE,
    EARLY_TICKS_MAX,
    STARTS_MAX,
    ahead,
    hands_over,
    newest_due,
    next_due,
    offset,
    start_distance,
    starts,
)

EIGHT = Sync(fragments=4, period=8)
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
def test_every_fragment_is_due_at_its_offset_and_every_period_rule_9(sync: Sync, tick: int) -> None:
    for p in range(sync.fragment_count):
        due = next_due(sync, p, tick)
        assert tick < due <= tick + sync.period
        assert due % sync.period == offset(sync, p) == p * sync.period // sync.fragment_count
        assert newest_due(sync, p, due) == due
        assert newest_due(sync, p, tick) == due - sync.period


def test_a_due_tick_that_is_jumped_over_still_starts_a_round_rule_9() -> None:
    assert starts(EIGHT, 11, {0: 8, 1: 2, 2: 4, 3: 6}) == [(1, 10)]


def test_half_a_period_lies_between_two_starts_of_a_slice_rule_9() -> None:
    assert starts(EIGHT, 8, {0: 5, 1: 8, 2: 8, 3: 8}) == []
    assert starts(EIGHT, 8, {0: 4, 1: 8, 2: 8, 3: 8}) == [(0, 8)]


def test_a_late_start_moves_nothing_rule_9() -> None:
    """Distances are those of due ticks."""
    assert starts(EIGHT, 15, {0: 0, 1: 10, 2: 12, 3: 14}) == [(0, 8)]
    assert starts(EIGHT, 16, {0: 8, 1: 10, 2: 12, 3: 14}) == [(0, 16)]


def test_after_a_jump_the_newest_four_start_once_each_oldest_first_rule_9() -> None:
    sync = Sync(fragments=8, period=8)
    begun = starts(sync, 100, dict.fromkeys(range(8), 0))
    assert len(begun) == STARTS_MAX
    assert [due for _, due in begun] == [97, 98, 99, 100]


@given(
    sync=SYNCS,
    # Fractions that floats hold: else the end of a window is not the begin of the next one.
    rate=st.sampled_from([0.125, 0.5, 1.0, 2.0, 8.0]),
    step_ticks=st.integers(3, 12 * 64).map(lambda n: n / 64),
    phase=st.integers(0, 64).map(lambda n: n / 64),
)
def test_each_due_tick_is_copied_ahead_once_and_before_its_call_rule_10(
    sync: Sync, rate: float, step_ticks: float, phase: float
) -> None:
    """What is asked for at a boundary is copied at the next, and there it answers the Calls."""
    step = step_ticks / rate
    early = min(step_ticks * EARLY_SHARE, EARLY_TICKS_MAX)
    for fragment in range(sync.fragment_count):
        copied_at: dict[int, list[float]] = {}
        for number in range(math.ceil(3 * sync.period / step_ticks)):
            tick = (number + phase) * step_ticks
            if fragment in ahead(sync, tick, rate, step):
                copied = tick + step_ticks
                due = next_due(sync, fragment, math.ceil(copied - early) - 1)
                copied_at.setdefault(due, []).append(copied)
        for due, copies in copied_at.items():
            if step_ticks < sync.period:
                assert len(copies) == 1
            assert copies[-1] <= due + early + 1e-6
            assert due <= copies[-1] + step_ticks - early + 1e-6
        between = range(math.ceil(3 * step_ticks) + 1, 2 * sync.period)
        due_then = {newest_due(sync, fragment, tick) for tick in between}
        assert {due for due in due_then if due > 3 * step_ticks} <= copied_at.keys()


def test_with_as_many_fragments_as_ticks_one_slice_is_copied_at_each_step() -> None:
    sync = Sync(fragments=24, period=24)
    assert [ahead(sync, tick + 0.9, 1.0, 1.0) for tick in range(5)] == [[2], [3], [4], [5], [6]]
    assert len(ahead(sync, 0.9, 1.0, 6.0)) == 6  # a learner of six times the tick's length
    assert ahead(sync, 0, 0.0, 1.0) == []  # the rate is unknown at first


@given(sync=SYNCS)
def test_in_lock_step_every_slice_is_handed_over_once_in_a_period_rule_15(sync: Sync) -> None:
    for p in range(sync.fragment_count):
        at = [tick for tick in range(1, 5 * sync.period) if hands_over(sync, p, tick)]
        assert at[0] >= start_distance(sync)  # rule 9: version 0 counts as a start at tick 0
        assert {later - one for one, later in pairwise(at)} == {sync.period}


@given(sync=SYNCS)
def test_what_a_learner_hands_over_is_what_a_shard_starts_rule_15(sync: Sync) -> None:
    """A shard that sees every tick starts the same rounds, from version 0 on."""
    started = dict.fromkeys(range(sync.fragment_count), 0)
    for tick in range(1, 4 * sync.period):
        due = starts(sync, tick, started)
        started.update(due)
        newest = {p for p, at in due if at == tick}
        handed = {p for p in range(sync.fragment_count) if hands_over(sync, p, tick)}
        assert newest == handed or len(due) == STARTS_MAX
