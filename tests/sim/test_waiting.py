"""Work that is merged, where the link is slow or the learners differ (bench/waiting.py)."""

from dataclasses import replace
from statistics import median

import pytest

from atoll_protos.job.run_file import GraceLimit
from bench.waiting import ARMS, BASE, FLEETS, LINKS, Fleet, played

CELLS = ("equal", "18% apart", "one 3 x slower", "one dies")
TICKS, LONG_TICKS = 96, 480
KEPT_MIN = {TICKS: 0.95, LONG_TICKS: 0.99}  # of one that dies, four periods show more
BUSY_MIN, ROUNDS_MIN = 0.99, 0.9


def check(fleet: str, link: int, ticks: int) -> None:
    runs = [played(BASE, link, FLEETS[fleet], ticks, seed=seed) for seed in (1, 2, 3)]
    assert min(run.kept for run in runs) >= KEPT_MIN[ticks], runs
    assert min(run.busy for run in runs) >= BUSY_MIN, runs
    rounds = median(run.rounds for run in runs)  # one more or less by the seed
    assert rounds >= ROUNDS_MIN * ticks / BASE.period * BASE.fragment_count - 8, runs


@pytest.mark.parametrize("fleet", CELLS)
def test_the_default_merges_the_work_where_the_link_needs_more_than_the_overlap(fleet: str) -> None:
    check(fleet, LINKS[-1], TICKS)


@pytest.mark.long
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("fleet", CELLS)
def test_the_default_merges_the_work_over_twenty_periods(fleet: str, link: int) -> None:
    check(fleet, link, LONG_TICKS)


OVERLAP = replace(BASE, grace_limit=GraceLimit.OVERLAP)


def test_the_default_merges_what_comes_over_the_slowest_link() -> None:
    fleet = FLEETS["18% apart, one link 2 x slower"]
    work, overlap = (played(sync, LINKS[-1], fleet, TICKS, seed=1) for sync in (BASE, OVERLAP))
    assert work.kept >= 0.99, work
    assert overlap.kept < 0.95, overlap
    assert work.tokens["merged"] > overlap.tokens["merged"] + 0.02, (work, overlap)
    assert work.rounds >= ROUNDS_MIN * overlap.rounds, (work, overlap)


def test_nobody_waits_for_a_link_that_is_slower_than_the_grace() -> None:
    """But in the first rounds, when nobody knows that yet."""
    fleet = Fleet(last_link=4.0)
    work, overlap = (played(sync, LINKS[-1], fleet, TICKS, seed=1) for sync in (BASE, OVERLAP))
    assert work.tokens["merged"] >= overlap.tokens["merged"] - 0.02, (work, overlap)
    assert work.open_ticks <= overlap.open_ticks + 0.5, (work, overlap)


def test_lock_step_blocks_learners_and_no_grace_loses_work() -> None:
    """The measure shows both."""
    fleet = FLEETS["18% apart"]
    assert played(ARMS["lock-step"], 90, fleet, TICKS, seed=1).busy < 0.95
    assert played(ARMS["K = 1, no grace"], 90, fleet, TICKS, seed=1).kept < 0.5
