"""Virtual time: a heap of events, a trace, and processes that can be killed and paused."""

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sim.loop import VirtualLoop

Action = Callable[[], None]


@dataclass(slots=True)
class Simulation:
    """One seeded world. Equal seeds give equal traces: nothing else enters."""

    seed: int
    keep_trace: bool = False
    now: float = 0.0
    heap: list[tuple[float, int, Action]] = field(default_factory=list)
    events: int = 0
    lines: list[str] = field(default_factory=list)
    hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    failure: BaseException | None = None
    _count: int = 0

    def random(self, purpose: str) -> random.Random:
        """A source of its own for each purpose, so that one draw more does not move all others."""
        return random.Random(f"{self.seed}/{purpose}")

    def at(self, when: float, action: Action) -> None:
        """Do something at a time; events of one time happen in the order of their calls."""
        self._count += 1
        heapq.heappush(self.heap, (max(when, self.now), self._count, action))

    def after(self, seconds: float, action: Action) -> None:
        """Do something a while from now."""
        self.at(self.now + seconds, action)

    def run(self, until: float, stop: Callable[[], bool]) -> bool:
        """Let time pass; says whether `stop` held before `until`."""
        while self.heap and self.heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self.heap)
            self.events += 1
            action()
            if self.failure is not None:
                raise self.failure
            if stop():
                return True
        self.now = until
        return stop()

    def fails(self, error: BaseException) -> None:
        """End the seed with this error after the present event; the first one counts."""
        self.failure = self.failure or error

    def note(self, who: str, what: str) -> None:
        line = f"{self.now:9.3f} {who:16s} {what}"
        self.hash.update(line.encode())
        if self.keep_trace:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """sha256 of the trace so far."""
        return self.hash.hexdigest()


class Process:
    """What dies and stands still as a whole. A paused one gets all its events at once later."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim, self.name = sim, name
        self.alive = True
        self.paused = False
        self.woke_at = 0.0
        self.backlog: list[Action] = []
        self.loop = VirtualLoop(self)

    def after(self, seconds: float, action: Action) -> None:
        self.sim.after(seconds, partial(self.do, action))

    def do(self, action: Action) -> None:
        """Handle an event now, later when paused, or never when dead."""
        if self.alive and self.paused:
            self.backlog.append(action)
        elif self.alive:
            self.loop.run(action)

    def pause(self, seconds: float) -> None:
        if self.alive and not self.paused:
            self.paused = True
            self.sim.note(self.name, f"pauses for {seconds:.1f} s")
            self.sim.after(seconds, self.wake)

    def wake(self) -> None:
        if not self.paused:
            return
        self.paused = False
        if not self.alive:
            return
        self.woke_at = self.sim.now
        self.sim.note(self.name, f"wakes to {len(self.backlog)} events")
        backlog, self.backlog = self.backlog, []
        for action in backlog:
            self.do(action)

    def kill(self, why: str) -> None:
        """End it; what it had in memory is gone."""
        if self.alive:
            self.alive = False
            self.sim.note(self.name, f"dies: {why}")
            self.died()

    def died(self) -> None:
        """For subclasses: what others notice of a death."""
