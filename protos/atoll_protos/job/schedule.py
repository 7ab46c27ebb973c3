"""When each fragment is due: the one schedule that shards and learners follow.

In every period of H ticks each of P fragments is due once, fragment p at the ticks floor(p * H / P)
mod H. With P = 4 and H = 8:

    tick        0   1   2   3   4   5   6   7   8   9  10  ...
    due         0       1       2       3       0       1

A shard's tick may jump over a due tick, since newest reports replace older ones. So it asks which
is the newest due tick and whether its round started (`newest_due`, `starts`, rule 9). The *due*
tick is recorded as the start; the next offers hold the work of rounds that were skipped.

A learner has a copy of a slice ready when the Call comes, which is answered from the last finished
step (`ahead`); in modes that wait it hands over by itself (`hands_over`, rule 15). Version 0 of
every slice counts as a round that started at tick 0.
"""

import math
from collections.abc import Mapping
from typing import Final

from atoll_protos.job.run_file import Sync

STARTS_MAX: Final = 4  # rounds that start at once after a jump of the tick
EARLY_SHARE: Final = 0.25  # of a step: how far the prediction of a due tick may be wrong
EARLY_TICKS_MAX: Final = 0.5


def offset(sync: Sync, fragment: int) -> int:
    return fragment * sync.period // sync.fragment_count


def start_distance(sync: Sync) -> int:
    """Fewest ticks between the due ticks of two starts of one slice: H / 2, rounded up."""
    return (sync.period + 1) // 2


def newest_due(sync: Sync, fragment: int, tick: int) -> int:
    """Negative when there is none yet."""
    first = offset(sync, fragment)
    return first + (tick - first) // sync.period * sync.period


def next_due(sync: Sync, fragment: int, tick: int) -> int:
    return newest_due(sync, fragment, tick) + sync.period


def starts(sync: Sync, tick: int, started: Mapping[int, int]) -> list[tuple[int, int]]:
    """(fragment, due tick) of the rounds that start at `tick`, oldest due first, by last starts."""
    due = [
        (newest, fragment)
        for fragment, last in sorted(started.items())
        if (newest := newest_due(sync, fragment, tick)) - last >= start_distance(sync)
    ]
    return [(fragment, newest) for newest, fragment in sorted(due)[-STARTS_MAX:]]


def ahead(sync: Sync, tick: float, ticks_per_second: float, step_seconds: float) -> list[int]:
    """Fragments that a learner asks for at a step boundary, to be copied at the next one.

    `tick` is the clock now, estimated to a fraction. What is copied one step from now answers the
    Calls of the step that follows: these come due between one and two steps from now, each in the
    window of one boundary alone. Both ends are a little early: a Call just before the copy waits a
    moment, one just after the next boundary a whole step. None while the rate is not known.
    """
    step = step_seconds * ticks_per_second  # in ticks
    early = min(step * EARLY_SHARE, EARLY_TICKS_MAX)
    first, last = tick + step - early, tick + 2 * step - early
    return [p for p in range(sync.fragment_count) if newest_due(sync, p, math.floor(last)) > first]


def hands_over(sync: Sync, fragment: int, position: int) -> bool:
    """Whether a learner in a mode that waits hands the fragment over at this position (rule 15).

    If each counted H/2 from its own start, two learners could wait for each other for ever.
    """
    first = offset(sync, fragment)
    return (position - first) % sync.period == 0 and position >= start_distance(sync)
