"""What every process of a learner does with the commands at a step boundary, and in which order.

All ranks carry out the commands that the *head*, rank 0, has drawn (rule 31): first every Adopt,
then every Capture, so that no offer is formed against an old base.
"""

import math
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Slice, TensorSpec
from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_worker.errors import LearnerError
from atoll_worker.link import messages
from atoll_worker.link.messages import Boundary, JobLength
from atoll_worker.model.tickets import Ticket

Key: TypeAlias = tuple[int, int]  # (shard, fragment): a slice


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


class Values(Protocol):
    """What carries out the commands about values: a replica, or what stands for one."""

    def capture(self, key: Key) -> Ticket:
        """Put the copy of a slice in line."""

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Put the values of a slice into the model."""


@dataclass(slots=True, kw_only=True)
class JobState:
    """How the job stands for this process. `specs` are the tensors in the layout's order."""

    specs: Sequence[TensorSpec]
    slices: dict[Key, Slice]
    tick: int = 0  # of the job's clock, the newest that the transport has sent
    length: messages.JobLength | None = None  # None: the length is that of the run file
    start: messages.Start | None = None  # None until training may begin
    proceed: bool = False  # in lock-step modes: step() may return
    finished: bool = False  # the final values are adopted

    def apply(self, commands: Iterable[messages.Message], values: Values) -> BoundaryWork:
        """Never waits for the device. Raises LearnerError when the job refuses this learner."""
        work = BoundaryWork()
        captures: dict[Key, None] = {}
        for command in commands:
            match command:
                case messages.Adopt(shard=shard, fragment=fragment, number=number, blend=blend):
                    values.adopt(work, (shard, fragment), blend)
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
                case messages.Finished(again=keys):
                    self.finished = True
                    for key in keys:
                        values.adopt(work, key, 0.0)
                case messages.Fail(exit_code=exit_code, reason=reason):
                    raise LearnerError(exit_code, reason)
                case _:
                    raise AssertionError(f"{command} is not a command")
        for key in captures:
            work.tickets.append(values.capture(key))
            work.captured.append(key)
        return work

    def keep_final(self, values: Values) -> BoundaryWork:
        """Keep the values after Finished in the adopt regions: a trainer may step on."""
        assert self.finished
        work = BoundaryWork()
        for key in self.slices:
            values.adopt(work, key, 0.0)
        return work

    def names(self, work: BoundaryWork) -> tuple[str, ...]:
        """Return the tensors that the work put values into, also in part, in the layout's order."""
        pieces = (piece for key in work.assigned for piece in self.slices[key].pieces)
        return tuple(self.specs[n].name for n in sorted({piece.tensor for piece in pieces}))


DataState: TypeAlias = bytes | Callable[[], bytes]


@dataclass(slots=True)
class KeptDataState:
    """The data state of the newest step."""

    function: Callable[[], bytes] | None = None  # that returns it, until it was called
    found: bytes | None = None
    tried: bool = False

    def give(self, state: DataState | None) -> None:
        self.function, self.found = None, None
        if callable(state):
            self.function = state
        elif state is not None:
            self.found = checked(state)

    def try_once(self) -> None:
        if self.function is not None and not self.tried:
            self.tried = True
            self.take()

    def take(self) -> bytes | None:
        """Raise SpecError for what is no data state."""
        if self.function is not None:
            self.found, self.function = checked(self.function()), None
        return self.found


def checked(state: object) -> bytes:
    """Raise SpecError for what is no bytes, or too much."""
    if not isinstance(state, bytes | bytearray | memoryview):
        raise SpecError(
            "state",
            f"is of type {type(state).__name__}",
            "give bytes, or a function that returns bytes: those of json.dumps(state).encode(), or "
            "of torch.save",
        )
    found = bytes(state)
    if len(found) > DATA_STATE_BYTES_MAX:
        raise SpecError(
            "state",
            f"has {len(found)} bytes",
            f"keep at most {DATA_STATE_BYTES_MAX}: where the data goes on, not the data",
        )
    return found


@dataclass(slots=True)
class Counts:
    """The counts of one opening of a Learner."""

    own_steps: int = 0
    tokens: int = 0
    cursor: int = 0
    loss: float = math.nan  # the newest that is known
    first_losses: int = 0  # their digest (`logged_values.digest_of`)
    kept: KeptDataState = field(default_factory=KeptDataState)  # the data state of the newest step
    left_at: float = 0.0  # when the last step() returned, monotonic
    blocked_seconds: float = 0.0  # how long the last step() took

    def checked(self, tokens: int, cursor: int | None, state: DataState | None) -> tuple[int, int]:
        """Return step()'s arguments as plain integers; SpecError if not whole or falling."""
        try:
            tokens = operator.index(tokens)
            cursor = self.cursor + 1 if cursor is None else operator.index(cursor)
        except TypeError as error:
            raise SpecError(
                "step", f"{error}", "give tokens and cursor as whole numbers"
            ) from error
        if tokens < 1:
            raise SpecError("tokens", f"is {tokens}", "give the tokens trained since the last step")
        if cursor < self.cursor:
            raise SpecError("cursor", f"went from {self.cursor} back to {cursor}", "let it grow")
        if state is not None and cursor == self.cursor:
            remedy = "let it grow with every step: it says which state is the newest"
            raise SpecError("cursor", f"stays at {cursor} in a step with a state", remedy)
        return tokens, cursor

    def given(
        self, tokens: int, cursor: int | None, state: DataState | None, *, is_head: bool
    ) -> tuple[int, int]:
        """Tokens and the next cursor; on other ranks a guess until the head says them (rule 35)."""
        if is_head:
            tokens, cursor = self.checked(tokens, cursor, state)
        else:
            tokens, cursor = 1, self.cursor + 1
        self.kept.give(state)
        return tokens, cursor

    def count(self, tokens: int, cursor: int) -> None:
        self.own_steps += 1
        self.tokens += tokens
        self.cursor = cursor
        self.kept.try_once()

    def heard(self, tokens: int, cursor: int) -> None:
        self.tokens, self.cursor = tokens, cursor

    def state(self, work: BoundaryWork) -> bytes | None:
        return self.kept.take() if work.captured else None

    def boundary(
        self,
        work: BoundaryWork,
        state: bytes | None,
        tokens: int = 0,
        step_seconds: float | None = None,
    ) -> Boundary:
        """For a step, or without `step_seconds` for more work at the same boundary."""
        return Boundary(
            own_steps=self.own_steps,
            tokens=tokens,
            loss=self.loss,
            first_losses=self.first_losses,
            step_seconds=step_seconds or 0.0,
            blocked_seconds=0.0 if step_seconds is None else self.blocked_seconds,
            cursor=self.cursor,
            data_state=state,
            adopted=tuple(work.adopted),
            captured=tuple(work.captured),
            again=step_seconds is None,
        )

    def leave(self) -> None:
        self.left_at = time.monotonic()

    def progress(self, tick: int, length: JobLength, learners: int) -> float:
        """0.0 to 1.0; estimated, by this slot's tokens per step, where the length is in tokens."""
        ticks = length.steps
        if ticks is None and length.tokens is not None and self.tokens:
            tokens_per_tick = self.tokens / self.own_steps * learners
            ticks = max(1, math.ceil(length.tokens / tokens_per_tick))
        return min(1.0, tick / ticks) if ticks else 0.0
