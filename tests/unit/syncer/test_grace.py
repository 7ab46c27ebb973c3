"""The grace (rule 11; 2604.21428, Eq. 3) and who is too slow for it (rule 14)."""

from dataclasses import replace

import pytest

from atoll_protos.job.run_file import GraceLimit, Sync
from atoll_protos.means import MovingMean
from atoll_syncer.model.roster import Timings, grace_seconds, step_seconds, too_slow

SYNC = Sync(period=8, fragments=4, overlap=2, grace_safety=0.8, grace_limit=GraceLimit.OVERLAP)


def test_it_is_gamma_times_what_the_overlap_leaves_rule_11() -> None:
    timings = Timings(quorum=MovingMean(0.5), sync=MovingMean(0.3))
    assert grace_seconds(SYNC, timings, 1.0, 3) == pytest.approx(0.8 * (2 * 1.0 - 0.8))


def test_it_is_at_most_one_step_and_at_least_nothing() -> None:
    assert grace_seconds(SYNC, Timings(), 10.0, 3) == 10.0
    assert grace_seconds(SYNC, Timings(quorum=MovingMean(30.0)), 1.0, 3) == 0.0


def test_it_can_be_switched_off() -> None:
    off = Sync(period=8, fragments=4, overlap=2, grace=False)
    assert grace_seconds(off, Timings(), 1.0, 3) == 0.0
    assert grace_seconds(replace(off, grace_limit=GraceLimit.OVERLAP), Timings(), 1.0, 3) == 0.0


def test_limited_by_work_it_costs_what_one_missing_learner_would_lose_rule_11() -> None:
    """H steps of one learner, where each step of waiting overwrites one step of M learners."""
    work, slow = replace(SYNC, grace_limit=GraceLimit.WORK), Timings(quorum=MovingMean(30.0))
    assert [grace_seconds(work, slow, 10.0, m) for m in (1, 2, 4, 16)] == [40.0, 40.0, 20.0, 5.0]
    assert grace_seconds(work, Timings(), 10.0, 16) == 10.0  # what the overlap hides costs nothing


def test_a_step_is_the_slowest_within_twice_the_fastest() -> None:
    assert step_seconds([0.0, 1.0, 1.9, 5.0]) == 1.9
    assert step_seconds([]) == 0.0


def test_too_slow_is_more_than_half_of_what_lies_between_overlap_and_period_rule_14() -> None:
    assert not too_slow(SYNC, step=2.0, publish=1.0, tick_seconds=1.0)
    assert too_slow(SYNC, step=2.0, publish=1.1, tick_seconds=1.0)


def test_no_learner_is_too_slow_while_the_rate_is_unknown_rule_14() -> None:
    assert not too_slow(SYNC, step=1e9, publish=0.0, tick_seconds=0.0)
