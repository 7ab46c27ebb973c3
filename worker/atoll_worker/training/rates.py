"""Learning-rate schedules that follow the job's tick instead of this learner's own steps."""

import warnings
from dataclasses import dataclass, field
from typing import Protocol


class Scheduler(Protocol):
    """Any `torch.optim.lr_scheduler` whose `step()` needs no argument."""

    last_epoch: int  # torch's name for the number of its steps

    def step(self) -> None:
        """One tick further."""


@dataclass(slots=True)
class Followers:
    """The schedules of one learner."""

    schedulers: list[Scheduler] = field(default_factory=list)

    def move(self, tick: int, *, optimizer_has_stepped: bool) -> None:
        """Bring every schedule up to `tick`, never back (PROTOCOL.md, rule 8).

        A learner that joins late makes many steps here before its optimizer's first, of which
        torch would warn.
        """
        if all(scheduler.last_epoch >= tick for scheduler in self.schedulers):
            return
        with warnings.catch_warnings():
            if not optimizer_has_stepped:
                warnings.simplefilter("ignore", UserWarning)
            for scheduler in self.schedulers:
                while scheduler.last_epoch < tick:
                    scheduler.step()
