"""When each fragment is due, and how long a job is: what shards and learners follow alike.

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

The length may change while a job runs (docs/protocol.md, rule 27). It carries a *revision*, which
grows with every edit of the manifest; that of the run file has 0. Later ones come to shards in a
file, and from there to all. A process keeps the length of the highest revision, in whatever order
they arrive.

The *ends* are all lengths in ticks that a process has heard of, because one that was the end may
have been acted upon: in lock-step each learner hands every slice over at the end of the job. One
that has heard of a longer job does so at the former end as well, and meets those that have not.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import documents
from atoll_protos.job.run_file import RunFile, Sync
from atoll_protos.names import COUNTER_MAX

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


ENDS_MAX: Final = 64  # of more, the smallest are forgotten
MORE_TICKS_MAX: Final = 10_000_000  # above twice the largest length


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFile:
    """What the file says: the revision, and exactly one of the two lengths."""

    revision: int
    steps: int | None = None
    tokens: int | None = None

    def to_json(self) -> str:
        given = {"revision": self.revision, "steps": self.steps, "tokens": self.tokens}
        return json.dumps({key: each for key, each in given.items() if each is not None}) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """`steps` is T, None for a length in tokens; `tokens` is 0 for one in ticks; `ends` ascend."""

    revision: int = 0
    steps: int | None = None
    tokens: int = 0
    ends: tuple[int, ...] = ()

    @property
    def ticks_max(self) -> int:
        """The largest tick, or number of a version, that any message may have.

        A slice has at most one version a tick, and some of losses.
        """
        return min(2 * max(self.steps or 0, self.tokens, *self.ends) + MORE_TICKS_MAX, COUNTER_MAX)

    @property
    def claims_max(self) -> int:
        """The largest that a shard takes over from one: a whole job still fits above it."""
        return self.ticks_max // 2

    def is_end(self, position: int) -> bool:
        return position == self.steps or position in self.ends

    def also(self, other: "Length") -> "Length":
        """With what another process has heard; one of the other kind says nothing."""
        if (self.steps is None, not self.tokens) != (other.steps is None, not other.tokens):
            return self
        newest = other if other.revision > self.revision else self
        return replace(newest, ends=_of({*self.ends, *other.ends}))

    def message(self) -> pb.Length:
        return pb.Length(
            revision=self.revision, steps=self.steps or 0, tokens=self.tokens, ends=self.ends
        )


def of_run_file(run_file: RunFile) -> Length:
    """As a learner knows it until a shard has told it more."""
    return Length(steps=run_file.steps, tokens=run_file.tokens or 0)


def at_start(run_file: RunFile, file: Length | None) -> Length:
    """Return that of a shard that starts, which may find the operator's file."""
    first = _told(0, run_file.steps, run_file.tokens)
    return first if file is None else first.also(file)


def read(text: str) -> Length:
    """From the file. Raises SpecError."""
    file = documents.parse(LengthFile, text, "length file")
    return _told(file.revision, file.steps, file.tokens)


def heard(message: pb.Length) -> Length:
    return Length(
        revision=message.revision,
        steps=message.steps or None,
        tokens=message.tokens,
        ends=_of({*message.ends}),
    )


def _told(revision: int, steps: int | None, tokens: int | None) -> Length:
    ends = () if steps is None else (steps,)
    return Length(revision=revision, steps=steps, tokens=tokens or 0, ends=ends)


def _of(ends: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ends)[-ENDS_MAX:])
