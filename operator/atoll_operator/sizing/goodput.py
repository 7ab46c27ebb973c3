"""What failures cost: goodput and uptime of a job, with an interval over simulated jobs.

The model is that of the published goodput table (arXiv 2604.21428) with Atoll's recovery. A failure
of any chip ends its learner, which is away for D seconds and then takes the shared values again.
Failures are a Poisson process over the chips of the learners that train, with the rate r for one
learner. What a learner has trained on a slice since the last merge of it is lost: its slices merge
in turn, each once in a period of p = H t seconds. So a stretch of u seconds between two failures
gives

    merged(u) = u - p / 2           u >= p
                u^2 / (2 p)         u < p

    goodput = E[merged(u)] / (E[u] + D),   u exponential with the mean 1 / r
    uptime  = P(at least K of M learners train), each for 1 / (1 + r D) of the time

The interval is the middle 90% of simulated jobs of the same length. Learners fail one by one here:
the loss of a whole region at once is not in these figures, nor is a chip that has no spare.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

YEAR_SECONDS: Final = 365.25 * 86_400
# From the loss of a node to the first step of its learner on another one, at most: two busy cores,
# November 2026, `tests/cluster/test_node_loss.py`, docs/operating.md. The values come on top.
RECOVERY_SECONDS: Final = 35.0
JOBS: Final = 200  # simulated
FAILURES_MAX: Final = 100_000  # in all of them together
TAIL: Final = 0.05  # of the jobs, on either side of the interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFailures:
    """How often a learner fails, and for how long it is away then."""

    chips_per_learner: int
    per_chip_year: float
    away_seconds: float

    @property
    def rate(self) -> float:
        """Of one learner that trains, in 1/s."""
        return self.chips_per_learner * self.per_chip_year / YEAR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean share of time, and the middle 90% of jobs."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """`goodput`: of the work that chips would do without failures, what is merged.

    `uptime`: of the time, in which at least the quorum trains.
    """

    goodput: Interval
    uptime: Interval
    hours_between_failures: float  # of one learner
    away_seconds: float
    lost_seconds: float  # of training, at each failure
    simulated_hours: float  # of each job


def goodput(
    failures: ChipFailures,
    learners: int,
    quorum: int,
    period_seconds: float,
    job_seconds: float,
    seed: int = 0,
) -> Goodput:
    """For `learners` >= 1 and a failure rate above 0."""
    rate, away = failures.rate, failures.away_seconds
    seconds = min(job_seconds, FAILURES_MAX / (JOBS * learners * rate))
    narrower = math.sqrt(seconds / job_seconds)  # the scatter of a longer job
    dice = random.Random(seed)
    jobs = [_job(failures, learners, quorum, period_seconds, seconds, dice) for _ in range(JOBS)]
    return Goodput(
        goodput=_share(mean_goodput(rate, away, period_seconds), [x for x, _ in jobs], narrower),
        uptime=_share(mean_uptime(rate, away, learners, quorum), [x for _, x in jobs], narrower),
        hours_between_failures=1 / rate / 3600,
        away_seconds=away,
        lost_seconds=period_seconds / 2,
        simulated_hours=seconds / 3600,
    )


def merged_seconds(trained: float, period: float) -> float:
    """Of a stretch of training that a failure ends."""
    return trained - period / 2 if trained >= period else trained * trained / (2 * period)


def mean_goodput(rate: float, away: float, period: float) -> float:
    """E[merged(u)] = (1 - exp(-r p)) / (r^2 p), by parts."""
    merged = -math.expm1(-rate * period) / (rate * rate * period)
    return merged / (1 / rate + away)


def mean_uptime(rate: float, away: float, learners: int, quorum: int) -> float:
    """1 minus the chance that fewer than the quorum train."""
    train = 1 / (1 + rate * away)
    fewer = 0.0
    for count in range(quorum):
        ways = (
            math.lgamma(learners + 1) - math.lgamma(count + 1) - math.lgamma(learners - count + 1)
        )
        fewer += math.exp(ways + count * math.log(train) + (learners - count) * math.log1p(-train))
    return max(0.0, 1 - fewer)


def _job(
    failures: ChipFailures,
    learners: int,
    quorum: int,
    period: float,
    seconds: float,
    dice: random.Random,
) -> tuple[float, float]:
    """Goodput and uptime of one job."""
    merged, moves = 0.0, list[tuple[float, int]]()
    for _ in range(learners):
        for begin, end in _stretches(failures, seconds, dice):
            trained = min(end, seconds) - begin
            merged += trained if end >= seconds else merged_seconds(trained, period)
            moves += [(begin, 1), (end, -1)]
    return merged / (learners * seconds), _enough(moves, quorum, seconds) / seconds


def _stretches(
    failures: ChipFailures, seconds: float, dice: random.Random
) -> Iterator[tuple[float, float]]:
    """When one learner trains; the last stretch may go on after the end of the job."""
    now = 0.0
    while now < seconds:
        end = now + dice.expovariate(failures.rate)
        yield now, end
        now = end + failures.away_seconds


def _enough(moves: list[tuple[float, int]], quorum: int, seconds: float) -> float:
    """Seconds with at least the quorum in training."""
    train, since, found = 0, 0.0, 0.0
    for at, change in sorted(moves, key=lambda move: (move[0], -move[1])):
        now = min(at, seconds)
        if train >= quorum:
            found += now - since
        train, since = train + change, now
    return found + (seconds - since if train >= quorum else 0.0)


def _share(mean: float, jobs: Sequence[float], narrower: float) -> Interval:
    """Where failures are so rare that most jobs have none, the interval begins at the mean."""
    ordered, middle = sorted(jobs), math.fsum(jobs) / len(jobs)
    low, high = ordered[int(TAIL * len(jobs))], ordered[-1 - int(TAIL * len(jobs))]
    return Interval(
        mean=mean,
        low=min(mean, max(0.0, mean + (low - middle) * narrower)),
        high=max(mean, min(1.0, mean + (high - middle) * narrower)),
    )
