"""How long a round waits for more than its quorum (2604.21428, Eq. 3), and who is too slow.

Values are adopted tau ("overlap") ticks after the slice is due. What a round needs in between is
known from moving means: xi_quorum from its start to the K-th offer, xi_sync from its close to the
durable version. The rest of tau is slack, in which the round may wait for more learners without
any learner noticing:

    slack = tau * xi_step - (xi_quorum + xi_sync)
    grace = min(gamma * slack, xi_step), at least 0

xi_step is the step time of the slowest learner that is within a factor 2 of the fastest, so that
one very slow learner does not stretch the grace for all. A grace of more than one step is of no
use: a learner that needs longer offers the next capture instead.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from atoll_protos.means import NO_SAMPLES, MovingMean
from atoll_protos.run import Sync

TRAINER_SPREAD_MAX = 2.0  # xi_step: the slowest within this factor of the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """xi_quorum (due to K complete offers), xi_sync (close to trailer), transfer (call to offer).

    All in seconds. The transfer bound also learns from offers that came too late, so that a slow
    link gets in (rule 11).
    """

    quorum: MovingMean = NO_SAMPLES
    sync: MovingMean = NO_SAMPLES
    transfer: MovingMean = NO_SAMPLES


def step_seconds(means: Sequence[float]) -> float:
    """xi_step: the step time of the slowest learner within a factor 2 of the fastest.

    The means are in ascending order; 0 is one that is not known.
    """
    fastest = bisect_right(means, 0.0)
    if fastest == len(means):
        return 0.0
    return means[bisect_right(means, TRAINER_SPREAD_MAX * means[fastest]) - 1]


def grace_seconds(sync: Sync, timings: Timings, step: float) -> float:
    """0 <= grace <= gamma * slack, slack = tau * xi_step - (xi_quorum + xi_sync); <= one step."""
    if not sync.grace:
        return 0.0
    slack = sync.overlap * step - (timings.quorum.or_else(0.0) + timings.sync.or_else(0.0))
    return min(max(0.0, sync.grace_safety * slack), step)


def too_slow(sync: Sync, *, step: float, publish: float, tick_seconds: float) -> bool:
    """Rule 14: step time + publish time > (H - tau)/2 ticks at the present rate."""
    return tick_seconds > 0 and step + publish > (sync.period - sync.overlap) / 2 * tick_seconds
