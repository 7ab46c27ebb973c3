"""Slots and sessions of one shard: who is connected, and what each slot does (rules 5, 6)."""

import math
from dataclasses import dataclass, field, replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.means import NO_SAMPLES, MovingMean
from atoll_syncer.model.log import Settled, Trained

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
    the rest. With several lanes there may be one transfer of each slice at a time.
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
    lanes_missing: int = 0  # that are not open yet, where the session has several
    offer_time: MovingMean = NO_SAMPLES  # from a Call to the whole offer, in this session

    def state(self, now: float) -> pb.SlotState:
        """Only SLOT_TRAINING counts for quorum and grace (rule 6)."""
        if self.session is None:
            return pb.SLOT_LEFT if self.left else pb.SLOT_LOST
        if not self.report.training or self.lanes_missing:
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

    def open(self, session: int, now: float, incarnation: int = 0, lanes: int = 1) -> None:
        """A session was welcomed; its reports count from nothing, the slot keeps its tokens.

        One lane need not be waited for: a learner without it gets no version and cannot train.
        """
        self.trained = self.trained.also(Trained(incarnation=incarnation))
        self.session, self.left, self.report, self.progress = session, "", pb.Report(), {}
        self.reported_at = self.stepped_at = now
        self.t_m_counted = 0
        self.lanes_missing = lanes if lanes > 1 else 0
        self.offer_time = NO_SAMPLES

    def note_offer_time(self, seconds: float) -> None:
        """From a Call to the whole offer. It falls at once: an offer after a pause says little."""
        mean = self.offer_time.add(seconds).or_else(seconds)
        self.offer_time = MovingMean(min(mean, seconds))

    def take(self, report: pb.Report, now: float, tokens_per_step_max: int | None = None) -> int:
        """Returns the steps that are new to the clock; steps before the learner trains are not."""
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
