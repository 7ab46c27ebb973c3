"""A learner without a job: the same side of a Learner as a Replica, with nobody behind it.

Every step is a tick. No process is started, no memory shared, and nothing ever changes the model.
"""

from dataclasses import dataclass

from torch import Tensor

from atoll_worker.link import messages
from atoll_worker.training.obeying import BoundaryWork
from atoll_worker.training.staging import DirectStaging, Scalar, Staging


@dataclass(slots=True, kw_only=True)
class Alone:
    """See the module; for the names see Replica."""

    steps: int
    staging: Staging
    start: messages.Start | None
    tick: int = 0
    proceed: bool = True
    finished: bool = False
    length: None = None

    def step_made(self) -> None:
        """Nothing is ever adopted."""

    def apply_commands(self) -> BoundaryWork:
        """There are none."""
        return BoundaryWork()

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        """Every step is a tick."""
        self.tick = boundary.own_steps
        self.finished = self.tick >= self.steps

    def settle(self, *, wait: bool = False) -> None:
        """Nothing is under way."""

    def wait(self, seconds_max: float) -> None:
        """Nothing comes."""

    def scalar(self, value: Tensor) -> Scalar:
        """Read a one-element tensor."""
        return self.staging.scalar(value)

    def names(self, work: BoundaryWork) -> tuple[str, ...]:
        """Nothing is ever adopted."""
        return ()

    def keep_final(self) -> BoundaryWork:
        """The model of a learner that is alone is its own."""
        return BoundaryWork()

    def leave(self, reason: str) -> None:
        """Nobody is told."""


def open_alone(steps: int) -> Alone:
    """One of so many steps."""
    start = messages.Start(incarnation=1, cursor=0, tick=0)
    return Alone(steps=steps, staging=DirectStaging(), start=start)
