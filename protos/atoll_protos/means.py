"""The moving mean by which both sides measure times: steps, transfers, rounds.

mean <- mean + 0.2 * (sample - mean): an exponential moving mean, in which a sample counts for
half after three more (0.8^3 = 0.51). The first sample counts in full, so that a new process does
not begin with a mean of almost nothing. A mean without samples has no value; who needs a number
says which one stands for "not known yet".

Learners keep such means of their step and publish times and report them; shards compare them with
their own means of quorum, commit and transfer times to compute the grace and to find learners
that are too slow (docs/algorithm.md, Grace). Both sides must use one weight, or one would react
to a change before the other does.
"""

from dataclasses import dataclass
from typing import Final

SAMPLE_WEIGHT: Final = 0.2  # of a new sample


@dataclass(frozen=True, slots=True)
class MovingMean:
    """An immutable moving mean; `value` is None before the first sample."""

    value: float | None = None

    def add(self, sample: float) -> "MovingMean":
        """The mean with one more sample."""
        if self.value is None:
            return MovingMean(sample)
        return MovingMean(self.value + SAMPLE_WEIGHT * (sample - self.value))

    def or_else(self, default: float) -> float:
        """The mean, or `default` before the first sample."""
        return default if self.value is None else self.value


NO_SAMPLES: Final = MovingMean()
