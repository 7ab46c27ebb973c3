"""When each fragment is due: the one schedule that shards and learners follow.

The job's clock counts *ticks* (docs/protocol.md, rule 8). In every period of H ticks each of the P
fragments is due once, the fragments spread evenly over the period: fragment p is due at the ticks

    floor(p * H / P)  (mod H)

With P = H, the published setting (2604.21428), one fragment is due at every tick. With P = 4 and
H = 8 the period looks like this:

    tick        0   1   2   3   4   5   6   7   8   9  10  ...
    due         0       1       2       3       0       1

The two sides read the schedule for different purposes.

A *shard* starts a round when a slice becomes due. Its tick comes from reports, of which the newest
replaces older ones, so the tick may jump over a due tick. Therefore the shard never asks "is the
tick equal to a due tick?" but "which is the newest due tick so far, and did its round start?"
(`newest_due`, `starts`). Three more rules keep rounds at their distance (rule 9):
- The *due* tick of a round is recorded as its start, not the tick at which it did start. A late
  start moves no later one.
- Between the due ticks of two starts of one slice lie at least H/2 ticks (`start_distance`).
  On a fast network rounds complete at once; without this rule the effective H would shrink.
- After a long jump only the four newest rounds start, oldest first. Older ones are skipped; the
  offers of the next round contain their work.

A *learner* has to have a copy of a slice ready when the shard's Call comes, because a Call is
answered from the last finished step. It foresees which fragments come due before its next step
boundary and copies each ahead, once (`ahead`). In modes that wait there are no Calls: a learner
hands over by itself, as a function of its own position on the schedule (`hands_over`, rule 15).

The number of fragments may follow from the model, so the settings that are given here come from
`Sync.with_fragments`. All functions are pure. Ticks and fragments count from 0; version 0 of every
slice counts as a round that started at tick 0.
"""

import math
from collections.abc import Mapping
from typing import Final

from atoll_protos.run import Sync

STARTS_MAX: Final = 4  # rounds that start at once after a jump of the tick
EARLY_SHARE: Final = 0.25  # of a step: how far the prediction of a due tick may be wrong
EARLY_TICKS_MAX: Final = 0.5


def offset(sync: Sync, fragment: int) -> int:
    """The fragment's first due tick, floor(p * H / P)."""
    return fragment * sync.period // sync.fragment_count


def start_distance(sync: Sync) -> int:
    """Fewest ticks between the due ticks of two starts of one slice: H / 2, rounded up."""
    return (sync.period + 1) // 2


def newest_due(sync: Sync, fragment: int, tick: int) -> int:
    """The newest due tick <= `tick` of the fragment; negative when there is none yet."""
    first = offset(sync, fragment)
    return first + (tick - first) // sync.period * sync.period


def next_due(sync: Sync, fragment: int, tick: int) -> int:
    """The first due tick > `tick` of the fragment."""
    return newest_due(sync, fragment, tick) + sync.period


def starts(sync: Sync, tick: int, started: Mapping[int, int]) -> list[tuple[int, int]]:
    """(fragment, due tick) of the rounds that a shard starts at `tick`, oldest due first.

    `started` holds the due tick of each fragment's last start. At most STARTS_MAX are returned.
    """
    due = [
        (newest, fragment)
        for fragment, last in sorted(started.items())
        if (newest := newest_due(sync, fragment, tick)) - last >= start_distance(sync)
    ]
    return [(fragment, newest) for newest, fragment in sorted(due)[-STARTS_MAX:]]


def ahead(sync: Sync, tick: float, ticks_per_second: float, step_seconds: float) -> list[int]:
    """Fragments that a learner asks for at a step boundary, to be copied at the next one.

    `tick` is the clock now, estimated to a fraction. What is asked for now is copied one step from
    now, and answers the Calls of the step that follows. So these are the fragments that come due
    between one and two steps from now: each due tick lies in the window of one boundary alone, and
    a slice is copied once for it, however fast the clock runs. Both ends of the window are a
    little early, since a Call that comes just before the copy waits for it a moment only, and one
    just after the next boundary would wait a whole step. While the rate is not known there are
    none: such a Call is answered one boundary later.
    """
    step = step_seconds * ticks_per_second  # in ticks
    early = min(step * EARLY_SHARE, EARLY_TICKS_MAX)
    first, last = tick + step - early, tick + 2 * step - early
    return [p for p in range(sync.fragment_count) if newest_due(sync, p, math.floor(last)) > first]


def hands_over(sync: Sync, fragment: int, position: int) -> bool:
    """Whether a learner in a mode that waits hands the fragment over at this position (rule 15).

    True at every due tick from H/2 on. It depends on the position alone: learners at one position
    hand over the same slices, however they came there. If each learner counted H/2 from its own
    start, two learners could wait for each other's slices for ever.
    """
    first = offset(sync, fragment)
    return (position - first) % sync.period == 0 and position >= start_distance(sync)
