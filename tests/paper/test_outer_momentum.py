"""The momentum `auto` against its formula and the figures of docs/algorithm.md [O]."""

from fractions import Fraction
from math import isqrt

import pytest

from atoll_protos.job.run_file import Sync
from atoll_syncer.model.roster import momentum


@pytest.mark.parametrize(("rounds", "merges"), [(100, 90), (400, 180), (900, 270), (10_000, 900)])
def test_nine_roots_of_the_jobs_merges_lead_to_the_published_momentum(
    rounds: int, merges: int
) -> None:
    """k = 9 sqrt(R): mu = 0.9, and less before."""
    sync, steps = Sync(period=24), 24 * rounds
    assert merges == 9 * isqrt(rounds)
    assert momentum(sync, merges, steps) == pytest.approx(0.9, abs=1e-7)
    assert momentum(sync, merges - 1, steps) < 0.9
    assert momentum(sync, 2 * merges, steps) == momentum(sync, merges, steps)


@pytest.mark.parametrize("merges", range(0, 40, 3))
def test_it_is_nesterovs_sequence_with_the_root_of_the_number_of_merges(merges: int) -> None:
    """mu = k / (k + sqrt(R)); for R = 9 that is k / (k + 3)."""
    for root in (3, 5, 10):
        wanted = min(Fraction(9, 10), Fraction(merges, merges + root))
        found = momentum(Sync(period=24), merges, 24 * root * root)
        assert found == pytest.approx(float(wanted), abs=1e-7)


def test_a_job_of_ten_merges_ends_with_a_momentum_of_three_quarters() -> None:
    assert momentum(Sync(period=24), 9, 240) == pytest.approx(0.74, abs=0.005)


@pytest.mark.parametrize(("period", "merges"), [(4, 16), (8, 8), (3, 64 / 3)])
def test_very_short_periods_begin_for_64_ticks_all_the_same(period: int, merges: float) -> None:
    """The constant is a time, not only a count: max(sqrt(R), 64 / H)."""
    sync = Sync(period=period, fragments=2)
    found = momentum(sync, 10, 25 * period)
    assert found == pytest.approx(10 / (10 + merges), abs=1e-7)


def test_a_job_shorter_than_a_period_expects_one_merge() -> None:
    assert momentum(Sync(period=640), 1, 5) == 0.5
