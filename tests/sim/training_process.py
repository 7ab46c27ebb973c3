"""A learner's training process: steps in virtual time, with symbols in place of parameters."""

import abc
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import (
    Adopt,
    Boundary,
    Capture,
    Fail,
    Finished,
    JobLength,
    Proceed,
    Start,
    Tick,
)
from sim.clock import Action, Process
from sim.symbols import Key, Theta, Value, Work

if TYPE_CHECKING:
    from sim.world import World

LINK_SECONDS = 0.0005
NO_DATA_STATE = 5  # at multiples of it a script gives none


@dataclass(slots=True, kw_only=True)
class Region:
    """A capture region of the shared memory, with its counter."""

    counter: int = 0
    theta: Theta | None = None


@dataclass(slots=True, kw_only=True)
class Training:
    """The training process' memory."""

    t_m: int = 0
    tokens: int = 0
    cursor: int = 0
    blocked_seconds: float = 0.0
    start: Start | None = None
    begun: bool = False
    proceed: bool = False
    finished: bool = False
    waits_since: float | None = None  # in step(), in lock-step
    step_seconds: float = 0.0
    inbox: list[Any] = field(default_factory=list)
    bases: dict[Key, tuple[Value, int]] = field(default_factory=dict)  # and t_m at adoption


def data_state_at(slot: str, cursor: int) -> bytes | None:
    """What the slot's script keeps with that cursor; at some it gives nothing."""
    return f"{slot} at {cursor}".encode() if cursor % NO_DATA_STATE else None


class TrainingProcess(Process, abc.ABC):
    """As learner.py and replica.py: commands come over the link, boundaries go back."""

    def __init__(self, world: "World", slot: str, instance: str, keys: list[Key]) -> None:
        super().__init__(world.sim, instance)
        self.world, self.slot = world, slot
        self.rng = world.sim.random(f"learner {instance}")
        self.regions = {key: Region() for key in keys}
        self.placed: dict[Key, tuple[pb.Publish, Value]] = {}  # in the adopt regions
        self.training = Training()
        self.slowness = 1.0
        self.step_tokens = 0  # of the step that is under way
        self.hiccup_seconds = 0.0  # of the next step
        self.still_seconds = 0.0  # from the next time that it waits in step()
        self.stands_still = False  # the training process alone: its transport goes on
        self._missed: list[Action] = []

    @property
    @abc.abstractmethod
    def incarnation(self) -> int:
        """As the registrar gave it."""

    @abc.abstractmethod
    def say_boundary(self, boundary: Boundary) -> None:
        """Tell the transport process that a step is finished, or more work."""

    @abc.abstractmethod
    def leave(self, reason: str) -> None:
        """Leave the job in peace."""

    @abc.abstractmethod
    def fail(self, code: int, reason: str) -> None:
        """The job refuses this process."""

    def stand_still(self, seconds: float) -> None:
        """The training process alone stands, as in a debugger; then it does what it has missed."""
        if self.alive and not self.stands_still:
            self.stands_still = True
            self.sim.note(self.name, f"its training process stands still for {seconds:.1f} s")
            self.sim.after(seconds, partial(self.do, self.move_again))

    def move_again(self) -> None:
        self.stands_still = False
        missed, self._missed = self._missed, []
        for action in missed:
            action()

    def receive(self, command: Any) -> None:
        """A command arrives; while the training process waits it acts at once."""
        if self.stands_still:
            self._missed.append(partial(self.receive, command))
            return
        training = self.training
        training.inbox.append(command)
        if not training.begun:
            self.work_while_waiting()
            if training.start is not None and not training.begun:
                training.begun = True
                training.cursor = training.start.cursor
                self.begin_step()
        elif training.waits_since is not None:
            self.work_while_waiting()
            self.go_on()

    def work_while_waiting(self) -> None:
        """More work at the same boundary."""
        adopted, captured = self.drain()
        if adopted or captured:
            self.tell_boundary(adopted, captured, again=True)

    def begin_step(self) -> None:
        self.step_tokens, seconds = self.next_step()
        self.training.step_seconds = seconds + self.hiccup_seconds
        self.hiccup_seconds = 0.0
        self.after(self.training.step_seconds, self.finish_step)

    def next_step(self) -> tuple[int, float]:
        """Tokens and seconds of a step that begins."""
        scenario = self.world.scenario
        seconds = scenario.step_seconds[self.slot] * self.slowness
        return scenario.tokens_per_step, seconds * self.rng.uniform(*scenario.step_spread)

    def finish_step(self) -> None:
        """`learner.step()`: count, adopt, capture, report; in lock-step wait."""
        if self.stands_still:
            self._missed.append(self.finish_step)
            return
        training = self.training
        training.t_m += 1
        training.tokens += self.step_tokens
        training.cursor += 1
        training.proceed = False
        self.world.watchers.tell("stepped", self)
        adopted, captured = self.drain()
        self.tell_boundary(adopted, captured, again=False)
        if self.world.run_file.sync.lockstep:
            training.waits_since = self.sim.now
            self.go_on()
            if self.still_seconds and training.waits_since is not None:
                self.stand_still(self.still_seconds)
                self.still_seconds = 0.0
        else:
            self.training.blocked_seconds = 0.0
            self.end_or_step()

    def go_on(self) -> None:
        """In lock-step: return from step() once Proceed has come."""
        training = self.training
        if training.waits_since is not None and (training.proceed or training.finished):
            training.blocked_seconds = self.sim.now - training.waits_since
            training.waits_since = None
            self.end_or_step()

    def end_or_step(self) -> None:
        if not self.training.finished:
            self.begin_step()
        elif self.world.scenario.leaves_when_finished:
            self.leave("finished")

    def drain(self) -> tuple[list[tuple[int, int, int]], list[Key]]:
        """Adopt, then capture, at a boundary (replica.py)."""
        training = self.training
        inbox, training.inbox = training.inbox, []
        adopted: list[tuple[int, int, int]] = []
        captures: dict[Key, None] = {}
        for command in inbox:
            self.world.watchers.tell("commanded", self, command)
            match command:
                case Adopt(shard=shard, fragment=fragment, number=number):
                    publish, value = self.placed[shard, fragment]
                    training.bases[shard, fragment] = value, training.t_m
                    adopted.append((shard, fragment, number))
                    self.sim.note(self.name, f"adopts {shard}/{fragment} v{number}")
                    self.world.watchers.tell("adopted", self, (shard, fragment), publish, value)
                case Capture(slices=slices):
                    captures.update(dict.fromkeys(slices))
                case Start():
                    training.start = command
                case Proceed():
                    training.proceed = True
                case Finished():
                    training.finished = True
                    self.sim.note(self.name, "is finished")
                case Fail(exit_code=code, reason=reason):
                    self.fail(code, reason)
                case Tick() | JobLength():
                    pass
        for key in captures:
            base, since = training.bases[key]
            work = None
            if training.t_m > since:
                work = Work(self.slot, self.incarnation, key, since + 1, training.t_m)
            self.regions[key].theta = Theta(base, work)
            self.regions[key].counter += 2
        return adopted, list(captures)

    def tell_boundary(
        self, adopted: list[tuple[int, int, int]], captured: list[Key], *, again: bool
    ) -> None:
        """Tell the transport process, over the link."""
        training = self.training
        boundary = Boundary(
            own_steps=training.t_m,
            tokens=0 if again else self.step_tokens,
            loss=1.0,
            step_seconds=0.0 if again else training.step_seconds,
            blocked_seconds=0.0 if again else training.blocked_seconds,
            cursor=training.cursor,
            adopted=tuple(adopted),
            captured=tuple(captured),
            again=again,
            data_state=data_state_at(self.slot, training.cursor) if captured else None,
        )
        self.say_boundary(boundary)
