"""The optimizers and schedules of a script: looked through, checked, followed, moved.

The learners of a job must use the same rate at the same time, although each has its own count of
steps. So a schedule is moved once per tick (rule 8). Trainers step the schedulers that they are
given, and most compute a rate from the one before, so on one that Atoll moves `step()` does
nothing.

The rate is put into the optimizer's groups again before each of its steps, since a trainer may have
a schedule of its own; a momentum only if one of our schedules moves it (OneCycleLR does).
"""

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, SupportsFloat, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from atoll_protos.errors import SpecError
from atoll_worker.ranks.redistribution import TravellingTensor

Settings: TypeAlias = Mapping[str, Mapping[str, object]]  # by the names of tensors
COMPARED: Final = (
    *("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    *("amsgrad", "alpha", "centered", "rho", "lr_decay", "decoupled_weight_decay"),
)


def unwrapped(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside wrappers (accelerate, Lightning); SpecError for none."""
    found = optimizer
    while not hasattr(found, "_optimizer_step_post_hooks") and hasattr(found, "optimizer"):
        found = found.optimizer
    if not isinstance(found, Optimizer) or not hasattr(found, "_optimizer_step_post_hooks"):
        raise SpecError(
            "optimizer",
            f"{type(optimizer).__name__} is no torch.optim.Optimizer",
            "leave the optimizer out, call learner.step() after each of its steps, and register "
            "learner.on_adopt(fn) if it keeps copies of the parameters",
        )
    return found


def listed(given: Any) -> tuple[Optimizer, ...]:
    """One optimizer, a sequence of several, or none, as a tuple of torch optimizers."""
    if given is None:
        return ()
    return tuple(map(unwrapped, given if isinstance(given, Sequence) else (given,)))


def check(optimizers: Iterable[Optimizer], models: Sequence[nn.Module], *, told: bool) -> None:
    """Raise SpecError for an optimizer of another model: training would silently do nothing.

    One that steps copies (f32 masters) is right if the user is `told` of adoptions by `on_adopt`.
    """
    ours = {id(parameter) for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        stepped = {
            id(parameter) for group in optimizer.param_groups for parameter in group["params"]
        }
        if stepped.isdisjoint(ours) and not told:
            raise SpecError(
                "optimizer",
                f"{type(optimizer).__name__} steps none of the model's parameters",
                "build it from the parameters of the model that you give to Learner; if it steps "
                "copies of them, register learner.on_adopt(fn) before entering, where fn copies "
                "the model's values into them",
            )


def settings(optimizers: Iterable[Optimizer], places: Sequence[TravellingTensor]) -> Settings:
    """With which settings each tensor that travels is stepped here, by its name."""
    names = {id(getattr(place.module, place.attribute)): place.spec.name for place in places}
    found: dict[str, dict[str, object]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            kept: dict[str, object] = {"class": type(optimizer).__name__}
            kept |= {key: _plain(group[key]) for key in COMPARED if key in group}
            found |= {
                names[id(parameter)]: kept
                for parameter in group["params"]
                if id(parameter) in names
            }
    return found


def check_alike(said: Sequence[Settings]) -> None:
    """Refuse ranks that step one tensor differently: its replicas would drift apart. SpecError."""
    first: dict[str, int] = {}
    for rank, theirs in enumerate(said):
        for name, kept in theirs.items():
            other = first.setdefault(name, rank)
            known = said[other][name]
            for key in (*known, *kept):
                one, two = known.get(key, "nothing"), kept.get(key, "nothing")
                if one != two:
                    raise SpecError(
                        "optimizer",
                        f"the ranks step {name} with another {key}: {one} on rank {other}, {two}"
                        f" on {rank}",
                        "build the optimizer with the same settings on every rank",
                    )


def _plain(value: object) -> object:
    """Return a setting as a value that can be compared: some are tensors of one element."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value if value is None or isinstance(value, bool | int | float) else repr(value)


@dataclass(slots=True)
class Hooks:
    """What one Learner has registered with optimizers, until `close`."""

    followed: Optimizer | None = None
    handles: list[RemovableHandle] = field(default_factory=list)
    announced: set[int] = field(default_factory=set)  # ids of those whose steps are said before

    def follow(self, optimizer: Optimizer, count: Callable[[], object]) -> None:
        """Call `count` after every step that `optimizer` has really made; SpecError for a second.

        GradScaler does not call an optimizer whose gradients are not finite. A fused one it does
        call, with `found_inf`, and the kernel skips the step; reading that waits for the device.
        """
        if self.followed is not None:
            remedy = "follow one: that which makes the last step where several step together"
            raise SpecError("follow", "an optimizer is followed already", remedy)
        self.followed = optimizer

        def hook(stepped: Optimizer, *_: object) -> None:
            found_inf = getattr(stepped, "found_inf", None)
            if found_inf is None or not float(found_inf):
                count()

        self.handles.append(optimizer.register_step_post_hook(hook))

    def announce(self, optimizer: Optimizer, begin: Callable[[], object]) -> None:
        """Call `begin` before each step of it, once however often it is announced."""

        def hook(*_: object) -> None:
            begin()

        if id(optimizer) not in self.announced:
            self.announced.add(id(optimizer))
            self.handles.append(optimizer.register_step_pre_hook(hook))

    def close(self) -> None:
        while self.handles:
            self.handles.pop().remove()


TRAINERS = ("lightning", "pytorch_lightning", "transformers")  # that step what they are given
RATE = "lr"
MOVABLE = (RATE, "momentum", "betas")  # what torch's schedulers may write into a group

Factor: TypeAlias = Callable[[float], float]
Group: TypeAlias = dict[str, Any]


class Scheduler(Protocol):
    """Any `torch.optim.lr_scheduler` whose `step()` needs no argument, or a wrapper of one."""

    def step(self) -> None: ...


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
        self.values = [
            {key: deepcopy(group[key]) for key in MOVABLE if key in group}
            for group in self.optimizer.param_groups
        ]

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
    """A torch scheduler that is moved to the job's tick, never back."""

    def __init__(self, scheduler: object, ticks_max: int | None) -> None:
        self.scheduler = movable(scheduler)
        self.optimizers = (unwrapped(self.scheduler.optimizer),)
        self.ticks_max = end_of(self.scheduler, ticks_max)
        self.done = self.position = int(getattr(self.scheduler, "last_epoch", 0))
        self.own_class = type(self.scheduler)
        self.scheduler.__class__ = held(self.own_class)
        self.warned = False

    def move_to(self, tick: int, progress: float) -> None:
        found = getattr(self.scheduler, "last_epoch", self.position)
        if found != self.position and not self.warned:  # load_state_dict does it
            self.warned = True
            reason = (
                f"{self.own_class.__name__} follows the job's tick, but something else has moved "
                f"it from {self.position} to {found}, so that its rates are those of another tick. "
                "Do not load a state into a scheduler that you give to learner.schedule()"
            )
            warnings.warn(reason, stacklevel=2)
        while self.done < min(tick, self.ticks_max):
            self.own_class.step(self.scheduler)
            self.done += 1
        self.position = getattr(self.scheduler, "last_epoch", self.position)

    def close(self) -> None:
        self.scheduler.__class__ = self.own_class


class ProgressSchedule:
    """A function of the job's progress (0.0 to 1.0) to a factor of every group's initial rate."""

    def __init__(self, factor: Factor, optimizers: Sequence[Optimizer], *, trains: bool) -> None:
        self.factor, self.optimizers = factor, tuple(optimizers)
        if trains and not self.optimizers:
            remedy = "give the optimizer to Learner, or call learner.follow(optimizer) before"
            raise SpecError("schedule", "a function needs an optimizer whose rates it sets", remedy)

    def move_to(self, tick: int, progress: float) -> None:
        factor = self.factor(progress)
        if not isinstance(factor, SupportsFloat) or not math.isfinite(factor):
            problem = f"the function gave {factor} for the progress {progress}"
            raise SpecError("schedule", problem, "let it return a factor of the learning rate")
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
        """Take one more; SpecError for what cannot follow a tick. `trains`: needs an optimizer."""
        item: TickSchedule | ProgressSchedule
        if callable(given) and not hasattr(given, "step"):
            item = ProgressSchedule(given, optimizers, trains=trains)
        else:
            item = TickSchedule(given, ticks_max)
        self.items.append(item)
        known = {id(rate.optimizer) for rate in self.rates}
        self.rates += [
            Rates(optimizer) for optimizer in item.optimizers if id(optimizer) not in known
        ]
        self.tick = None

    def move_to(self, tick: int, progress: float) -> None:
        """torch warns of schedule steps before the optimizer's first, as who joins late makes."""
        if self.tick == tick:
            return
        self.tick = tick
        for rate in self.rates:
            rate.restore()
            rate.note()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*scheduler\.step\(\)` before", UserWarning)
            for item in self.items:
                item.move_to(tick, progress)
        for rate in self.rates:
            rate.end_move()

    def close(self) -> None:
        for item in self.items:
            item.close()
        for rate in self.rates:
            rate.hook.remove()
        self.items.clear()
        self.rates.clear()


def movable(given: Any) -> Any:
    """Return the torch scheduler inside accelerate's wrapper, if any; SpecError if it is none."""
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
    parameters = inspect.signature(given.step).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = any(
        parameter.default is parameter.empty and parameter.kind in kinds for parameter in parameters
    )
    if isinstance(given, ReduceLROnPlateau) or required:
        problem = f"{name} moves by a metric, which differs between the learners"
        remedy = "use a schedule that depends on the position alone, or a function of the progress"
        raise SpecError("schedule", problem, remedy)
    if getattr(type(given), "held_by_atoll", False):
        raise SpecError("schedule", f"this {name} is followed already", "give it once")
    return given


def end_of(scheduler: Any, ticks_max: int | None) -> float:
    """Return the last position; OneCycleLR's is total_steps - 1. SpecError if the job is longer."""
    own = getattr(scheduler, "total_steps", None)
    if not isinstance(own, int):
        return math.inf if ticks_max is None else ticks_max
    if ticks_max is not None and own < ticks_max:
        problem = f"{type(scheduler).__name__} ends after {own} steps, the job after {ticks_max}"
        raise SpecError("schedule", problem, f"build it for {ticks_max} steps: atoll.job().steps")
    return own - 1


def held(own: type[Any]) -> type[Any]:
    """`own` with a `step()` that does nothing: only Atoll moves a scheduler of this class.

    The class is changed and not the attribute, since a scheduler's attributes are its saved state.
    """

    def step(self: Any, *_: object, **named: object) -> None:
        module = str(sys._getframe(1).f_globals.get("__name__"))
        if module.partition(".")[0] in TRAINERS:
            problem = f"{module} also steps the {own.__name__} that learner.schedule() moves"
            remedy = "give it to one: leave it out of the trainer, or do not call schedule()"
            raise SpecError("schedule", problem, remedy)
        if not self.__class__.said:
            self.__class__.said = True
            follows = "was given to learner.schedule() and follows the job's tick"
            warnings.warn(f"{own.__name__} {follows}: step() of it does nothing", stacklevel=2)

    extras = {"step": step, "held_by_atoll": True, "said": False, "__module__": own.__module__}
    return type(own.__name__, (own,), extras)


def _put(group: Group, key: str, value: Any) -> None:
    """Write in place where the group has a tensor (capturable, compiled optimizers read it)."""
    here = group.get(key)
    if isinstance(here, Tensor):
        here.fill_(value)
    elif here != value:
        group[key] = value
