"""The chips inside of learners: slices fail and come back, and their learner stands meanwhile.

A learner computes in steps. While it computes and while it stands each slice of chips fails at
random, and a slice that has failed is repaired after a random time (both exponential). Elastic: a
step whose slices are lost or back is finished and counts; then the learner stands until it is
spread over the slices that it has. What is lost or back while it stands is taken in with that.
Not elastic: after a loss all chips of a job stand until it runs again on spare ones.

`FITTED` is one set of parameters for all cells of `published.GOODPUT`. The paper gives the rate of
failures and the names of the others, without values.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

YEAR_SECONDS: Final = 365.25 * 86_400

Counts = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """How chips fail, and what that costs. `fails_seconds`: of one chip, the mean (published)."""

    fails_seconds: float = YEAR_SECONDS
    slice_chips: int  # that are lost together
    repair_seconds: float  # of a slice, the mean
    loss_seconds: float  # that an elastic learner stands after a loss
    return_seconds: float  # and after a return
    restart_seconds: float  # that a job which is not elastic stands after a loss
    step_seconds: float

    @property
    def slice_fails_seconds(self) -> float:
        return self.fails_seconds / self.slice_chips

    @property
    def up_share(self) -> float:
        """Of the slices, the mean."""
        return self.slice_fails_seconds / (self.slice_fails_seconds + self.repair_seconds)


FITTED: Final = Machines(
    slice_chips=256,
    repair_seconds=4075,
    loss_seconds=17,
    return_seconds=3,
    restart_seconds=78.5,
    step_seconds=2,
)
# Atoll's own times in their place. A learner of several hosts that has lost one waits 10 s for
# another one (docs/learners.md), and starts again within the time that `python -m bench.restart`
# measures; with a host that is back it starts again at once.
WAIT_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 6.0
ATOLL: Final = replace(
    FITTED, loss_seconds=WAIT_SECONDS + RESTART_SECONDS, return_seconds=RESTART_SECONDS
)


class Chips:
    """Learners of equal size, each on machines of its own; all begin in the mean state."""

    def __init__(
        self,
        machines: Machines,
        chips: float,
        learners: int,
        rng: np.random.Generator,
        *,
        elastic: bool = True,
    ) -> None:
        self.machines, self.rng, self.elastic = machines, rng, elastic
        self.slices = max(1, round(chips / machines.slice_chips))
        self.up: Counts = rng.binomial(self.slices, machines.up_share, learners)

    def step(self) -> tuple[Seconds, Seconds]:
        """All compute one step: by learner, the share of its chips, and seconds that it stands."""
        share = self.up / self.slices if self.elastic else np.ones(len(self.up))
        lost, back = self._pass(np.full(len(self.up), self.machines.step_seconds))
        machines = self.machines
        if self.elastic:
            stands = np.where(back > 0, machines.return_seconds, 0.0)
            stands = np.where(lost > 0, machines.loss_seconds, stands)
        else:
            stands = np.where(lost > 0, machines.restart_seconds, 0.0)
        self._pass(stands)
        return share, stands

    def _pass(self, seconds: Seconds) -> tuple[Counts, Counts]:
        """Slices that are lost and that are back after these seconds."""
        machines, rng = self.machines, self.rng
        running = self.up if self.elastic else np.full(len(self.up), self.slices)
        lost = rng.binomial(running, -np.expm1(-seconds / machines.slice_fails_seconds))
        back = rng.binomial(self.slices - self.up, -np.expm1(-seconds / machines.repair_seconds))
        self.up = np.clip(self.up + back - lost, 0, self.slices)
        return lost, back


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Of one learner in the long run, 0 to 1."""

    trained: float  # of its chips' time
    computes: float  # of its own time


def expected(machines: Machines, chips: float, *, elastic: bool = True) -> Expected:
    """What `Chips` comes to, with the mean number of slices in place of one that moves about it."""
    up = machines.up_share if elastic else 1.0
    rate = up * chips / machines.fails_seconds  # of losses, and in the mean of returns
    happens = -math.expm1(-rate * machines.step_seconds)  # in a step
    if elastic:
        stands = happens * machines.loss_seconds
        stands += (1 - happens) * happens * machines.return_seconds
    else:
        stands = happens * machines.restart_seconds
    computes = machines.step_seconds / (machines.step_seconds + stands)
    return Expected(trained=up * computes, computes=computes)


def uptime(machines: Machines, chips: float, learners: int) -> float:
    """The share of the time in which at least one of the learners computes."""
    stands = 1 - expected(machines, chips / learners).computes
    return 1 - stands**learners
