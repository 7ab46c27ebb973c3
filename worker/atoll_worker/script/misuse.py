"""Tells whoever calls `step()` at the wrong places so, once, with the line of the script.

A script that never calls it trains alone without a word, and one that calls it for each micro-batch
ends with a fraction of its training. A hook on all optimizers of torch that step the model tells of
UNCOUNTED_MAX steps of one without a `step()`, IDLE_MAX calls of `step()` in a row without a step of
any (GradScaler skips a few at most), and IDLE_SHARE such calls of the first CALLS_MIN.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import nn
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from atoll_worker.errors import place_of_caller

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
