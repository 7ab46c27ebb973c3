"""What every process of a learner does with the commands at a step boundary, and in which order.

All ranks carry out the commands that the *head*, rank 0, has drawn (rule 31): first every Adopt,
then every Capture, so that no offer is formed against an old base.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import structlog

from atoll_protos.job.layout import Slice, TensorSpec
from atoll_worker.errors import LearnerError
from atoll_worker.link import messages
from atoll_worker.model.tickets import Ticket

if TYPE_CHECKING:
    from atoll_worker.model.staging import Pairs
    from atoll_worker.model.undone import Watch
    from atoll_worker.model.unshared import Unshared

Key: TypeAlias = tuple[int, int]  # (shard, fragment): a slice

log = structlog.get_logger()


@dataclass(slots=True)
class BoundaryWork:
    """What was put in line at one boundary. False if nothing was."""

    adopted: list[tuple[int, int, int]] = field(default_factory=list)  # shard, fragment, number
    captured: list[Key] = field(default_factory=list)
    assigned: dict[Key, None] = field(default_factory=dict)  # slices whose values were put in
    tickets: list[Ticket] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tickets)

    def done(self) -> bool:
        return all(ticket.done() for ticket in self.tickets)

    def wait(self) -> None:
        for ticket in self.tickets:
            ticket.wait()


@dataclass(slots=True, kw_only=True)
class Obeying(ABC):
    """The state that commands change. `specs` are the tensors in the layout's order."""

    specs: Sequence[TensorSpec]
    slices: dict[Key, Slice]
    tick: int = 0  # of the job's clock, the newest that the transport has sent
    length: messages.JobLength | None = None  # None: the length is that of the run file
    start: messages.Start | None = None  # None until training may begin
    held: set[Key] = field(default_factory=set)  # slices that have been adopted at least once
    proceed: bool = False  # in lock-step modes: step() may return
    finished: bool = False  # the final values are adopted
    unshared: "Unshared | None" = None  # where this rank looks for tensors that train later
    watch: "Watch | None" = None  # where it looks whether the optimizer undoes what is adopted

    def step_made(self) -> None:
        if self.watch is not None and (reason := self.watch.judge()):
            self.warn(reason)
        if self.unshared is not None and (reason := self.unshared.step_made()):
            self.warn(reason)

    def trust(self) -> None:
        """The optimizer is told of adoptions: whether it undoes them is not looked at any more."""
        if self.watch is not None:
            self.watch.end()
            self.watch = None

    @contextmanager
    def watched(self, parts: "Pairs", averaged: list[bool]) -> Iterator[None]:
        """The adoption of these parts, some of which no optimizer steps."""
        watch = None if self.finished else self.watch
        sample = watch.before(parts, averaged) if watch else None
        yield
        if watch and sample:
            watch.after(sample)

    def warn(self, reason: str) -> None:
        log.warning(reason)

    @abstractmethod
    def capture(self, key: Key) -> Ticket:
        """Put the copy of a slice in line."""

    @abstractmethod
    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Put the values of a slice into the model."""

    @abstractmethod
    def give(self, *, changed: bool) -> None:
        """Put the companion where the transport reads it."""

    def obey(self, commands: Iterable[messages.Message]) -> BoundaryWork:
        """Never waits for the device. Raises LearnerError when the job refuses this learner."""
        work = BoundaryWork()
        captures: dict[Key, None] = {}
        gives: list[bool] = []
        for command in commands:
            match command:
                case messages.Adopt(shard=shard, fragment=fragment, number=number, blend=blend):
                    self.adopt(work, (shard, fragment), blend)
                    work.adopted.append((shard, fragment, number))
                case messages.Capture(slices=slices):
                    captures.update(dict.fromkeys(slices))
                case messages.Tick(tick=tick):
                    self.tick = max(self.tick, tick)
                case messages.JobLength():
                    self.length = command
                case messages.Start():
                    self.start = command
                    self.tick = max(self.tick, command.tick)
                case messages.Proceed():
                    self.proceed = True
                case messages.Finished(again=keys, companion=wanted):
                    self.finished = True
                    for key in keys:
                        self.adopt(work, key, 0.0)
                    gives += [True] if wanted else []
                case messages.GiveCompanion(changed=changed):
                    gives.append(changed)
                case messages.Fail(exit_code=exit_code, reason=reason):
                    raise LearnerError(exit_code, reason)
                case _:
                    raise AssertionError(f"{command} is not a command")
        for key in captures:
            work.tickets.append(self.capture(key))
            work.captured.append(key)
        for changed in gives:
            self.give(changed=changed)
        return work

    def keep_final(self) -> BoundaryWork:
        """A trainer may step on after the end; the adopt regions keep the values after Finished."""
        assert self.finished
        work = BoundaryWork()
        for key in self.slices:
            self.adopt(work, key, 0.0)
        return work

    def names(self, work: BoundaryWork) -> tuple[str, ...]:
        """The tensors that the work put values into, whole or in part, in the layout's order."""
        pieces = (piece for key in work.assigned for piece in self.slices[key].pieces)
        return tuple(self.specs[n].name for n in sorted({piece.tensor for piece in pieces}))
