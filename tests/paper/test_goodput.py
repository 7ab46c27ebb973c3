"""The published goodput: one set of parameters for all cells, and Atoll's rules hold nobody up."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from bench.results import read
from paper.chips import ATOLL, FITTED, RESTART_SECONDS, Chips, expected, uptime
from paper.goodput import SYNC, play
from paper.published import CHIPS, GOODPUT

POINTS = 3.0  # of a published cell
UPTIME_MIN = 0.995  # of four learners or more
FRAGILE = (1_200_000, 8)  # chips and learners: a learner stands every 20 s


def points(chips: int, learners: int) -> float:
    """How far the model of the chips alone is from the published cell; 0 learners: not elastic.

    M learners are M jobs with a part of the chips each.
    """
    ours = expected(FITTED, chips / max(1, learners), elastic=learners > 0).trained
    return 100 * ours - GOODPUT[learners][CHIPS.index(chips)]


def test_all_30_cells_come_out_within_3_points_with_one_set_of_parameters() -> None:
    beside = {(chips, learners): points(chips, learners) for learners in GOODPUT for chips in CHIPS}
    assert len(beside) == 30
    assert {at: round(each, 2) for at, each in beside.items() if abs(each) > POINTS} == {}


@pytest.mark.parametrize("learners", [m for m in GOODPUT if m >= 4])
def test_of_four_learners_or_more_one_nearly_always_computes(learners: int) -> None:
    assert min(uptime(FITTED, chips, learners) for chips in CHIPS) >= UPTIME_MIN


@pytest.mark.parametrize(
    ("chips", "elastic"), [(75_000, True), (2_400_000, True), (300_000, False)]
)
def test_the_formula_is_what_the_events_come_to(chips: int, elastic: bool) -> None:
    group = Chips(FITTED, chips, 200, np.random.default_rng(1), elastic=elastic)
    rows = [group.step() for _ in range(1000)]
    computed = 1000 * 200 * FITTED.step_seconds
    whole = computed + sum(stands.sum() for _, stands in rows)
    trained = FITTED.step_seconds * sum(share.sum() for share, _ in rows)
    found = expected(FITTED, chips, elastic=elastic)
    assert trained / whole == pytest.approx(found.trained, abs=0.006)
    assert computed / whole == pytest.approx(found.computes, abs=0.006)


def test_learners_that_stand_hold_up_nobody() -> None:
    """K = 1 with grace: no learner ever waits, and the shard counts all that they compute."""
    chips, learners = FRAGILE
    played = play(FITTED, chips, learners, seconds=200)
    assert played.held_up == pytest.approx(0.0, abs=1e-9)
    assert played.trained == pytest.approx(played.computed, abs=0.01)
    assert played.uptime >= UPTIME_MIN


def test_a_quorum_of_all_loses_nothing_and_the_default_a_fifteenth() -> None:
    """What falls due while a learner stands is overwritten, unless the round waits for it."""
    chips, learners = FRAGILE
    default = play(FITTED, chips, learners, seconds=400)
    whole = play(FITTED, chips, learners, seconds=400, sync=replace(SYNC, quorum=learners))
    assert whole.merged >= 0.98 * whole.trained
    assert 0.90 * default.trained <= default.merged <= 0.98 * default.trained


def test_in_lock_step_the_same_chips_wait_for_each_other() -> None:
    """So the test above would notice a rule that makes learners wait."""
    chips, learners = FRAGILE
    sync = replace(SYNC, lockstep=True, quorum=learners)
    assert play(FITTED, chips, learners, seconds=200, sync=sync).held_up > 0.05


@pytest.mark.long
@pytest.mark.parametrize("learners", [m for m in GOODPUT if m > 1])
@pytest.mark.parametrize("chips", CHIPS)
def test_each_cell_comes_out_with_the_rules_of_shards_and_learners(
    chips: int, learners: int
) -> None:
    played = play(FITTED, chips, learners, seconds=3600)
    ours = 100 * played.in_the_long_run(FITTED, chips / learners)
    assert ours == pytest.approx(GOODPUT[learners][CHIPS.index(chips)], abs=POINTS)
    if learners >= 4:
        assert played.uptime >= UPTIME_MIN - 0.005  # of an hour: 18 s of noise


def test_atolls_own_recovery_is_what_was_measured() -> None:
    """Else measure `paper.goodput --atoll` again as well."""
    measured = {each.what: each.values[0] for each in read()["restart"].figures}
    assert measured["until: first step, median"] == pytest.approx(RESTART_SECONDS, abs=0.1)


@pytest.mark.long
def test_with_atolls_own_recovery_the_small_job_keeps_nine_tenths() -> None:
    """A loss ends the learner's processes, and what they had not handed over is lost."""
    played = play(ATOLL, 150_000, 8, seconds=3600, restarts=True)
    assert played.trained >= 0.92
    assert played.merged >= 0.90


def mean_goodput(rate: float, away: float, period: float) -> float:
    """Merged of what would be trained without failures, `rate` of them a second and learner.

    A learner is away for D = `away` seconds, and has lost what it trained on each slice since the
    last merge of it. A stretch of u seconds between two failures gives u - p / 2, or u^2 / (2 p)
    below p: E[merged(u)] = (1 - exp(-r p)) / (r^2 p), by parts.
    """
    merged = -math.expm1(-rate * period) / (rate * rate * period)
    return merged / (1 / rate + away)


def merged_by_slices(rate: float, away: float, period: float, stretches: int) -> float:
    """Goodput where each slice is merged once in a period, at a phase of its own."""
    dice, merged, passed, slices = random.Random(1), 0.0, 0.0, 24
    for _ in range(stretches):
        end = dice.expovariate(rate)
        for number in range(slices):
            first = (number + 0.5) / slices * period
            if end >= first:
                merged += (first + (end - first) // period * period) / slices
        passed += end + away
    return merged / passed


@pytest.mark.parametrize(("mean", "away", "period"), [(900, 60, 48), (900, 60, 2000), (50, 30, 24)])
def test_the_mean_is_that_of_slices_that_are_merged_in_turn(
    mean: float, away: float, period: float
) -> None:
    expected = merged_by_slices(1 / mean, away, period, 20_000)
    assert mean_goodput(1 / mean, away, period) == pytest.approx(expected, rel=0.03)


@pytest.mark.long
def test_the_formula_is_what_the_rules_come_to() -> None:
    """Each failure ends a learner for D seconds; then all its chips are there again."""
    away, chips, learners = 35.0, 600_000, 8
    machines = replace(FITTED, repair_seconds=1e-3, loss_seconds=away, return_seconds=0.0)
    rate = chips / learners / machines.fails_seconds
    period = SYNC.period * machines.step_seconds
    played = play(machines, chips, learners, seconds=3600, restarts=True)
    assert played.merged == pytest.approx(mean_goodput(rate, away, period), abs=0.03)
