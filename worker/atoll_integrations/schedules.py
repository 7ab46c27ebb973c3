"""Learning-rate schedules of a trainer that moves them itself, once per step of its own.

The learner moves them instead (`Learner.schedule`); what the trainer has may be stepped at will.
"""

from typing import Any

from torch import Tensor


class NotStepped:
    """A scheduler as its trainer sees it: neither `step()` nor a checkpoint moves it."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *arguments: Any, **keywords: Any) -> None:
        """Nothing: the learner has moved the schedule to the job's tick."""

    def load_state_dict(self, state: Any) -> None:
        """Nothing: the position is the job's, not that of a checkpoint."""

    def restore_rates(self) -> None:
        """Put the schedule's own rates into the optimizer: a checkpoint may have put its there."""
        if not hasattr(self.scheduler, "get_last_lr"):
            return
        rates = self.scheduler.get_last_lr()
        for group, rate in zip(self.scheduler.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # asked for before it is set, by pickle and copy
            raise AttributeError(name)
        return getattr(self.scheduler, name)


class EveryTicks(NotStepped):
    """A scheduler that moves once in `period` steps: one of epochs, or with a frequency."""

    def __init__(self, scheduler: Any, period: int) -> None:
        super().__init__(scheduler)
        self.period = period
        self.ticks = 0
        # The length of a scheduler that has one, in ticks as everything else here.
        own = getattr(scheduler, "total_steps", None)
        self.total_steps = None if own is None else own * period

    def step(self, *arguments: Any, **keywords: Any) -> None:
        self.ticks += 1
        if self.ticks % self.period == 0 and self.ticks != self.total_steps:
            self.scheduler.step(*arguments, **keywords)
