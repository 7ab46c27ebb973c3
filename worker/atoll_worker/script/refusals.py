"""What a learner is not made for: refused before anything starts, or warned of while it trains.

A script that never calls `step()` trains alone, and one that calls it for each micro-batch ends
with a fraction of its training. A hook on all optimizers of torch that step the model finds
UNCOUNTED_MAX steps of one without a `step()`, IDLE_MAX calls of `step()` in a row without a step of
any (GradScaler skips a few at most), and IDLE_SHARE such calls of the first CALLS_MIN.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from atoll_protos.errors import SpecError
from atoll_worker.errors import place_of_caller
from atoll_worker.model.parameters import cleaner, shortened
from atoll_worker.ranks import redistribution
from atoll_worker.ranks.redistribution import TravellingTensor

ONE_PROCESS = (
    "start one process for each learner (without torchrun) and give spec.regions as many learners "
    "as you have GPUs"
)


def check_ranks(environment: Mapping[str, str] | None = None) -> None:
    """Refuse one of several processes that do not know each other yet. Raises SpecError."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    given = os.environ if environment is None else environment
    rank, world_size = given.get("RANK", ""), given.get("WORLD_SIZE", "")  # of torch's launchers
    if rank.isdecimal() and world_size.isdecimal() and int(world_size) > 1:
        raise SpecError(
            "Learner",
            f"this is rank {rank} of {world_size} processes without a process group",
            "call torch.distributed.init_process_group() before you enter the Learner, on every "
            f"rank; or {ONE_PROCESS}",
        )


def check_accelerate(optimizers: object) -> None:
    """Refuse ranks of which accelerate knows one alone: nothing would add up their gradients.

    `optimizers`: one or several, perhaps what `Accelerator.prepare` has made of them.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    ranks = torch.distributed.get_world_size()
    for optimizer_ in optimizers if isinstance(optimizers, Sequence) else (optimizers,):
        state = getattr(optimizer_, "accelerator_state", None)
        if (known := getattr(state, "num_processes", ranks)) != ranks:
            remedy = "without GPUs give Accelerator(cpu=True)"
            raise SpecError("Learner", f"accelerate knows {known} of {ranks} processes", remedy)


def modules_of(model: object) -> tuple[nn.Module, ...]:
    """Return the model, or this process's parts of it (pipeline stages). Raises SpecError."""
    parts = tuple(model) if isinstance(model, Sequence) else (model,)
    for part in parts:
        check_module(part)
    if not parts:
        raise SpecError("model", "is an empty list", "give the model that is trained")
    return parts


def check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        remedy = "give the model itself, before any optimizer: Learner(model, optimizer)"
        raise SpecError("model", f"{type(model).__name__} is no torch.nn.Module", remedy)
    redistribution.check_module(model)


def check_model(model: nn.Module, *, may_be_cut: bool = False) -> None:
    """Refuse parameters that cannot travel whatever their dtype. Raises SpecError."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if redistribution.is_distributed(tensor) and not may_be_cut:
            problem = "is a DTensor, of which each process holds a part (FSDP2, tensor parallel)"
            raise SpecError(f"model.{name}", problem, "give the whole model in one process")
        if is_lazy(tensor):
            remedy = "run one batch through the model before you open the Learner"
            raise SpecError(f"model.{name}", "has no shape yet (a lazy module)", remedy)
        if tensor.device.type == "meta":
            remedy = "load or initialise the model before you open the Learner"
            raise SpecError(f"model.{name}", "is on the meta device and has no values", remedy)


def is_cut(models: Sequence[nn.Module]) -> bool:
    """Whether a parameter is a DTensor, of which this process may hold a part only."""
    return any(
        redistribution.is_distributed(each) for model in models for each in model.parameters()
    )


def trains(models: Sequence[nn.Module]) -> bool:
    """Whether a parameter is trainable; none is in a stage of a pipeline that is frozen."""
    return any(each.requires_grad for model in models for each in model.parameters())


UNCOUNTED_MAX: Final = 20
IDLE_MAX: Final = 3
CALLS_MIN, IDLE_SHARE = 20, 1 / 3
CALLS_SURE: Final = 100
COMPILER: Final = "torch._dynamo"  # loaded where anything is compiled
REMEDY: Final = "call it once after each optimizer.step(), with the tokens of all its micro-batches"


@dataclass(slots=True, kw_only=True)
class StepWatch:
    """Looks at one Learner's steps; `given` are the optimizers that it was given."""

    models: Sequence[nn.Module]
    given: Sequence[Optimizer]
    tell: Callable[[str], object]
    hook: RemovableHandle | None = None
    ours: dict[Optimizer, bool] = field(default_factory=dict)  # whether it steps the model
    uncounted: dict[Optimizer, int] = field(default_factory=dict)  # steps since the last call
    calls: int = 0
    idle: int = 0  # calls without a step of an optimizer
    idle_in_a_row: int = 0

    def begin(self) -> None:
        self.hook = register_optimizer_step_post_hook(self._stepped)

    def end(self) -> None:
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
            self.ours.clear()
            self.uncounted.clear()

    def called(self) -> None:
        if self.hook is None:
            return
        self.calls += 1
        knows = any(self.ours.values()) or (bool(self.given) and COMPILER not in sys.modules)
        idle = knows and not self.uncounted
        self.uncounted.clear()
        self.idle += idle
        self.idle_in_a_row = self.idle_in_a_row + 1 if idle else 0
        how = ""
        if self.idle_in_a_row == IDLE_MAX:
            how = f"{IDLE_MAX} times in a row without an optimizer step before it"
        elif self.calls == CALLS_MIN and self.idle >= IDLE_SHARE * CALLS_MIN:
            how = f"{self.calls} times for {self.calls - self.idle} optimizer steps"
        if how or self.calls == CALLS_SURE:
            self.end()
        if how:
            self.tell(f"learner.step() was called {how}{place_of_caller()}: {REMEDY}")

    def _stepped(self, optimizer: Optimizer, *_: object) -> None:
        if is_compiling() or not self._is_ours(optimizer):
            return
        count = self.uncounted[optimizer] = self.uncounted.get(optimizer, 0) + 1
        if count == UNCOUNTED_MAX:
            self.end()
            self.tell(
                f"{count} optimizer steps were made without learner.step(){place_of_caller()}:"
                f" {REMEDY}, or let learner.follow(optimizer, tokens=...) do it"
            )

    def _is_ours(self, optimizer: Optimizer) -> bool:
        if optimizer not in self.ours:
            model = {id(each) for module in self.models for each in module.parameters()}
            stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
            self.ours[optimizer] = optimizer in self.given or not stepped.isdisjoint(model)
        return self.ours[optimizer]


STEPS_BETWEEN = 100
EARLIER = "freeze and unfreeze before the Learner is opened, the same in every learner"


@dataclass(slots=True)
class Unshared:
    """Notices tensors that began to train after the learner was opened: no other learner gets them.

    What travels is fixed when a learner opens. Layers that are unfrozen later, modules that are
    added, and parameter groups that come with them train on this learner alone, and are in no
    export.

    `known`: the model's parameters, for which FSDP2 may have others at any moment, and what its
    optimizers stepped at the opening: of f32 masters that the model lacks nothing is said.
    """

    models: Sequence[nn.Module]
    places: Sequence[TravellingTensor]
    optimizers: Sequence[Optimizer] = ()
    known: set[int] = field(init=False)  # ids
    told: set[str] = field(default_factory=set)
    steps: int = 0

    def __post_init__(self) -> None:
        self.known = {id(each) for model in self.models for each in model.parameters()}
        self.known |= {id(each) for _, _, each in _stepped(self.optimizers)}

    def step_made(self) -> str:
        """Return the warning, if a look is due and finds something new; else empty."""
        self.steps += 1
        if self.steps % STEPS_BETWEEN:
            return ""
        new = [name for name in self._found() if name not in self.told]
        self.told.update(new)
        if not new:
            return ""
        return f"trained here only, neither merged nor exported: {shortened(new)}; {EARLIER}"

    def _found(self) -> Iterator[str]:
        travelling = {id(getattr(place.module, place.attribute)) for place in self.places}
        known = set(self.known)
        for model in self.models:
            clean = cleaner(model)
            for name, parameter in model.named_parameters():
                known.add(id(parameter))
                if parameter.requires_grad and id(parameter) not in travelling:
                    yield clean(name)
        for optimizer, number, stepped in _stepped(self.optimizers):
            if id(stepped) not in known and stepped.requires_grad:
                shape = "x".join(map(str, stepped.shape)) or "one number"
                yield f"{type(optimizer).__name__}.param_groups[{number}] ({shape})"


def _stepped(optimizers: Sequence[Optimizer]) -> Iterator[tuple[Optimizer, int, Tensor]]:
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                yield optimizer, number, parameter
