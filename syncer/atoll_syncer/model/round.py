"""One attempt to merge one slice: when it closes, its grace, its momentum (rules 10 to 12, 27).

The grace is that of 2604.21428, Eq. 3 (docs/algorithm.md). Values are adopted tau ("overlap") ticks
after the slice is due; what a round needs in between is known from moving means: xi_quorum from its
start to the K-th offer, xi_sync from its close to the durable version. In the rest of tau it may
wait without any learner noticing. One that needs more than a step offers the next capture instead.

The momentum rule `auto` follows Nesterov's sequence k / (k + c), where k counts the merges in the
slice's momentum, and R those of a slice in the whole job:

    R  = max(1, T / H)
    mu = min(0.9, k / (k + max(sqrt(R), 64 / H)))

Where the job's length is in tokens, T follows from what a tick of the job has trained so far.
"""

import math
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from atoll_protos.job.length import Length
from atoll_protos.job.run_file import GraceLimit, Momentum, Sync
from atoll_protos.means import NO_SAMPLES, MovingMean
from atoll_syncer.model.log import Participant

TRAINER_SPREAD_MAX: Final = 2.0  # xi_step: the slowest within this factor of the fastest
MOMENTUM_MAX: Final = 0.9  # the published value (2311.08105)
WARM_TICKS_MIN: Final = 64
LEARNERS_MIN: Final = 2  # in a round that waits for one


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFindings:
    """What a merge has found of its offers, by slot.

    `left_out` says why it did not merge one; `norms` are |v| of all, `cosines` those of the merged
    ones with their mean.
    """

    left_out: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    cosines: Mapping[str, float] = field(default_factory=dict)


NOTHING_FOUND: Final = MergeFindings()


@dataclass(slots=True, kw_only=True)
class Round:
    """A round that is open, or closed and being merged. Times are monotonic seconds."""

    slice: int
    due: int  # tick
    base: int  # number of the version that offers are differences to
    opened_at: float
    called: dict[str, float] = field(default_factory=dict)  # slot: when
    complete: dict[str, Participant] = field(default_factory=dict)  # slot: its newest offer
    complete_at: dict[str, float] = field(default_factory=dict)  # slot: when its first one was
    data_states: dict[str, bytes] = field(default_factory=dict)  # slot: of its offer in `complete`
    quorum_at: float | None = None  # when the K-th offer was complete
    grace_seconds: float = 0.0  # counted from `quorum_at`
    last: bool = False
    deadline: float | None = None  # of a last round
    closed_at: float | None = None  # None while it is open
    reason: str = ""  # why it closed
    momentum: float = 0.0  # of its outer step, once it is closed
    found: MergeFindings = NOTHING_FOUND  # by the merge, of its offers
    refused: set[str] = field(default_factory=set)  # slots without which the round does
    waits_for: list[str] = field(default_factory=list)  # some slots, as they were at the last look

    @property
    def participants(self) -> tuple[Participant, ...]:
        """In slot order: a replay gives the same bits (rule 12)."""
        return tuple(self.complete[slot] for slot in sorted(self.complete))

    def add(self, offer: Participant, now: float, data_state: bytes | None = None) -> None:
        complete_at = self.complete_at.get(offer.slot, now)
        self.remove(offer.slot)
        self.complete[offer.slot], self.complete_at[offer.slot] = offer, complete_at
        if data_state is not None:
            self.data_states[offer.slot] = data_state

    def note_quorum(self, quorum: int, grace_seconds: float, now: float) -> None:
        """The K-th offer starts the grace; K may also fall, when a learner is lost."""
        if self.quorum_at is None and len(self.complete) >= quorum:
            self.quorum_at, self.grace_seconds = now, grace_seconds

    def is_over(self, now: float) -> bool:
        if self.last:
            return self.deadline is not None and now >= self.deadline
        return self.quorum_at is not None and now >= self.quorum_at + self.grace_seconds

    def comes_in_time(self, slot: str, transfer: MovingMean) -> bool:
        """Whether an offer is whole within the grace that takes as long from its Call as usual."""
        assert self.quorum_at is not None, "the K-th offer was noted"
        whole_at = self.called[slot] + transfer.or_else(0.0)
        return whole_at <= self.quorum_at + self.grace_seconds

    def remove(self, slot: str) -> Participant | None:
        self.complete_at.pop(slot, None)
        self.data_states.pop(slot, None)
        return self.complete.pop(slot, None)

    def count_grace_again(self, quorum: int) -> None:
        """An offer was removed: the grace counts from the K-th of those that stay."""
        if self.quorum_at is not None and len(self.complete_at) >= quorum:
            self.quorum_at = max(self.quorum_at, sorted(self.complete_at.values())[quorum - 1])


@dataclass(frozen=True, slots=True)
class RoundDecision:
    """Whether a round closes now, and why."""

    close: bool
    reason: str


def closes(round_: Round, *, missing: Sequence[str], quorum: int, now: float) -> RoundDecision:
    """Rule 11; `missing` are those whose offers may still count: called, Training, not too slow."""
    if round_.last:
        if not missing:
            return RoundDecision(True, "last round: all complete")
        assert round_.deadline is not None, "a last round has a deadline"
        if now >= round_.deadline:
            return RoundDecision(True, f"last round: deadline, without {', '.join(missing)}")
        return RoundDecision(False, f"last round waits for {', '.join(missing)}")
    if len(round_.complete) < quorum:
        return RoundDecision(False, f"{len(round_.complete)} of {quorum} for the quorum")
    if not missing:
        return RoundDecision(True, "all complete")
    assert round_.quorum_at is not None, "the K-th offer was noted"
    if now >= round_.quorum_at + round_.grace_seconds:
        return RoundDecision(True, f"grace over, without {', '.join(missing)}")
    return RoundDecision(False, f"grace, waits for {', '.join(missing)}")


def weight(steps: int, tokens: int) -> float:
    """w = tokens^2 / steps: quantity times quality (2604.21428; docs/algorithm.md)."""
    return tokens * tokens / steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """xi_quorum (due to K offers), xi_sync (close to trailer), transfer (call to offer); seconds.

    The transfer bound also learns from late offers, so that a slow link gets in (rule 11).
    """

    quorum: MovingMean = NO_SAMPLES
    sync: MovingMean = NO_SAMPLES
    transfer: MovingMean = NO_SAMPLES


def step_seconds(means: Sequence[float]) -> float:
    """xi_step: of the slowest learner within a factor 2 of the fastest, so one cannot stretch it.

    The means are in ascending order; 0 is one that is not known.
    """
    fastest = bisect_right(means, 0.0)
    if fastest == len(means):
        return 0.0
    return means[bisect_right(means, TRAINER_SPREAD_MAX * means[fastest]) - 1]


def grace_seconds(sync: Sync, timings: Timings, step: float, training: int) -> float:
    """0 <= grace <= gamma * slack, slack = tau * xi_step - (xi_quorum + xi_sync); <= one step.

    With GraceLimit.WORK it is at least H / M steps, M of `training` learners. A learner that is
    missing loses H steps of its work on the slice; each step of waiting overwrites one of M.
    """
    if not sync.grace:
        return 0.0
    slack = sync.overlap * step - (timings.quorum.or_else(0.0) + timings.sync.or_else(0.0))
    hidden = min(max(0.0, sync.grace_safety * slack), step)
    if sync.grace_limit is GraceLimit.OVERLAP:
        return hidden
    return max(hidden, sync.period / max(training, LEARNERS_MIN) * step)


def too_slow(sync: Sync, *, step: float, publish: float, tick_seconds: float) -> bool:
    """Rule 14: step time + publish time > (H - tau)/2 ticks at the present rate."""
    return tick_seconds > 0 and step + publish > (sync.period - sync.overlap) / 2 * tick_seconds


def ticks_expected(length: Length, tick: int, tokens: int) -> float:
    """T; of a length in tokens, if `tokens` are what the job has trained up to `tick`."""
    if length.steps is not None:
        return length.steps
    return max(1, tick) * length.tokens / max(1, tokens)


def momentum(sync: Sync, merges: int, steps: float) -> float:
    """mu of a slice's next merge, after `merges` others; `steps` is T, in ticks.

    By the rule it is a value of f32, so that every reader of a tape has all of its bits.
    """
    if not isinstance(sync.outer_momentum, Momentum):
        return sync.outer_momentum
    rounds = max(1.0, steps / sync.period)
    slowness = max(math.sqrt(rounds), WARM_TICKS_MIN / sync.period)
    exact = min(MOMENTUM_MAX, merges / (merges + slowness))
    return float(struct.unpack("f", struct.pack("f", exact))[0])
