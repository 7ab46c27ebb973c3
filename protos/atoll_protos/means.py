"""The moving mean by which both sides measure times: steps, transfers, rounds.

mean <- mean + 0.2 * (sample - mean): a sample counts for half after three more. Shards compare the
learners' means with their own (docs/algorithm.md, Grace), so both sides need one weight.
"""

from dataclasses import dataclass
from typing import Final

SAMPLE_WEIGHT: Final = 0.2  # of a new sample


@dataclass(frozen=True, slots=True)
class MovingMean:
    """An immutable moving mean; `value` is None before the first sample."""

    value: float | None = None

    def add(self, sample: float) -> "MovingMean":
        if self.value is None:
            return MovingMean(sample)
        return MovingMean(self.value + SAMPLE_WEIGHT * (sample - self.value))

    def or_else(self, default: float) -> float:
        return default if self.value is None else self.value


NO_SAMPLES: Final = MovingMean()
