"""When slices come due, as a learner foresees it (docs/protocol.md, rules 9, 10, 15)."""

import math

from atoll_protos.run import Sync


def next_due(sync: Sync, fragment: int, tick: int) -> int:
    """The first tick > `tick` that is floor(p*H/P) (mod H)."""
    offset = sync.offset(fragment)
    return offset + ((tick - offset) // sync.period + 1) * sync.period


def ahead(sync: Sync, tick: int, ticks_per_second: float, step_seconds: float) -> list[int]:
    """Fragments to capture at the coming boundary: those due before the boundary after it.

    So that a slow learner answers a Call at once, from its last finished step (rule 10).
    """
    horizon = tick + 1 + math.ceil(2 * step_seconds * ticks_per_second)
    horizon = min(horizon, tick + sync.distance)
    return [p for p in range(sync.fragments) if next_due(sync, p, tick) <= horizon]


def hands_over(sync: Sync, fragment: int, position: int) -> bool:
    """In lock-step: whether `position` is a due tick, the first one H/2 or later (rule 15).

    A function of the position alone: learners at one position hand over the same slices, however
    they came there. [Each counting H/2 from its own start, two wait for each other's slice.]
    """
    return (position - sync.offset(fragment)) % sync.period == 0 and position >= sync.distance
