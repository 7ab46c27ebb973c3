"""What failures cost: the formula, and jobs that are simulated step by step."""

import math
import random
from itertools import pairwise

import pytest

from atoll_operator.sizing import goodput as model
from atoll_operator.sizing.goodput import YEAR_SECONDS, ChipFailures, goodput

HOUR = 3600.0


def failures(hours: float, away: float) -> ChipFailures:
    """One every so many hours, of a learner."""
    return ChipFailures(
        chips_per_learner=1, per_chip_year=YEAR_SECONDS / HOUR / hours, away_seconds=away
    )


def merged_by_slices(rate: float, away: float, period: float, stretches: int) -> float:
    """Goodput where each slice is merged once in a period, at a phase of its own."""
    dice, merged, passed, slices = random.Random(1), 0.0, 0.0, 24
    for _ in range(stretches):
        end = dice.expovariate(rate)
        for each in range(slices):
            first = (each + 0.5) / slices * period
            if end >= first:
                merged += (first + (end - first) // period * period) / slices
        passed += end + away
    return merged / passed


@pytest.mark.parametrize(("mean", "away", "period"), [(900, 60, 48), (900, 60, 2000), (50, 30, 24)])
def test_the_mean_is_that_of_slices_that_are_merged_in_turn(
    mean: float, away: float, period: float
) -> None:
    expected = merged_by_slices(1 / mean, away, period, 20_000)
    assert model.mean_goodput(1 / mean, away, period) == pytest.approx(expected, rel=0.03)


def test_a_failure_loses_half_a_period_and_the_time_away() -> None:
    found = goodput(failures(10, away=100), 8, 1, period_seconds=60, job_seconds=1000 * HOUR)
    assert found.goodput.mean == pytest.approx(1 - 130 / (10 * HOUR + 100), abs=1e-5)
    assert found.lost_seconds == 30
    assert found.hours_between_failures == pytest.approx(10)


def test_the_interval_has_the_mean_and_is_narrower_for_a_longer_job() -> None:
    width = {}
    for hours in (10, 1000, 100_000):
        share = goodput(failures(1, away=100), 8, 1, 60, hours * HOUR).goodput
        assert share.low < share.mean < share.high
        width[hours] = share.high - share.low
    for short, long in pairwise(width):
        assert width[long] == pytest.approx(width[short] / 10, rel=0.5)


def test_a_short_job_that_hardly_ever_fails_has_an_interval_around_its_mean() -> None:
    found = goodput(failures(100, away=35), 3, 1, 16, HOUR / 12)
    for share in (found.goodput, found.uptime):
        assert share.low <= share.mean <= share.high <= 1


def test_simulated_jobs_have_the_means_of_the_formulas() -> None:
    given = failures(0.05, away=60)
    dice = random.Random(2)
    jobs = [model._job(given, 4, 3, 20.0, 20 * HOUR, dice) for _ in range(20)]
    goods, ups = (math.fsum(each) / len(jobs) for each in zip(*jobs, strict=True))
    assert goods == pytest.approx(model.mean_goodput(given.rate, 60, 20), abs=0.01)
    assert ups == pytest.approx(model.mean_uptime(given.rate, 60, 4, 3), abs=0.01)


def test_uptime_is_the_chance_that_the_quorum_trains() -> None:
    """Half of the time away: of two learners one trains in 3/4 of the time, both in 1/4."""
    assert model.mean_uptime(1 / 60, 60, 2, 1) == pytest.approx(0.75)
    assert model.mean_uptime(1 / 60, 60, 2, 2) == pytest.approx(0.25)
    assert model.mean_uptime(1 / 60, 60, 1000, 1) == 1


def test_more_and_smaller_learners_lose_less_of_the_same_chips() -> None:
    """150,000 chips that fail once a year, in M learners: the order of the published table."""
    means = []
    for learners in (2, 4, 8, 16):
        given = ChipFailures(
            chips_per_learner=150_000 // learners, per_chip_year=1.0, away_seconds=35.0
        )
        means.append(goodput(given, learners, 1, 24.0, 100 * HOUR).goodput.mean)
    assert means == sorted(means)
    assert 0.85 < means[0] < means[-1] < 1


def test_a_plan_of_very_many_chips_ends_soon_and_says_what_it_has_simulated() -> None:
    given = ChipFailures(chips_per_learner=2_400_000, per_chip_year=1.0, away_seconds=35.0)
    found = goodput(given, 64, 1, 24.0, 1000 * HOUR)
    assert found.simulated_hours < 1
    assert found.goodput.low <= found.goodput.mean <= found.goodput.high


def test_the_same_plan_has_the_same_interval() -> None:
    first, second = (goodput(failures(1, 60), 4, 1, 24, 50 * HOUR) for _ in range(2))
    assert first == second
