"""Notices tensors that began to train after the learner was opened: no other learner gets them.

What travels is fixed when a learner opens. Layers that are unfrozen later, modules that are added,
and parameter groups that come with them train on this learner alone, and are in no export.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_worker.model.naming import cleaner, shortened
from atoll_worker.ranks.boxes import TravellingTensor

STEPS_BETWEEN = 100
REMEDY = "freeze and unfreeze before the Learner is opened, the same in every learner"


@dataclass(slots=True)
class Unshared:
    """Looks at a learner's modules from its opening on; those of FSDP2 then have their shards.

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
        for optimizer, number, stepped in _stepped(self.optimizers):
            if id(stepped) not in known and stepped.requires_grad:
                shape = "x".join(map(str, stepped.shape)) or "one number"
                yield f"{type(optimizer).__name__}.param_groups[{number}] ({shape})"


def _stepped(optimizers: Sequence[Optimizer]) -> Iterator[tuple[Optimizer, int, Tensor]]:
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                yield optimizer, number, parameter
