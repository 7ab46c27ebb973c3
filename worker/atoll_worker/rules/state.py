"""What a learner or observer knows: of each shard, of each slice, of its own work."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.layout import Layout
from atoll_protos.run import RunFile
from atoll_worker.rules.effects import Effect, SendMessage
from atoll_worker.rules.slices import SliceState
from atoll_worker.rules.work import Work

TICKS_KEPT: Final = 16  # changes of the tick from which its rate is taken


class Line(StrEnum):
    """How far the connection to a shard is."""

    DOWN = "down"
    DIALLING = "dialling"
    JOINING = "joining"  # Join is sent
    WELCOMED = "welcomed"


@dataclass(slots=True, kw_only=True)
class Side:
    """What is known of one shard. Times are monotonic seconds."""

    line: Line = Line.DOWN
    ever_welcomed: bool = False
    welcomed_at: float = 0.0
    tick: int = 0
    epoch: int = 0  # the highest seen
    final: dict[int, int] | None = None  # fragment: number
    attempt: int = 0  # dials since it last stayed
    dial_at: float | None = None
    publish_began_at: float | None = None

    @property
    def welcomed(self) -> bool:
        """Whether messages may be sent."""
        return self.line is Line.WELCOMED


@dataclass(slots=True, kw_only=True)
class Clock:
    """The job's step: the lowest tick over the shards, never back (rule 8)."""

    tick: int = 0
    times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=TICKS_KEPT))

    def move(self, lowest: int, now: float) -> bool:
        """Whether `lowest` is further than before."""
        if lowest <= self.tick:
            return False
        self.tick = lowest
        self.times.append((now, lowest))
        return True

    @property
    def ticks_per_second(self) -> float:
        """Over the last changes; 0 while unknown."""
        if len(self.times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.times[0], self.times[-1]
        return (high - low) / (last - first) if last > first else 0.0


@dataclass(slots=True, kw_only=True)
class State:
    """All of it. `instance` is this process start; an observer has no slot."""

    run_file: RunFile
    layout: Layout
    slot: str
    uid: str
    instance: str
    observer: bool
    sides: list[Side]
    slices: dict[tuple[int, int], SliceState]
    run: str = ""
    incarnation: int = 0
    clock: Clock = field(default_factory=Clock)
    work: Work = field(default_factory=Work)
    started: bool = False
    finished: bool = False
    failed: bool = False
    leaving: bool = False
    captures_asked: bool = False  # the capture regions are no longer the seed
    waits: bool = False  # lock-step: the training thread is in step() until Proceed

    def of(self, shard: int) -> list[SliceState]:
        """The slices of one shard."""
        return [each for each in self.slices.values() if each.shard == shard]

    @property
    def tick_seen(self) -> int:
        """The highest on any shard."""
        return max(side.tick for side in self.sides)

    @property
    def epochs_seen(self) -> list[int]:
        """By shard."""
        return [side.epoch for side in self.sides]

    @property
    def at_the_end(self) -> bool:
        """Lock-step: this learner's position has reached T."""
        steps = self.run_file.steps
        return self.run_file.sync.lockstep and steps is not None and self.work.position >= steps

    def to_all(self, message: pb.ToShard) -> list[Effect]:
        """One message to every shard that has welcomed this process."""
        return [SendMessage(n, message) for n, side in enumerate(self.sides) if side.welcomed]


def new_state(
    *, run_file: RunFile, layout: Layout, slot: str, uid: str, instance: str, observer: bool
) -> State:
    """A process that has just started."""
    slices = {
        (each.shard, each.fragment): SliceState(shard=each.shard, fragment=each.fragment)
        for each in layout.slices
    }
    return State(
        run_file=run_file,
        layout=layout,
        slot=slot,
        uid=uid,
        instance=instance,
        observer=observer,
        sides=[Side() for _ in range(run_file.shards)],
        slices=slices,
    )
