"""An optimizer with f32 masters of its own, as apex and TransformerEngine have them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class SgdWithMasters(Optimizer):
    """Steps f32 copies of the parameters and writes them, rounded, into the model."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.masters = {each: each.detach().float().clone() for each in self.parameters()}

    def parameters(self) -> list[nn.Parameter]:
        return [each for group in self.param_groups for each in group["params"]]

    def reload_masters(self, names: tuple[str, ...] = ()) -> None:
        for each in self.parameters():
            self.masters[each].copy_(each.detach())

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        del closure
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self.masters[each].sub_(each.grad.float(), alpha=group["lr"])
                    each.copy_(self.masters[each])
