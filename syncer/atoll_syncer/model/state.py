"""All that a shard knows, in parts; exactly one module of `rules` writes each part.

    part         written by         what it holds
    history      rules/shard        what the entries add up to (model/history); only `apply` writes
    run          rules/runs         the search for the run: who holds which; calls of the registrar
    term         rules/runs         the epoch of this process, and whether its record is durable
    sessions     rules/sessions     open sessions, slots and their reports, admissions under way
    shut_out     rules/shut_out     the grace of slots that are not on the job's list
    seed         rules/seeding      the model's layout, version 0 on its way, the mark "has begun"
    clock        rules/clock        the tick, the learners' positions, the rate of the clock
    rounds       rules/rounds       open rounds, starts of slices, moving means, finished slices
    data_states  rules/data_states  what scripts keep with the cursors of the history
    recovery     rules/recovery     what is lost and on its way back; None while nothing is lost
    failures     rules/recovery     whose claims to hold a version are not believed any more
    companion    rules/companions   what an export needs beside the values, on its way
    ending       rules/ending       the last rounds, this shard's part of the export, the job's end

A `Session` is shared by four modules, field by field: its docstring names them. Every module may
read everything. tests/unit/syncer/test_state.py reads the source of the rules and fails when a
module writes what belongs to another one; a module that wants such a change calls a function of
the owner. So a reader who looks for the cause of a wrong value has one file to read.

What is durable is in `history` alone, and only a durable entry changes it. All other parts are
lost with the process: the next one computes them again from the history (`new_state`), from the
learners that join, and from the registrar's answers. So nothing in them may be needed for safety.

`State.standing` answers, for one moment, the three questions that all rules of a round ask: who
trains, how many make a quorum, how long the grace is. `rules/moves` computes it once per input,
after the input's own change and before anything follows from it, and passes it down.
"""

from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import NOBODY, Expected
from atoll_protos.layout import Layout, TensorSpec
from atoll_protos.length import Length, at_start
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.run import Fragments, RunFile, Sync
from atoll_protos.schedule import start_distance
from atoll_syncer.model.clock import Clock
from atoll_syncer.model.grace import Timings, grace_seconds, step_seconds, too_slow
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Taken, Trained
from atoll_syncer.model.recovery import Failures, Recovery
from atoll_syncer.model.roster import Certificate, Session, Slot
from atoll_syncer.model.round import Round
from atoll_syncer.model.training import Training

NEVER: Final = float("-inf")


@dataclass(slots=True, kw_only=True)
class Run:
    """Which run this is, and what others have said about it (rules 1 and 2).

    `fresh`: no process can hold a run of this job yet, so the registrar mints one at once; it is
    also set once the registrar has minted. `new_id` is the id that this process would mint, and
    `key` that of a registrar whose log has none; elsewhere it is the registrar's.
    `heard` are the slots whose learners have dialled since this process began; at `heard_at` came
    the first one of those that are there now.
    """

    fresh: bool
    new_id: str
    key: str = field(repr=False)
    started_at: float
    hello_sent_at: float = NEVER  # of the last Hello to the registrar
    named: dict[str, dict[str, Taken]] = field(
        default_factory=dict
    )  # run: slots whose learners hold it, as they say, with their highest incarnations
    trained: set[str] = field(default_factory=set)  # of those, with a version above 0
    shards_seen: set[int] = field(default_factory=set)  # at the registrar: they said Hello
    stored: dict[int, pb.HelloRequest] = field(
        default_factory=dict
    )  # the last one of each shard whose store holds a run
    words: dict[str, int] = field(
        default_factory=dict
    )  # slot: its last SetOwner, maybe not durable
    heard: set[str] = field(default_factory=set)
    heard_at: float | None = None
    ticks: dict[int, int] = field(default_factory=dict)  # that other shards have said in Hello
    registrar_incomplete: bool = False  # it has lost entries, as it says itself


@dataclass(slots=True, kw_only=True)
class Term:
    """The time for which this process owns the shard (rule 20).

    `epoch` is the number of the term, in the log or about to be; `durable` says which. No session
    is welcomed and no version committed before the record is durable.
    """

    epoch: int
    durable: bool = False
    raised_by: set[str] = field(default_factory=set)  # slots whose Join has begun a higher one


@dataclass(slots=True, kw_only=True)
class Sessions:
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
    tokens: int  # trained by all slots, each once, over reconnects and restarts (rule 35)

    @property
    def welcomed(self) -> list[int]:
        """Numbers of the sessions that may get messages, oldest first."""
        return [number for number, each in sorted(self.open.items()) if each.welcomed]


@dataclass(slots=True, kw_only=True)
class ShutOut:
    """Since when the grace runs of who is not on the job's list (rule 41)."""

    unlisted: dict[str, float] = field(default_factory=dict)  # slots that were on the list before
    newcomers: dict[str, float] = field(default_factory=dict)  # regions: of their other slots


@dataclass(slots=True, kw_only=True)
class Seed:
    """How the values of this shard begin (rule 1).

    `layout` is that of the log or, before version 0 is durable, that of the learner that was asked
    for it. `models` are those that open sessions have sent meanwhile, by the digest of the layout.
    `marked`: the registrar has marked this shard begun, durably. `registrar_says_unmarked`: it
    has answered that it has not. `kept_back`: learners do not get version 0 yet, because others
    are expected that are to begin with them.
    """

    layout: Layout | None
    models: dict[str, pb.Model] = field(default_factory=dict)
    marked: bool = False
    registrar_says_unmarked: bool = False
    kept_back: bool = False
    session: int | None = None  # from which version 0 comes
    asked_at: float | None = None  # when the shard first looked whether it comes
    slot: str = ""  # of that session
    frozen_digest: str = ""  # that its Join named
    arrived: set[int] = field(default_factory=set)  # slices of it that are whole


@dataclass(slots=True, kw_only=True)
class Companion:
    """A companion on its way to the registrar, which asks one learner after the other (rule 36).

    `changed_asked`: the sessions that were asked for what training has changed, at the end; the
    first one's counts.
    """

    session: int | None = None  # that was asked for the whole one
    objects: tuple[str, ...] = ()  # its parts that are stored
    is_logged: bool = False  # its entry is on its way
    changed_asked: set[int] = field(default_factory=set)
    is_changed_logged: bool = False
    awaited_since: float | None = None  # by the export
    given_up: bool = False  # the export waits no longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why the newest offer of a slot was not taken, and how many in a row were not."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
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
    late: int = 0  # offers that completed too late to count
    refused: dict[str, Refused] = field(default_factory=dict)  # by slot, until its next good offer
    shares: dict[str, Share] = field(default_factory=dict)  # by slot
    above: dict[str, float] = field(default_factory=dict)  # slot: tokens a step that it may not say
    seen: tuple[frozenset[str], int] | None = None  # who trained, and the tick, at the last look


@dataclass(slots=True, kw_only=True)
class DataStates:
    """What learners' scripts keep with the cursors of the history (rule 28)."""

    kept: dict[str, bytes] = field(default_factory=dict)  # by slot


@dataclass(slots=True, kw_only=True)
class Ending:
    """How far the job's end has come here (rule 27). `began_at` is infinite once it is logged.

    `length` is the job's as far as this shard has heard. `put_off`: the end had begun when it heard
    of a longer one, so a version that was the last of its slice is so no more.
    """

    length: Length
    put_off: bool = False
    began_at: float | None = None
    part_reported: bool = False  # the registrar has taken this shard's part of the export
    index_requested: bool = False
    complete: bool = False  # the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What every rule of a round asks, at one moment.

    `training` are the slots that count for quorum and grace; `quorum` is K, in modes that wait
    never more than train (rule 10); `grace_seconds` is what a round whose K-th offer completes
    now would get (rule 11).
    """

    training: frozenset[str]
    quorum: int
    grace_seconds: float


@dataclass(slots=True, kw_only=True)
class State:
    """The parts (see the module), and questions about several of them. Times are monotonic s."""

    run_file: RunFile
    expected: Expected
    number: int
    pod: str
    instance: str
    history: History
    run: Run
    term: Term
    sessions: Sessions
    shut_out: ShutOut
    seed: Seed
    clock: Clock
    rounds: Rounds
    data_states: DataStates
    recovery: Recovery | None
    failures: Failures
    companion: Companion
    ending: Ending

    @property
    def sync(self) -> Sync:
        """How learners work together, with the number of fragments; see `fragments`."""
        return self.run_file.sync.with_fragments(len(self.fragments))

    @property
    def fragments(self) -> range:
        """The slices of this shard.

        Where their number follows from the model, slice 0 stands for all until a model is known:
        every model has it, and without a model no other has a version, a round or a transfer.
        """
        if self.seed.layout is not None:
            return range(self.seed.layout.fragments)
        given = self.run_file.sync.fragments
        return range(1 if isinstance(given, Fragments) else given)

    @property
    def registrar(self) -> bool:
        """Whether this shard has the second job."""
        return self.number == REGISTRAR_SHARD

    @property
    def layout(self) -> Layout | None:
        """None until a learner with a model was asked for its values; see Seed."""
        return self.seed.layout

    @property
    def serving(self) -> bool:
        """Rounds may open and close: the mark is durable, and nothing is lost (rules 1, 22)."""
        return self.seed.marked and self.recovery is None

    @property
    def has_never_begun(self) -> bool:
        """It has no version, and the registrar has all of its log and no mark of this shard."""
        if self.history.heads or self.seed.marked:
            return False
        if self.registrar:
            return not self.history.incomplete and not self.history.may_have_begun
        return self.seed.registrar_says_unmarked and not self.run.registrar_incomplete

    @property
    def failed(self) -> str:
        """Why no learner can give back what is lost; empty while one may."""
        return "" if self.recovery is None else self.recovery.failed

    def is_lost(self, fragment: int) -> bool:
        """Whether a slice's newest version is not here (rule 22)."""
        return self.recovery is not None and fragment in self.recovery.lost

    @property
    def over(self) -> bool:
        """t >= T: the job's length in ticks or in tokens is reached."""
        length = self.ending.length
        if length.steps is not None:
            return self.clock.tick >= length.steps
        return self.sessions.tokens >= length.tokens

    @property
    def unwritten(self) -> dict[str, Trained]:
        """What slots have trained, where the log does not say it yet (rule 35)."""
        known = self.history.trained
        return {
            name: slot.trained
            for name, slot in sorted(self.sessions.slots.items())
            if slot.trained != known.get(name)
        }

    def standing(self, now: float) -> Standing:
        """Who trains, the quorum and the grace at `now`; once per input (see the module)."""
        training = self.sessions.training.at(now)
        step = step_seconds(self.sessions.training.step_seconds)
        return Standing(
            training=training,
            quorum=self.sync.awaited(len(training)),
            grace_seconds=grace_seconds(self.sync, self.rounds.timings, step),
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
        """The whole name of a slice's newest version."""
        head = self.history.heads[fragment]
        version = pb.Version(
            run=self.history.run, number=head.number, epoch=head.epoch, digest=head.digest
        )
        return pb.SliceVersion(slice=fragment, version=version)

    def heads(self) -> list[pb.SliceVersion]:
        """Names of the newest versions, by slice."""
        return [self.head(fragment) for fragment in sorted(self.history.heads)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a process is told about the beginning of a run.

    `fresh`: no process can hold a run of this job yet; `new_run` and `new_key` are the random id
    and key of a run that this process would mint; `expected` are the job's learners, as far as they
    are known.
    """

    fresh: bool
    new_run: str
    new_key: str = field(repr=False)
    expected: Expected = NOBODY
    length: Length | None = None  # None: that of the run file


def new_state(
    *,
    run_file: RunFile,
    shard: int,
    pod: str,
    instance: str,
    history: History,
    beginning: Beginning,
    now: float,
) -> State:
    """What a process knows that has just read its log."""
    at_first = history.commits == 0 and not history.incomplete
    kept_back = shard == REGISTRAR_SHARD and at_first and bool(beginning.expected.slots)
    return State(
        run_file=run_file,
        expected=beginning.expected,
        number=shard,
        pod=pod,
        instance=instance,
        history=history,
        run=Run(
            fresh=beginning.fresh,
            new_id=beginning.new_run,
            key=beginning.new_key if shard == REGISTRAR_SHARD else "",
            started_at=now,
        ),
        term=Term(epoch=history.epoch),
        sessions=Sessions(tokens=sum(each.total for each in history.trained.values())),
        shut_out=ShutOut(),
        seed=Seed(
            layout=layout_of(history, run_file) if history.tensors else None, kept_back=kept_back
        ),
        clock=Clock(period=run_file.sync.period, tick=history.tick, drawn_at=history.tick),
        rounds=Rounds(starts=dict(history.due)),
        data_states=DataStates(),
        recovery=None,
        failures=Failures(),
        companion=Companion(),
        ending=Ending(
            length=at_start(run_file, beginning.length),
            complete=history.closed is not None,
        ),
    )


def layout_of(history: History, run_file: RunFile) -> Layout:
    """The layout of the logged model under this run file. Raises SpecError where there is none."""
    specs = [TensorSpec(**{**each, "shape": tuple(each["shape"])}) for each in history.tensors]
    return run_file.layout(specs)
