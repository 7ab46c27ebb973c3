"""A learner's own work: steps, tokens, and the moving means that shards judge it by."""

import math
from dataclasses import dataclass
from typing import Any, Final

from atoll_worker.link.messages import Boundary

SAMPLE_WEIGHT: Final = 0.2  # of a new sample in a moving mean


@dataclass(slots=True, kw_only=True)
class Work:
    """Counted at step boundaries, since this process started."""

    own_steps: int = 0
    position: int = 0  # on the schedule: the tick at the start, then one more a step
    boundaries: int = 0
    tokens: int = 0
    cursor: int = 0  # of the slot's data
    loss: float = math.nan
    step_seconds: float = 0.0  # moving mean
    publish_seconds: float = 0.0  # moving mean, first chunk to trailer
    busy_seconds: float = 0.0  # outside learner.step()
    blocked_seconds: float = 0.0  # inside

    def count(self, boundary: Boundary) -> None:
        """One more step."""
        self.boundaries += 1
        self.own_steps = boundary.own_steps
        self.position += 1
        self.tokens += boundary.tokens
        self.loss, self.cursor = boundary.loss, boundary.cursor
        self.step_seconds = moving_mean(self.step_seconds, boundary.step_seconds)
        self.busy_seconds += boundary.step_seconds
        self.blocked_seconds += boundary.blocked_seconds

    def published_in(self, seconds: float) -> None:
        """A value took so long to arrive."""
        self.publish_seconds = moving_mean(self.publish_seconds, seconds)

    @property
    def busy_share(self) -> float:
        """Of wall time, outside learner.step()."""
        wall_seconds = self.busy_seconds + self.blocked_seconds
        return self.busy_seconds / wall_seconds if wall_seconds else 1.0

    def line(self, boundary: Boundary, tick: int, adopted: list[dict[str, Any]]) -> dict[str, Any]:
        """The telemetry of a boundary."""
        return {
            "t_m": self.own_steps,
            "tick": tick,
            "tokens": 0 if boundary.again else boundary.tokens,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "step_seconds": boundary.step_seconds,
            "blocked_seconds": boundary.blocked_seconds,
            "adopted": adopted,
        }


def moving_mean(mean: float, sample: float) -> float:
    """The mean after one more sample; the first one counts in full."""
    return sample if mean == 0.0 else mean + SAMPLE_WEIGHT * (sample - mean)
