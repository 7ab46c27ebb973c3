"""All that a shard knows, in parts; exactly one module of `rules` writes each part.

    part         written by          what it holds
    history      shard               what the entries add up to (model/history); only `apply` writes
    run          runs                the search for the run: who holds which; calls of the registrar
    term         runs                the epoch of this process, and whether its record is durable
    sessions     sessions            open sessions, slots and their reports, admissions under way
    shut_out     shut_out            the grace of slots that are not on the job's list
    seed         seeding             the model's layout, version 0 on its way, the mark "has begun"
    clock        calls               the tick, the learners' positions, the rate of the clock
    rounds       rounds              open rounds, starts of slices, moving means, finished slices
    data_states  publishing          what scripts keep with the cursors of the history
    reading      publishing          which slices are still to be read from the store
    recovery     recovery            what is lost and on its way back; None while nothing is lost
    failures     recovery            whose claims to hold a version are not believed any more
    ending       ending              the last rounds, this shard's part of the export, the job's end

Every module may read everything; one that wants a change calls a function of the owner
(tests/unit/syncer/test_state.py reads the source). Only `history` is durable; all else is lost with
the process, so nothing in it may be needed for safety.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, specs_of
from atoll_protos.job.run_file import NOBODY, Expected, Fragments, RunFile, Sync
from atoll_protos.job.schedule import Length, at_start, start_distance
from atoll_protos.names import COUNTER_MAX, REGISTRAR_SHARD
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Taken, Trained, Uptime
from atoll_syncer.model.roster import (
    Certificate,
    JobClock,
    Round,
    Session,
    Slot,
    Timings,
    Training,
    grace_seconds,
    step_seconds,
    too_slow,
)

NEVER: Final = float("-inf")


@dataclass(slots=True, kw_only=True)
class Run:
    """Which run this is, and what others have said about it (rules 1 and 2).

    `fresh`: no process can hold a run of this job yet, or the registrar has minted one. `key` is
    that of a registrar whose log has none; elsewhere it is the registrar's.
    """

    fresh: bool
    new_id: str
    key: str = field(repr=False)
    started_at: float
    hello_sent_at: float = NEVER  # of the last Hello to the registrar
    # run: slots whose learners hold it, as they say, with their highest incarnations
    named: dict[str, dict[str, Taken]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)  # of those, with a version above 0
    shards_seen: set[int] = field(default_factory=set)  # at the registrar: they said Hello
    stored: dict[int, pb.HelloRequest] = field(default_factory=dict)  # of shards that hold a run
    generations: dict[str, int] = field(
        default_factory=dict
    )  # slot: its last SetOwner, maybe not durable
    heard: set[str] = field(default_factory=set)
    heard_at: float | None = None
    ticks: dict[int, int] = field(default_factory=dict)  # that other shards have said in Hello
    registrar_incomplete: bool = False  # it has lost entries, as it says itself
    beginning: str = ""  # a run whose checkpoint is being looked at
    began_here: bool = False  # this process began it: no other one had a term before


@dataclass(slots=True, kw_only=True)
class ShardTerm:
    """No session is welcomed and no version committed before its record is `durable` (rule 20)."""

    epoch: int
    durable: bool = False
    raised_by: set[str] = field(default_factory=set)  # slots whose Join has begun a higher one


@dataclass(slots=True, kw_only=True)
class OpenSessions:
    """Who is connected, and what is known of each slot (rules 3 to 7)."""

    open: dict[int, Session] = field(default_factory=dict)
    early: dict[int, tuple[pb.Join, Certificate]] = field(default_factory=dict)  # no run is known
    founders: set[str] = field(default_factory=set)  # slots that were welcomed at tick 0
    refused: set[str] = field(default_factory=set)  # slots whose newest learner cannot take part
    slots: dict[str, Slot] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    pending: dict[str, int] = field(default_factory=dict)  # slot: session; its entry is on its way
    welcomed_in: dict[str, int] = field(default_factory=dict)  # instance: epoch of that term
    evaluation: pb.Evaluation | None = None  # the newest that an observer has sent
    zombies_refused: int = 0
    uptime: Uptime
    looked_at: float  # when the uptime was counted last
    tokens: int  # trained by all slots, each once, over reconnects and restarts (rule 35)

    @property
    def counted(self) -> int:
        """The tokens as messages and entries have them: many slots' counts may fit no field."""
        return min(self.tokens, COUNTER_MAX)

    @property
    def welcomed(self) -> list[int]:
        return [number for number, each in sorted(self.open.items()) if each.welcomed]


@dataclass(slots=True, kw_only=True)
class ShutOut:
    """Since when the grace runs of who is not on the job's list (rule 41)."""

    unlisted: dict[str, float] = field(default_factory=dict)  # slots that were on the list before
    newcomers: dict[str, float] = field(default_factory=dict)  # regions: of their other slots


@dataclass(slots=True, kw_only=True)
class Seed:
    """How the values of this shard begin (rule 1)."""

    models: dict[str, pb.Model] = field(default_factory=dict)  # of open sessions, by layout digest
    marked: bool = False
    registrar_says_unmarked: bool = False
    kept_back: bool = False
    session: int | None = None  # from which version 0 comes
    asked_at: float | None = None  # when the shard first looked whether it comes
    slot: str = ""  # of that session
    frozen_digest: str = ""  # that its Join named
    arrived: set[int] = field(default_factory=set)  # slices of it that are whole
    refused: str = ""  # why the newest model that was laid out could not be taken


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOffers:
    """Why the newest offer of a slot was not taken, and how many in a row were not."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeShare:
    """What a slot gave to the last merge that had it; the share is that of the weight."""

    share: float
    tokens_per_step: float
    over_half: int  # merges of three or more learners in a row in which it had over half


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Attempts to merge, and what they have taught (rules 9 to 15)."""

    open: dict[int, Round] = field(default_factory=dict)  # by slice; merging ones included
    starts: dict[int, int]  # slice: due tick of its last start
    timings: Timings = field(default_factory=Timings)
    finished: set[int] = field(default_factory=set)  # slices that had their last round
    refused: dict[str, RefusedOffers] = field(default_factory=dict)  # until its next good offer
    shares: dict[str, MergeShare] = field(default_factory=dict)  # by slot
    above: dict[str, float] = field(default_factory=dict)  # slot: tokens a step that it may not say
    seen: tuple[frozenset[str], int] | None = None  # who trained, and the tick, at the last look


@dataclass(slots=True, kw_only=True)
class UnreadSlices:
    """What this process has yet to read from the store (rule 45)."""

    unread: set[int]  # slices: their newest version is known from the log, its values are not here


@dataclass(slots=True, kw_only=True)
class DataStates:
    """What learners' scripts keep with the cursors of the history (rule 28)."""

    kept: dict[str, bytes] = field(default_factory=dict)  # by slot


@dataclass(slots=True, kw_only=True)
class Ending:
    """How far the job's end has come here (rule 27). `began_at` is infinite once it is logged.

    `put_off`: it had begun when a longer length was heard, so a last version is so no more.
    """

    length: Length
    put_off: bool = False
    began_at: float | None = None
    part_reported: bool = False  # the registrar has taken this shard's part of the export
    index_requested: bool = False
    complete: bool = False  # the job


WAIT_SECONDS: Final = 30.0  # for every slot that is alive at the registrar to join
ANSWER_SECONDS: Final = 30.0  # for the first byte of what a learner was asked for
FAILURES_MAX: Final = 3  # damaged or unanswered
ENDS_MAX: Final = 10  # of sessions before the version came: a link may be bad, but not for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An admitted instance that says it holds a version of a slice."""

    session: int
    slot: str
    instance: str
    number: int
    epoch: int  # 0 when it is not known: the learner adopted the version after its Join


@dataclass(slots=True, kw_only=True)
class AskedHolder:
    """A version on its way from a learner to the store. Times are monotonic seconds."""

    holder: Holder
    at: float
    held: pb.Held | None = None  # what came
    storing: bool = False
    unproven: bool = False  # that the version was lost: nothing but its holder's claim shows it
    merges: int = 0  # in its momentum, which only the store has
    reason: str = ""  # where there is more to say than which version it is


@dataclass(slots=True, kw_only=True)
class Recovery:
    """What is lost, from the moment in which the shard learns of it until all is durable again."""

    began_at: float
    lost: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    alive: frozenset[str] | None = None  # slots at the registrar, as it said after `began_at`
    turned_away: set[str] = field(default_factory=set)  # slots that were told to dial again
    asked: dict[int, AskedHolder] = field(default_factory=dict)  # by slice
    empty: set[str] = field(default_factory=set)  # slots whose learner came, and holds nothing
    could_answer_at: float | None = None  # when the first learner came, or one was asked last
    damaged: set[int] = field(default_factory=set)  # slices whose version before the head is, too
    failed: str = ""  # why no learner can give back what is lost

    def awaited(self, session: int, fragment: int) -> AskedHolder | None:
        """Return what this session was asked for and has not given yet."""
        asked = self.asked.get(fragment)
        here = asked is not None and asked.holder.session == session and not asked.storing
        return asked if here else None


@dataclass(slots=True, kw_only=True)
class Failures:
    """How often in a row a slot's learner did not give what it had said it holds (rule 22).

    It outlives a recovery: else whoever claims what nobody holds would begin one after the other.
    """

    counts: dict[str, int] = field(default_factory=dict)  # by slot
    doubted: dict[int, float] = field(default_factory=dict)  # session: since when (rule 47)
    taken_back: set[tuple[str, int]] = field(default_factory=set)  # slot, slice: without a proof
    ends: dict[str, int] = field(default_factory=dict)  # by slot: sessions that ended meanwhile

    def are_too_many(self, slot: str) -> bool:
        return self.counts.get(slot, 0) >= FAILURES_MAX or self.ends.get(slot, 0) >= ENDS_MAX


def why_wait(recovery: Recovery, joined: Set[str], now: float) -> str:
    """Why no version is chosen yet; empty when it is time (rule 22)."""
    if now - recovery.began_at >= WAIT_SECONDS:
        return ""
    if recovery.alive is None:
        return "waits for the registrar to say which learners are alive"
    missing = sorted((recovery.alive | recovery.turned_away) - joined - recovery.empty)
    if missing:
        return f"waits for {', '.join(missing)}"
    return "" if joined else "waits for a learner"


def choose(holders: Iterable[Holder], failures: Failures) -> Holder | None:
    able = [h for h in holders if not failures.are_too_many(h.slot)]
    return max(able, key=lambda h: (h.number, h.epoch, -h.session), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What every rule of a round asks; computed once per input, after the input's own change.

    `quorum` is K as rule 10 has it now; `grace_seconds` that of a K-th offer which completes now.
    """

    training: frozenset[str]
    quorum: int
    grace_seconds: float


@dataclass(slots=True, kw_only=True)
class ShardState:
    """The parts (see the module), and questions about several of them. Times are monotonic s."""

    run_file: RunFile
    layout: Layout | None = field(init=False)
    fragments: range = field(init=False)  # the slices of this shard
    sync: Sync = field(init=False)  # how learners work together, with the number of fragments
    registrar: bool  # this shard has the second job
    expected: Expected
    number: int
    pod: str
    instance: str
    history: History
    run: Run
    term: ShardTerm
    sessions: OpenSessions
    shut_out: ShutOut
    seed: Seed
    clock: JobClock
    rounds: Rounds
    data_states: DataStates
    reading: UnreadSlices
    recovery: Recovery | None
    failures: Failures
    ending: Ending

    def set_layout(self, layout: Layout | None) -> None:
        """Set the log's layout or, before version 0 is durable, that of the learner asked for it.

        Where the number of slices follows from the model, until then slice 0 stands for all.
        """
        given = self.run_file.sync.fragments
        count = 1 if isinstance(given, Fragments) else given
        self.layout = layout
        self.fragments = range(count if layout is None else layout.fragments)
        self.sync = self.run_file.sync.with_fragments(len(self.fragments))

    @property
    def serving(self) -> bool:
        """Rounds may open and close: term and mark are durable, and nothing is lost (rules 1, 22).

        What is merged before the term is durable has an object of the epoch before, which the term
        removes (storage/versions).
        """
        return self.term.durable and self.seed.marked and self.recovery is None

    @property
    def has_never_begun(self) -> bool:
        if self.history.heads or self.seed.marked:
            return False
        if self.registrar:
            return not self.history.incomplete and not self.history.may_have_begun
        return self.seed.registrar_says_unmarked and not self.run.registrar_incomplete

    @property
    def failed(self) -> str:
        return "" if self.recovery is None else self.recovery.failed

    def is_lost(self, fragment: int) -> bool:
        return self.recovery is not None and fragment in self.recovery.lost

    def is_here(self, fragment: int) -> bool:
        """Whether the values of the slice's newest version can be merged with and sent."""
        known = fragment in self.history.heads and not self.is_lost(fragment)
        return known and fragment not in self.reading.unread

    @property
    def is_whole(self) -> bool:
        """Whether no value is lost, or still to be read."""
        return self.recovery is None and not self.reading.unread

    @property
    def over(self) -> bool:
        """t >= T: the job's length in ticks or in tokens is reached."""
        length = self.ending.length
        if length.steps is not None:
            return self.clock.tick >= length.steps
        return self.sessions.tokens >= length.tokens

    @property
    def unwritten(self) -> dict[str, Trained]:
        known = self.history.trained
        return {
            name: slot.trained
            for name, slot in sorted(self.sessions.slots.items())
            if slot.trained != known.get(name)
        }

    def standing(self, now: float) -> Standing:
        training = self.sessions.training.at(now)
        step = step_seconds(self.sessions.training.step_seconds)
        return Standing(
            training=training,
            quorum=self.sync.awaited(len(training)),
            grace_seconds=grace_seconds(self.sync, self.rounds.timings, step, len(training)),
        )

    @property
    def transfer_seconds(self) -> float:
        """How long an offer takes from its Call: the moving mean, at most H/2 ticks (rule 11)."""
        rate = self.clock.ticks_per_second
        most = start_distance(self.sync) / rate if rate else float("inf")
        return min(self.rounds.timings.transfer.or_else(0.0), most)

    def is_too_slow(self, slot: Slot) -> bool:
        """Rule 14: called when usable, but no grace waits for it."""
        rate = self.clock.ticks_per_second
        return too_slow(
            self.sync,
            step=slot.report.step_seconds,
            publish=slot.report.publish_seconds,
            tick_seconds=1 / rate if rate else 0.0,
        )

    def head(self, fragment: int) -> pb.SliceVersion:
        run, head = self.history.run, self.history.heads[fragment]
        version = pb.Version(run=run, number=head.number, epoch=head.epoch, digest=head.digest)
        return pb.SliceVersion(slice=fragment, version=version)

    def heads(self) -> list[pb.SliceVersion]:
        return [self.head(fragment) for fragment in sorted(self.history.heads)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Of one process of a shard.

    `fresh`: no process can hold a run of this job yet; the next two are for a run it mints.
    """

    run_file: RunFile
    shard: int
    pod: str
    instance: str
    fresh: bool
    new_run: str
    new_key: str = field(repr=False)
    expected: Expected = NOBODY
    length: Length | None = None  # None: that of the run file


def new_state(beginning: Beginning, history: History, now: float) -> ShardState:
    run_file, at_first = beginning.run_file, history.commits == 0 and not history.incomplete
    registrar = beginning.shard == REGISTRAR_SHARD
    kept_back = registrar and at_first and bool(beginning.expected.slots)
    key = beginning.new_key if registrar else ""
    state = ShardState(
        run_file=run_file,
        registrar=registrar,
        expected=beginning.expected,
        number=beginning.shard,
        pod=beginning.pod,
        instance=beginning.instance,
        history=history,
        run=Run(fresh=beginning.fresh, new_id=beginning.new_run, key=key, started_at=now),
        term=ShardTerm(epoch=history.epoch),
        sessions=OpenSessions(
            tokens=sum(each.total for each in history.trained.values()),
            uptime=history.uptime,
            looked_at=now,
        ),
        shut_out=ShutOut(),
        seed=Seed(kept_back=kept_back),
        clock=JobClock(period=run_file.sync.period, tick=history.tick, drawn_at=history.tick),
        rounds=Rounds(starts=dict(history.due)),
        data_states=DataStates(),
        reading=UnreadSlices(unread=set(history.heads)),
        recovery=None,
        failures=Failures(),
        ending=Ending(
            length=at_start(run_file, beginning.length), complete=history.closed is not None
        ),
    )
    state.set_layout(layout_of(history, run_file) if history.tensors else None)
    return state


def layout_of(history: History, run_file: RunFile) -> Layout:
    """Return the layout of the logged model under this run file. SpecError: there is none."""
    return run_file.layout(specs_of(history.tensors))
