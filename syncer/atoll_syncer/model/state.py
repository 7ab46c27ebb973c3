"""What a shard knows: its history, who is there, the clock, and the rounds that are open."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.run import RunFile, Sync
from atoll_syncer.model import clock
from atoll_syncer.model.grace import Timings, grace_seconds, step_seconds, too_slow
from atoll_syncer.model.log import History, Taken
from atoll_syncer.model.recovery import Recovery
from atoll_syncer.model.roster import Session, Slot
from atoll_syncer.model.round import Round

TICKS_KEPT: Final = 32  # changes of the tick from which its rate is taken
NEVER: Final = float("-inf")


@dataclass(slots=True, kw_only=True)
class State:
    """All of it. Times are monotonic seconds; `new_run` is what this process would mint."""

    run_file: RunFile
    number: int
    pod: str
    instance: str
    fresh: bool  # nobody can hold a run of this job
    new_run: str
    started_at: float
    history: History
    layout: Layout | None
    clock: clock.Clock
    starts: dict[int, int]  # slice: due tick of its last start
    epoch: int  # of this process's reign, durable or about to be
    complete: bool
    sessions: dict[int, Session] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)  # slot: session of a Taken on its way
    reigning: bool = False  # the record of this reign is durable
    met: set[str] = field(default_factory=set)  # instances that this reign has welcomed
    marked: bool = False  # the registrar has marked this shard begun, durably (rule 1)
    told_unmarked: bool = False  # the registrar said that it has not
    spoken: set[str] = field(default_factory=set)  # runs that learners and shards held (rule 2)
    held_runs: set[str] = field(default_factory=set)  # those with a version above 0
    shards_heard: set[int] = field(default_factory=set)  # at the registrar
    seen: dict[str, Taken] = field(default_factory=dict)  # highest incarnations held elsewhere
    asked_at: float = NEVER  # the last Hello to the registrar
    seeding: int | None = None  # session
    seeds: set[int] = field(default_factory=set)
    rounds: dict[int, Round] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    tick_times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=TICKS_KEPT))
    ending_at: float | None = None
    done: set[int] = field(default_factory=set)  # slices that had their last round
    part_told: bool = False  # the registrar has taken this shard's part of the export
    index_asked: bool = False
    recovery: Recovery | None = None
    failed: str = ""
    told_tick: int = 0  # the last that everybody heard of
    evaluation: pb.Evaluation | None = None  # the newest
    late: int = 0
    refused_zombies: int = 0

    @property
    def sync(self) -> Sync:
        """How learners work together."""
        return self.run_file.sync

    @property
    def registrar(self) -> bool:
        """Whether this shard has the second job."""
        return self.number == REGISTRAR_SHARD

    @property
    def serving(self) -> bool:
        """Rounds may open and close: the mark is durable, and nothing is lost (rules 1, 22)."""
        return self.marked and self.recovery is None

    def is_lost(self, fragment: int) -> bool:
        """Whether a slice's newest version is not here (rule 22)."""
        return self.recovery is not None and fragment in self.recovery.lost

    @property
    def welcomed(self) -> list[int]:
        """Sessions that may get messages, oldest first."""
        return [number for number, each in sorted(self.sessions.items()) if each.welcomed]

    @property
    def ticks_per_second(self) -> float:
        """The present rate of the clock; 0 while unknown."""
        if len(self.tick_times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.tick_times[0], self.tick_times[-1]
        return (high - low) / (last - first) if last > first else 0.0

    @property
    def tokens(self) -> int:
        """Tokens trained by all slots, over their incarnations, as reported here."""
        return sum(slot.tokens_before + slot.report.tokens for slot in self.slots.values())

    @property
    def over(self) -> bool:
        """t >= T."""
        if self.run_file.steps is not None:
            return self.clock.tick >= self.run_file.steps
        return self.run_file.tokens is not None and self.tokens >= self.run_file.tokens

    @property
    def grace_seconds(self) -> float:
        """What a round would get now."""
        step = step_seconds(slot.report.step_seconds for slot in self.slots.values())
        return grace_seconds(self.sync, self.timings, step)

    def training(self, now: float) -> frozenset[str]:
        """The slots that count for quorum and grace."""
        slots = self.slots.values()
        return frozenset(each.name for each in slots if each.state(now) == pb.SLOT_TRAINING)

    def quorum(self, now: float) -> int:
        """K; in modes that wait not more than learn (rule 10)."""
        return self.sync.awaited(len(self.training(now)))

    def is_too_slow(self, slot: Slot) -> bool:
        """Rule 14: called when usable, waited for by nobody."""
        return too_slow(
            self.sync,
            step=slot.report.step_seconds,
            publish=slot.report.publish_seconds,
            tick_seconds=1 / rate if (rate := self.ticks_per_second) else 0.0,
        )

    def head(self, fragment: int) -> pb.SliceVersion:
        """The whole name of a slice's newest version."""
        head = self.history.heads[fragment]
        version = pb.Version(
            run=self.history.run, number=head.number, epoch=head.epoch, digest=head.digest
        )
        return pb.SliceVersion(slice=fragment, version=version)

    def heads(self) -> list[pb.SliceVersion]:
        """Of all slices that have one."""
        return [self.head(fragment) for fragment in sorted(self.history.heads)]


def new_state(
    *,
    run_file: RunFile,
    shard: int,
    pod: str,
    instance: str,
    history: History,
    fresh: bool,
    new_run: str,
    now: float,
) -> State:
    """A process that has just read its log."""
    ticking = clock.Clock(period=run_file.sync.period, tick=history.tick, drawn_at=history.tick)
    return State(
        run_file=run_file,
        number=shard,
        pod=pod,
        instance=instance,
        fresh=fresh,
        new_run=new_run,
        started_at=now,
        history=history,
        layout=_layout(history, run_file),
        clock=ticking,
        starts=dict(history.due),
        epoch=history.epoch,
        complete=history.closed is not None,
    )


def _layout(history: History, run_file: RunFile) -> Layout | None:
    if not history.tensors:
        return None
    specs = [TensorSpec(**{**each, "shape": tuple(each["shape"])}) for each in history.tensors]
    return build_layout(specs, run_file.sync.fragments, run_file.shards)
