"""Notices tensors that began to train after the learner was opened: no other learner gets them.

What travels is fixed when a learner opens. Layers that are unfrozen later, modules that are added,
and parameter groups of an optimizer that come with them train on this learner alone, and are in no
export. Nothing fails, so the learner looks every STEPS_BETWEEN steps, and says it once per tensor.

A look goes through the model's parameters by name and reads flags: no tensor is touched. Of several
ranks the head looks at its own modules; of a pipeline every rank does, since they differ.
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
    """The tensors of one learner that travel, and those that were told of.

    `known`: the model's parameters, and what its optimizers stepped, when the learner was opened.
    FSDP2 may have others in their place at any moment, while optimizers have these.
    """

    models: Sequence[nn.Module]
    places: Sequence[Place]
    optimizers: Sequence[Optimizer] = ()
    known: set[int] = field(default_factory=set)  # ids
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
        known = set(self.known)
        for model in self.models:
            clean = cleaner(model)
            for name, parameter in model.named_parameters():
                known.add(id(parameter))
                if parameter.requires_grad and id(parameter) not in travelling:
                    yield clean(name)
        for optimizer in self.optimizers:
            for number, stepped in _of(optimizer):
                if id(stepped) not in known and stepped.requires_grad:
                    shape = "x".join(map(str, stepped.shape)) or "one number"
                    yield f"{type(optimizer).__name__}.param_groups[{number}] ({shape})"


def unshared_of(
    models: Sequence[nn.Module], places: Sequence[Place], optimizers: Sequence[Optimizer]
) -> Unshared:
    """Look at the modules that are about to be trained; those of FSDP2 have their shards.

    What an optimizer steps already and the model does not have (f32 masters) is its own affair.
    """
    known = {id(parameter) for model in models for parameter in model.parameters()}
    known |= {id(each) for one in optimizers for _, each in _of(one)}
    return Unshared(models=models, places=places, optimizers=optimizers, known=known)


def _of(optimizer: Optimizer) -> Iterator[tuple[int, Tensor]]:
    """(number of the group, parameter)."""
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield number, parameter
