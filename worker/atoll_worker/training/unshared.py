"""Notices tensors that began to train after the learner was opened: no other learner gets them.

What travels is fixed when a learner opens. Layers that are unfrozen later, modules that are added,
and parameter groups of an optimizer that come with them train on this learner alone, and are in no
export. Nothing fails, so the learner looks every STEPS_BETWEEN steps, and says it once per tensor.

A look goes through the model's parameters by name and reads flags: no tensor is touched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_worker.training.naming import cleaner, shortened
from atoll_worker.training.parameters import Place

STEPS_BETWEEN = 100
REMEDY = "freeze and unfreeze before the Learner is opened, the same in every learner"


@dataclass(slots=True, kw_only=True)
class Unshared:
    """The tensors of one learner that travel, and those that were told of."""

    model: nn.Module
    places: Sequence[Place]
    optimizers: Sequence[Optimizer] = ()
    foreign: set[int] = field(default_factory=set)  # stepped from the beginning, not the model's
    told: set[str] = field(default_factory=set)
    steps: int = 0

    def step_made(self) -> str:
        """The warning, if a look is due and finds something new; else empty."""
        self.steps += 1
        if self.steps % STEPS_BETWEEN:
            return ""
        new = [name for name in self._found() if name not in self.told]
        self.told.update(new)
        if not new:
            return ""
        return f"trained here only, neither merged nor exported: {shortened(new)}; {REMEDY}"

    def _found(self) -> Iterator[str]:
        travelling = {id(getattr(each.module, each.attribute)) for each in self.places}
        clean, known = cleaner(self.model), set[int]()
        for name, parameter in self.model.named_parameters():
            known.add(id(parameter))
            if parameter.requires_grad and id(parameter) not in travelling:
                yield clean(name)
        known |= self.foreign
        for optimizer in self.optimizers:
            for number, stepped in _of(optimizer):
                if id(stepped) not in known and stepped.requires_grad:
                    shape = "x".join(map(str, stepped.shape)) or "one number"
                    yield f"{type(optimizer).__name__}.param_groups[{number}] ({shape})"


def unshared_of(
    model: nn.Module, places: Sequence[Place], optimizers: Sequence[Optimizer]
) -> Unshared:
    """Look at a model that is about to be trained.

    What an optimizer steps already and the model does not have (f32 masters) is its own affair.
    """
    own = {id(parameter) for parameter in model.parameters()}
    foreign = {id(each) for one in optimizers for _, each in _of(one)} - own
    return Unshared(model=model, places=places, optimizers=optimizers, foreign=foreign)


def _of(optimizer: Optimizer) -> Iterator[tuple[int, Tensor]]:
    """(number of the group, parameter)."""
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield number, parameter
