"""Learning-rate schedules that follow the job's tick instead of this learner's own steps.

The learners of a job must use the same rate at the same time, although each has its own count of
steps: a slow one has done fewer, and one that was started again has done none. The job's tick is
the same for all, so a schedule is moved once per tick (docs/protocol.md, rule 8).

A schedule is a torch scheduler or a function of the progress:

- `TickSchedule` moves a torch scheduler. Most of them compute a rate from the one before and cannot
  go back, so nobody else may move it: trainers step the schedulers that they are given (after every
  step, or every epoch). On a scheduler that Atoll moves, `step()` therefore does nothing, and warns
  once. It stops at the job's length, which the tick passes by a few: torch's OneCycleLR raises an
  error beyond its end.
- `ProgressSchedule` calls a function fn(progress from 0.0 to 1.0) -> factor of the initial rate.

Both put the rate into the optimizer's groups again right before each of its steps, since a trainer
may also have a schedule of its own, and that writes into the groups too. A momentum is put there
again only if one of our schedules moves it (OneCycleLR does): otherwise it is the script's own.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat, TypeAlias

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from atoll_protos.errors import SpecError
from atoll_worker.training.optimizers import unwrapped

RATE = "lr"
MOVABLE = (RATE, "momentum", "betas")  # what torch's schedulers may write into a group

Factor: TypeAlias = Callable[[float], float]
Group: TypeAlias = dict[str, Any]


class Scheduler(Protocol):
    """Any `torch.optim.lr_scheduler` whose `step()` needs no argument, or a wrapper of one."""

    def step(self) -> None:
        """One tick further."""


@dataclass(slots=True)
class Rates:
    """What the schedules have put into an optimizer's groups, to be put there before each step."""

    optimizer: Optimizer
    values: list[Group] = field(default_factory=list)
    moved: set[str] = field(default_factory=lambda: {RATE})
    hook: RemovableHandle = field(init=False)

    def __post_init__(self) -> None:
        self.note()
        self.hook = self.optimizer.register_step_pre_hook(self.restore)

    def note(self) -> None:
        """The groups as they are now are right."""
        groups = self.optimizer.param_groups
        self.values = [
            {key: _copy(group[key]) for key in MOVABLE if key in group} for group in groups
        ]

    def begin_move(self) -> None:
        """Schedules are about to write."""
        self.restore()
        self.note()

    def end_move(self) -> None:
        """Schedules have written; what differs now is theirs from now on."""
        before = self.values
        self.note()
        for old, new in zip(before, self.values, strict=True):
            self.moved.update(key for key in old if key != RATE and old[key] != new[key])

    def restore(self, *_: object) -> None:
        """Put the noted values back; groups that were added since are left as they are."""
        for group, values in zip(self.optimizer.param_groups, self.values, strict=False):
            for key, value in values.items():
                if key in self.moved:
                    _put(group, key, value)


class TickSchedule:
    """A torch scheduler that is moved to the job's tick; see the module."""

    def __init__(self, scheduler: object, ticks_max: int | None) -> None:
        self.scheduler = _movable(scheduler)
        self.optimizers = (unwrapped(self.scheduler.optimizer),)
        self.ticks_max = _end_of(self.scheduler, ticks_max)
        self.done = self.position = int(getattr(self.scheduler, "last_epoch", 0))
        self.own_class = type(self.scheduler)
        self.scheduler.__class__ = _held(self.own_class)
        self.warned = False

    def move_to(self, tick: int, progress: float) -> None:
        """Step the scheduler until it is at `tick`; never back."""
        self._look_for_others()
        while self.done < min(tick, self.ticks_max):
            self.own_class.step(self.scheduler)
            self.done += 1
        self.position = getattr(self.scheduler, "last_epoch", self.position)

    def close(self) -> None:
        """Give `step()` back to the scheduler."""
        self.scheduler.__class__ = self.own_class

    def _look_for_others(self) -> None:
        """Say once that somebody has moved the scheduler all the same (load_state_dict does)."""
        found = getattr(self.scheduler, "last_epoch", self.position)
        if found != self.position and not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.own_class.__name__} follows the job's tick, but something else has moved "
                f"it from {self.position} to {found}, so that its rates are those of another tick. "
                "Do not load a state into a scheduler that you give to learner.schedule()",
                stacklevel=2,
            )


class ProgressSchedule:
    """A function of the job's progress that sets the rate of every group; see the module."""

    def __init__(self, factor: Factor, optimizers: Sequence[Optimizer], *, trains: bool) -> None:
        self.factor, self.optimizers = factor, tuple(optimizers)
        if trains and not self.optimizers:
            raise SpecError(
                "schedule",
                "a function needs an optimizer whose rates it sets",
                "give the optimizer to Learner, or call learner.follow(optimizer) before",
            )

    def move_to(self, tick: int, progress: float) -> None:
        """Every group's initial rate times the factor at `progress`."""
        factor = self.factor(progress)
        if not isinstance(factor, SupportsFloat) or not math.isfinite(factor):
            raise SpecError(
                "schedule",
                f"the function gave {factor} for the progress {progress}",
                "let it return a factor of the learning rate",
            )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                # Torch's own name for it; it is saved with the optimizer's state. A number, since
                # a tensor on a device would have to be read at every tick.
                group["initial_lr"] = initial = float(group.get("initial_lr", group["lr"]))
                _put(group, "lr", initial * float(factor))

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class Schedules:
    """The schedules that one learner was given, and the rates of their optimizers."""

    items: list[TickSchedule | ProgressSchedule] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)
    tick: int | None = None  # at which they are; None: one of them is not there yet

    def add(
        self,
        given: object,
        *,
        ticks_max: int | None,
        optimizers: Sequence[Optimizer],
        trains: bool = True,
    ) -> None:
        """Take one more. Raises SpecError for what cannot follow a tick.

        A process that `trains` nothing needs no optimizer.
        """
        by_progress = callable(given) and not hasattr(given, "step")
        item = (
            ProgressSchedule(given, optimizers, trains=trains)  # type: ignore[arg-type]
            if by_progress
            else TickSchedule(given, ticks_max)
        )
        self.items.append(item)
        known = {id(each.optimizer) for each in self.rates}
        self.rates += [Rates(each) for each in item.optimizers if id(each) not in known]
        self.tick = None

    def move_to(self, tick: int, progress: float) -> None:
        """Bring all to this position of the job.

        A learner that joins late makes many schedule steps here before its optimizer's first step.
        torch warns of that order, which is right here, so the warning is silenced.
        """
        if self.tick == tick or not self.items:
            return
        self.tick = tick
        for each in self.rates:
            each.begin_move()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*scheduler\.step\(\)` before", UserWarning)
            for item in self.items:
                item.move_to(tick, progress)
        for each in self.rates:
            each.end_move()

    def close(self) -> None:
        """Leave schedulers and optimizers to others again."""
        for item in self.items:
            item.close()
        for each in self.rates:
            each.hook.remove()
        self.items.clear()
        self.rates.clear()


def _movable(given: object) -> Any:
    """The torch scheduler inside what was given (accelerate wraps it); SpecError if it is none."""
    while not hasattr(given, "last_epoch") and hasattr(given, "scheduler"):
        given = given.scheduler
    name = type(given).__name__
    if not callable(getattr(given, "step", None)) or not hasattr(given, "optimizer"):
        raise SpecError(
            "schedule",
            f"{name} is no learning-rate schedule",
            "give a torch.optim.lr_scheduler, or a function from the progress (0.0 to 1.0) to a "
            "factor of the learning rate",
        )
    if isinstance(given, ReduceLROnPlateau) or _needs_arguments(given):
        raise SpecError(
            "schedule",
            f"{name} moves by a metric, which differs between the learners",
            "use a schedule that depends on the position alone, or a function of the progress",
        )
    if getattr(type(given), "held_by_atoll", False):
        raise SpecError("schedule", f"this {name} is followed already", "give it once")
    return given


def _needs_arguments(scheduler: Any) -> bool:
    parameters = inspect.signature(scheduler.step).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.default is each.empty and each.kind in kinds for each in parameters)


def _end_of(scheduler: Any, ticks_max: int | None) -> float:
    """The last position to which it is moved. Raises SpecError if the job is longer than it.

    OneCycleLR has rates for the positions 0 to total_steps - 1; what it gives at total_steps lies
    on the way up again.
    """
    own = getattr(scheduler, "total_steps", None)
    if not isinstance(own, int):
        return math.inf if ticks_max is None else ticks_max
    if ticks_max is not None and own < ticks_max:
        raise SpecError(
            "schedule",
            f"{type(scheduler).__name__} ends after {own} steps, the job after {ticks_max}",
            f"build it for {ticks_max} steps: atoll.job().steps",
        )
    return own - 1


def _held(own: type[Any]) -> type[Any]:
    """`own` with a `step()` that does nothing: only Atoll moves a scheduler of this class.

    The class is changed and not the attribute, since a scheduler's attributes are its saved state.
    """

    def step(self: Any, *arguments: object, **named: object) -> None:
        """Do nothing; the schedule follows the job's tick."""
        del arguments, named
        if self.__class__.said:
            return
        self.__class__.said = True
        warnings.warn(
            f"{own.__name__} was given to learner.schedule() and follows the job's tick: step() of "
            "it does nothing",
            stacklevel=2,
        )

    extras = {"step": step, "held_by_atoll": True, "said": False, "__module__": own.__module__}
    return type(own.__name__, (own,), extras)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _put(group: Group, key: str, value: Any) -> None:
    """Write in place where the group has a tensor (capturable, compiled optimizers read it)."""
    here = group.get(key)
    if isinstance(here, Tensor):
        here.fill_(value)
    elif here != value:
        group[key] = value
