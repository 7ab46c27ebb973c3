"""The job's clock as one shard counts it (rule 8); `atoll_protos.job.schedule` says what is due."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

TIMES_KEPT: Final = 32  # changes of the tick from which its rate is taken


@dataclass(slots=True, kw_only=True)
class StepCredit:
    """The steps that a learner can have made and that have not counted yet (rule 39)."""

    steps: float
    at: float  # monotonic seconds

    def spend(self, steps: int, now: float, seconds: float, steps_max: int) -> int:
        """Take what may count of `steps`; `seconds` is the shortest that one can take, 0: unknown.

        A message that was held up may carry at most `steps_max` of an earlier time.
        """
        grown = (now - self.at) / seconds if seconds else 0.0
        self.steps, self.at = min(self.steps, steps_max) + grown, now
        counted = min(steps, int(self.steps))
        self.steps -= counted
        return counted


@dataclass(slots=True, kw_only=True)
class JobClock:
    """The tick of rule 8; `ahead` counts positions above it, so most reports look at no others."""

    period: int
    tick: int = 0
    ahead: int | None = None  # positions above the tick; None: to be counted
    training: frozenset[str] = frozenset()  # as it was last given
    positions: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)  # by slot: as it counts; 0: unknown
    drawn_at: int = 0
    announced: int = 0  # the last tick that all sessions have got
    announced_at: float = 0.0
    # monotonic seconds and tick of the last changes, from which the rate is taken
    times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))
    credits: dict[str, StepCredit] = field(default_factory=dict)  # by slot
    step_seconds: float = 0.0  # the median of those that train; 0 while unknown
    steps_noted_at: float = 0.0  # monotonic seconds
    commits: int = 0  # of this process's rounds: its tick is that of its own learners

    @property
    def ticks_per_second(self) -> float:
        if len(self.times) < 2:  # noqa: PLR2004 - a rate needs two times
            return 0.0
        (first, low), (last, high) = self.times[0], self.times[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def advance(self, slot: str, steps: int) -> None:
        before = self.positions[slot]
        self.positions[slot] = before + steps
        if self.ahead is not None and before <= self.tick < before + steps:
            self.ahead += 1

    def set_training(self, slots: frozenset[str]) -> None:
        """A joiner enters where it says that it is, from t-1 to t; a change draws all in."""
        if slots is self.training:
            return
        self.training = slots
        if slots == self.positions.keys():
            return
        self.positions = {slot: self.positions.get(slot, self.tick - 1) for slot in sorted(slots)}
        self.take_in()

    def take_in(self) -> None:
        """All positions, up to what their learners say, which is never above the tick."""
        self.ahead = None
        self.positions = {
            slot: max(position, min(self.reached.get(slot, 0) or self.tick - 1, self.tick))
            for slot, position in self.positions.items()
        }
        self._draw_in()

    def raise_to(self, tick: int) -> None:
        """To a tick that was seen on another shard, or that a commit has reached; never back."""
        if tick > self.tick:
            self.tick, self.ahead = tick, None

    def update(self, quorum: int) -> bool:
        """Move the tick; says whether it moved. With fewer than K learners its rate is unknown."""
        before = self.tick
        if len(self.positions) < quorum:
            self.times.clear()
        elif self._is_ahead(quorum):
            largest_first = sorted(self.positions.values(), reverse=True)
            self.tick = largest_first[quorum - 1]
            self.ahead = None
        if self.tick >= self.drawn_at + self.period:
            self._draw_in()
        return self.tick > before

    def _is_ahead(self, quorum: int) -> bool:
        if self.ahead is None:
            self.ahead = sum(position > self.tick for position in self.positions.values())
        return self.ahead >= quorum

    def _draw_in(self) -> None:
        """To [t-1, t+H]: else a lost leader freezes the clock, and a slow learner never counts."""
        self.drawn_at = self.tick
        low, high = self.tick - 1, self.tick + self.period
        self.positions = {
            slot: min(max(position, low), high) for slot, position in self.positions.items()
        }
