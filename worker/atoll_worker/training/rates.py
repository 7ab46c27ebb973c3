"""Learning-rate schedules that follow the job's tick instead of this learner's own steps.

The learners of a job must use the same rate at the same time, although each has its own count of
steps: a slow one has done fewer, and one that was started again has done none. The job's tick is
the same for all, so a schedule is moved once per tick (docs/protocol.md, rule 8).
"""

import warnings
from dataclasses import dataclass, field
from typing import Protocol


class Scheduler(Protocol):
    """Any `torch.optim.lr_scheduler` whose `step()` needs no argument."""

    last_epoch: int  # torch's name for the number of its steps

    def step(self) -> None:
        """One tick further."""


@dataclass(slots=True)
class TickSchedules:
    """The schedules that one learner was given."""

    schedulers: list[Scheduler] = field(default_factory=list)

    def move_to(self, tick: int, *, optimizer_has_stepped: bool) -> None:
        """Bring every schedule up to `tick`; never back.

        A learner that joins late makes many schedule steps here before its optimizer's first step.
        torch warns of that order, which is right here, so the warning is silenced.
        """
        if all(scheduler.last_epoch >= tick for scheduler in self.schedulers):
            return
        with warnings.catch_warnings():
            if not optimizer_has_stepped:
                warnings.simplefilter("ignore", UserWarning)
            for scheduler in self.schedulers:
                while scheduler.last_epoch < tick:
                    scheduler.step()
