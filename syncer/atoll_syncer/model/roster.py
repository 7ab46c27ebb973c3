"""Slots and sessions of one shard: who is connected, and what each slot does (rules 5, 6).

The slots that are Training (rule 6), kept from input to input instead of asked one by one.

Its writer says with `note` what happens to a slot; a slot that has made no step becomes Stalled by
the time alone. So an input costs as much with a thousand learners as with eight.

One attempt to merge one slice: when it closes, its grace, its momentum (rules 10 to 12, 27).

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

import heapq
import math
import struct
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import GraceLimit, Momentum, Sync
from atoll_protos.job.schedule import Length
from atoll_protos.means import NO_SAMPLES, MovingMean
from atoll_syncer.model.log import Participant, Settled, Trained

STALL_STEPS = 3.0
STALL_SECONDS_MIN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCredit:
    """A Call that may still be answered: for one offer on version number `base` (rule 10)."""

    base: int
    called_at: float
    t_m: int  # the learner's position, as reported when it was called


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A transfer of which a part has begun and not all parts are verified."""

    head: pb.Transfer
    asked_at: float  # its Call, or its head where there was none
    until: float = math.inf  # it must be whole by then
    data_state: bytes | None = None  # that belongs to an offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a session's peer has shown; `region` is empty where no revocation concerns it.

    `machine` is empty where the certificate is for any machine of its region.
    """

    region: str = ""
    machine: str = ""
    generation: int = 0
    until: float = float("inf")


PLAIN_TEXT = Certificate()


@dataclass(slots=True, kw_only=True)
class Session:
    """One connection of an instance. Times are monotonic seconds.

    rules/sessions writes `welcomed`; publishing `held` and `claims`; rounds `credits`; transfers
    the rest.
    """

    number: int
    join: pb.Join
    slot: str = field(init=False)  # empty for an observer
    certificate: Certificate = PLAIN_TEXT
    welcomed: bool = False
    held: dict[int, int] = field(default_factory=dict)  # slice: number, where it is a known value
    claims: dict[int, tuple[int, int]] = field(default_factory=dict)  # slice: (number, epoch) said
    credits: dict[int, CallCredit] = field(default_factory=dict)  # by slice
    receiving: dict[int, Coming] = field(default_factory=dict)  # under way, by slice
    heard_at: float = 0.0  # when a transfer last began or was whole
    data_state: bytes | None = None  # of the last offer that brought one

    def __post_init__(self) -> None:
        self.slot = "" if self.join.observer else self.join.slot


@dataclass(slots=True, kw_only=True)
class Slot:
    """What is known of one slot, across its incarnations. Times are monotonic seconds."""

    name: str
    session: int | None = None
    left: str = ""  # the reason of its Leave, until the next session
    report: pb.Report = field(default_factory=pb.Report)
    reported_at: float = 0.0
    stepped_at: float = 0.0
    t_m_counted: int = 0
    progress: dict[int, pb.SliceProgress] = field(default_factory=dict)  # of the report, by slice
    trained: Trained = field(default_factory=Trained)
    restored: int = 0  # of its tokens, what others than this process have counted
    offer_time: MovingMean = NO_SAMPLES  # from a Call to the whole offer, in this session

    def state(self, now: float) -> pb.SlotState:
        """Only SLOT_TRAINING counts for quorum and grace (rule 6)."""
        if self.session is None:
            return pb.SLOT_LEFT if self.left else pb.SLOT_LOST
        if not self.report.training:
            return pb.SLOT_RECOVERING if self.report.t_m else pb.SLOT_JOINING
        return pb.SLOT_STALLED if now > self.stalled_after else pb.SLOT_TRAINING

    @property
    def stalled_after(self) -> float:
        if self.report.waiting:
            return math.inf
        return self.stepped_at + max(STALL_SECONDS_MIN, STALL_STEPS * self.report.step_seconds)

    @property
    def tokens(self) -> int:
        return self.trained.total

    def open(self, session: int, now: float, incarnation: int = 0) -> None:
        """Open a welcomed session; its reports count from nothing, the slot keeps its tokens.

        Bulk streams need not be waited for: without them a learner gets no version.
        """
        self.trained = self.trained.also(Trained(incarnation=incarnation))
        self.session, self.left, self.report, self.progress = session, "", pb.Report(), {}
        self.reported_at = self.stepped_at = now
        self.t_m_counted = 0
        self.offer_time = NO_SAMPLES

    def note_offer_time(self, seconds: float) -> None:
        """From a Call to the whole offer. It falls at once: an offer after a pause says little."""
        mean = self.offer_time.add(seconds).or_else(seconds)
        self.offer_time = MovingMean(min(mean, seconds))

    def take(self, report: pb.Report, now: float, tokens_per_step_max: int | None = None) -> int:
        """Return the steps that are new to the clock; steps before the learner trains are not."""
        was = self.report
        self.progress = {each.slice: each for each in report.slices}
        if report.t_m != was.t_m or not was.training or was.waiting:
            self.stepped_at = now  # until now it had nothing to do but to wait
        if not self.report.training:
            self.t_m_counted = report.t_m
        counted = self.trained
        trained = max(0, report.tokens - counted.said)
        if tokens_per_step_max is not None:
            trained = min(trained, tokens_per_step_max * max(0, report.t_m - self.report.t_m))
        if report.tokens > counted.said:
            counted = replace(counted, now=counted.now + trained, said=report.tokens)
        said = Settled(overlap=report.settled.overlap, late=report.settled.late)
        self.trained = replace(counted, settled=counted.settled.also(said))
        self.report, self.reported_at = report, now
        steps = max(0, report.t_m - self.t_m_counted)
        self.t_m_counted += steps
        return steps

    def steps_since(self, fragment: int) -> pb.SliceProgress | None:
        return self.progress.get(fragment)


@dataclass(slots=True, kw_only=True)
class Training:
    """`names` is another object after each change, and the same one without.

    `looks` are the moments in which a slot may have become Stalled; the first one of each counts.
    """

    names: frozenset[str] = frozenset()
    slots: dict[str, Slot] = field(default_factory=dict)  # those of `names`
    means: dict[str, float] = field(default_factory=dict)  # slot: its mean step time; 0: unknown
    step_seconds: list[float] = field(default_factory=list)  # the same in ascending order
    looks: list[tuple[float, str]] = field(default_factory=list)  # a heap
    look_at: dict[str, float] = field(default_factory=dict)

    def note(self, slot: Slot, now: float) -> None:
        name = slot.name
        if slot.state(now) != pb.SLOT_TRAINING:
            self.remove(name)
            return
        if name not in self.names:
            self.names |= {name}
            self.slots[name] = slot
        self._note_mean(name, slot.report.step_seconds)
        self._look_later(slot)

    def at(self, now: float) -> frozenset[str]:
        """Those that are Training at `now`."""
        while self.looks and self.looks[0][0] < now:
            moment, name = heapq.heappop(self.looks)
            if self.look_at.get(name) != moment:
                continue  # an earlier one was noted after it
            del self.look_at[name]
            slot = self.slots.get(name)
            if slot is None:
                continue
            if slot.state(now) == pb.SLOT_TRAINING:
                self._look_later(slot)
            else:
                self.remove(name)
        return self.names

    def remove(self, name: str) -> None:
        if name in self.names:
            self.names -= {name}
            del self.slots[name]
            self._forget_mean(name)

    def _note_mean(self, name: str, mean: float) -> None:
        if self.means.get(name) != mean:
            self._forget_mean(name)
            self.means[name] = mean
            insort(self.step_seconds, mean)

    def _forget_mean(self, name: str) -> None:
        mean = self.means.pop(name, None)
        if mean is not None:
            del self.step_seconds[bisect_left(self.step_seconds, mean)]

    def _look_later(self, slot: Slot) -> None:
        moment = slot.stalled_after
        if moment < self.look_at.get(slot.name, math.inf):
            self.look_at[slot.name] = moment
            heapq.heappush(self.looks, (moment, slot.name))


TIMES_KEPT: Final = 32  # changes of the tick from which its rate is taken


@dataclass(slots=True, kw_only=True)
class StepCredit:
    """The steps that a learner can have made and that have not counted yet (rule 39)."""

    steps: float
    at: float  # monotonic seconds

    def spend(self, steps: int, now: float, seconds: float, steps_max: int) -> int:
        """Take what may count of `steps`; `seconds` is the shortest that one can take, 0: unknown.

        A message that was held up may carry at most `steps_max` of an earlier time.
        """
        grown = (now - self.at) / seconds if seconds else 0.0
        self.steps, self.at = min(self.steps, steps_max) + grown, now
        counted = min(steps, int(self.steps))
        self.steps -= counted
        return counted


@dataclass(slots=True, kw_only=True)
class JobClock:
    """The tick of rule 8; `ahead` counts positions above it, so most reports look at no others."""

    period: int
    tick: int = 0
    ahead: int | None = None  # positions above the tick; None: to be counted
    training: frozenset[str] = frozenset()  # as it was last given
    positions: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)  # by slot: as it counts; 0: unknown
    drawn_at: int = 0
    announced: int = 0  # the last tick that all sessions have got
    announced_at: float = 0.0
    # monotonic seconds and tick of the last changes, from which the rate is taken
    times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    credits: dict[str, StepCredit] = field(default_factory=dict)  # by slot
    step_seconds: float = 0.0  # the median of those that train; 0 while unknown
    steps_noted_at: float = 0.0  # monotonic seconds
    commits: int = 0  # of this process's rounds: its tick is that of its own learners

    @property
    def ticks_per_second(self) -> float:
        if len(self.times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.times[0], self.times[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def advance(self, slot: str, steps: int) -> None:
        before = self.positions[slot]
        self.positions[slot] = before + steps
        if self.ahead is not None and before <= self.tick < before + steps:
            self.ahead += 1

    def set_training(self, slots: frozenset[str]) -> None:
        """Let a joiner enter where it reports to be, from t-1 to t; a change draws all in."""
        if slots is self.training:
            return
        self.training = slots
        if slots == self.positions.keys():
            return
        self.positions = {slot: self.positions.get(slot, self.tick - 1) for slot in sorted(slots)}
        self.take_in()

    def take_in(self) -> None:
        """All positions, up to what their learners say, which is never above the tick."""
        self.ahead = None
        self.positions = {
            slot: max(position, min(self.reached.get(slot, 0) or self.tick - 1, self.tick))
            for slot, position in self.positions.items()
        }
        self._draw_in()

    def raise_to(self, tick: int) -> None:
        """To a tick that was seen on another shard, or that a commit has reached; never back."""
        if tick > self.tick:
            self.tick, self.ahead = tick, None

    def update(self, quorum: int) -> bool:
        """Move the tick; says whether it moved. With fewer than K learners its rate is unknown."""
        before = self.tick
        if len(self.positions) < quorum:
            self.times.clear()
        elif self._is_ahead(quorum):
            largest_first = sorted(self.positions.values(), reverse=True)
            self.tick = largest_first[quorum - 1]
            self.ahead = None
        if self.tick >= self.drawn_at + self.period:
            self._draw_in()
        return self.tick > before

    def _is_ahead(self, quorum: int) -> bool:
        if self.ahead is None:
            self.ahead = sum(position > self.tick for position in self.positions.values())
        return self.ahead >= quorum

    def _draw_in(self) -> None:
        """To [t-1, t+H]: else a lost leader freezes the clock, and a slow learner never counts."""
        self.drawn_at = self.tick
        low, high = self.tick - 1, self.tick + self.period
        self.positions = {
            slot: min(max(position, low), high) for slot, position in self.positions.items()
        }


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
        """Start the grace with the K-th offer; K may also fall, when a learner is lost."""
        if self.quorum_at is None and len(self.complete) >= quorum:
            self.quorum_at, self.grace_seconds = now, grace_seconds

    def is_over(self, now: float) -> bool:
        if self.last:
            return self.deadline is not None and now >= self.deadline
        return self.quorum_at is not None and now >= self.quorum_at + self.grace_seconds

    def why_closed(self, missing: Sequence[str]) -> str:
        """Return what ended it, in words; `missing` are those whose offers might have counted."""
        if not missing:
            return "last round: all complete" if self.last else "all complete"
        ended = "last round: deadline" if self.last else "grace over"
        return f"{ended}, without {', '.join(missing)}"

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
        """Count the grace from the K-th of the offers that stay: one was removed."""
        if self.quorum_at is not None and len(self.complete_at) >= quorum:
            self.quorum_at = max(self.quorum_at, sorted(self.complete_at.values())[quorum - 1])


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
