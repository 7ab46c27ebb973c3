"""Optimizers with f32 masters of their own (apex, TransformerEngine), and with 8-bit moments."""

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


class SgdIn8Bits(Optimizer):
    """Momentum in int8 with a scale for each tensor; f32 masters in its state if it has `masters`.

    Parameters in 16 bits are rounded at random, as such optimizers do, so that small steps count.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, *, masters: bool = False
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self.masters = masters

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        del closure
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self._step(each, self.state[each], group["lr"])

    def _step(self, parameter: nn.Parameter, state: dict[str, Any], lr: float) -> None:
        if not state:
            state["moment"] = torch.zeros_like(parameter, dtype=torch.int8)
            state["scale"] = torch.zeros(())
            if self.masters:
                state["master"] = parameter.detach().float().clone()
        moment = state["moment"].float() * state["scale"] * 0.9 + parameter.grad.float()  # type: ignore[union-attr]
        state["scale"] = moment.abs().max().clamp(min=1e-12) / 127
        state["moment"].copy_((moment / state["scale"]).round())
        value = state.get("master", parameter.detach().float()) - lr * moment
        if self.masters:
            state["master"].copy_(value)
        elif parameter.dtype == torch.bfloat16:
            noise = torch.randint(0, 1 << 16, value.shape, dtype=torch.int32)
            value = ((value.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32)
        parameter.copy_(value)
