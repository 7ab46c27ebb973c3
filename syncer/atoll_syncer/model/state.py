"""All that a shard knows, in parts; exactly one module of `rules` writes each part.

    part         written by          what it holds
    history      shard               what the entries add up to (model/history); only `apply` writes
    run          runs                the search for the run: who holds which; calls of the registrar
    term         runs                the epoch of this process, and whether its record is durable
    sessions     sessions            open sessions, slots and their reports, admissions under way
    shut_out     shut_out            the grace of slots that are not on the job's list
    seed         seeding             the model's layout, version 0 on its way, the mark "has begun"
    clock        rounds/clock        the tick, the learners' positions, the rate of the clock
    rounds       rounds/             open rounds, starts of slices, moving means, finished slices
    data_states  rounds/data_states  what scripts keep with the cursors of the history
    reading      rounds/reading      which slices are still to be read from the store
    recovery     recovery            what is lost and on its way back; None while nothing is lost
    failures     recovery            whose claims to hold a version are not believed any more
    companion    companions          what an export needs beside the values, on its way
    ending       ending              the last rounds, this shard's part of the export, the job's end

Every module may read everything; one that wants a change calls a function of the owner
(tests/unit/syncer/test_state.py reads the source). Only `history` is durable; all else is lost with
the process, so nothing in it may be needed for safety.
"""

from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.expected import NOBODY, Expected
from atoll_protos.job.layout import Layout, specs_of
from atoll_protos.job.length import Length, at_start
from atoll_protos.job.run_file import Fragments, RunFile, Sync
from atoll_protos.job.schedule import start_distance
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.model.clock import JobClock
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Trained
from atoll_syncer.model.recovery import Failures, Recovery
from atoll_syncer.model.roster import Slot
from atoll_syncer.model.round import grace_seconds, step_seconds, too_slow
from atoll_syncer.model.state_parts import (
    CompanionTransfer,
    DataStates,
    Ending,
    OpenSessions,
    Rounds,
    Run,
    Seed,
    ShardTerm,
    ShutOut,
    UnreadSlices,
)


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
    companion: CompanionTransfer
    ending: Ending

    def set_layout(self, layout: Layout | None) -> None:
        """That of the log or, before version 0 is durable, of the learner that was asked for it.

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
        companion=CompanionTransfer(),
        ending=Ending(
            length=at_start(run_file, beginning.length), complete=history.closed is not None
        ),
    )
    state.set_layout(layout_of(history, run_file) if history.tensors else None)
    return state


def layout_of(history: History, run_file: RunFile) -> Layout:
    """The layout of the logged model under this run file. Raises SpecError where there is none."""
    return run_file.layout(specs_of(history.tensors))
