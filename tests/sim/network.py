"""Connections with ordered streams, random delay, loss of the connection, and partitions."""

import random
from dataclasses import dataclass, field
from functools import partial

from sim.clock import Action, Process, Simulation

KEEPALIVE_SECONDS = 20.0  # after which an end notices that the other is silent


@dataclass(slots=True, kw_only=True)
class Weather:
    """How the network is at present."""

    delay_seconds: float = 0.02
    slice_seconds: float = 0.05  # to send one slice
    slow: dict[str, tuple[float, float]] = field(default_factory=dict)  # the same, by machine
    blocked_until: dict[str, float] = field(default_factory=dict)  # by machine
    damaged_share: float = 0.0  # of the chunks of values

    def opens_at(self, *machines: str) -> float:
        """When all of these can be reached."""
        return max((self.blocked_until.get(name, 0.0) for name in machines), default=0.0)


@dataclass(slots=True, kw_only=True)
class End:
    """One side of a connection."""

    process: Process
    machine: str
    closed: Action
    notified: bool = False


class Connection:
    """Control and bulk streams between a learner and a shard: each in order, both ways."""

    def __init__(
        self, sim: Simulation, rng: random.Random, weather: Weather, ends: tuple[End, End]
    ) -> None:
        self.sim, self.rng, self.weather, self.ends = sim, rng, weather, ends
        self.lost = False  # nothing gets through any more
        self.is_lane = False  # one of several Bulk streams of a session
        self.silent_until = [0.0, 0.0]  # it stands, and nothing comes that this side sends
        self._last: dict[tuple[int, str], float] = {}
        self._slice = [(0.0, 1), (0.0, 1)]  # on a slow link: seconds and bytes of the present one

    def send(
        self,
        sender: int,
        stream: str,
        action: Action,
        *,
        begins: bool = False,
        seconds: float = 0.0,
    ) -> float:
        """Deliver to the other end, after all that went before on this stream and direction.

        Returns when it arrives; `begins`: the values of a transfer, which take their time, or
        `seconds` for a part of them.
        """
        if self.lost or self.ends[sender].notified:
            return self.sim.now
        receiver = self.ends[1 - sender]
        arrival = self._arrival(sender, stream, begins, seconds)

        def deliver() -> None:
            if not self.lost and not receiver.notified:
                receiver.process.do(lambda: None if receiver.notified else action())

        self.sim.at(arrival, deliver)
        return arrival

    def slow_head(self, sender: int, byte_count: int) -> None:
        """A transfer begins; on a slow link its chunks come one by one."""
        for end in self.ends:
            if end.machine in self.weather.slow:
                seconds = self.rng.uniform(*self.weather.slow[end.machine])
                self._slice[sender] = seconds, max(1, byte_count)

    def slow_seconds(self, sender: int, byte_count: int) -> float:
        """What these bytes of a transfer take on a slow link; 0 on others."""
        seconds, whole = self._slice[sender]
        return seconds * byte_count / whole

    @property
    def stands(self) -> bool:
        """Whether it works, as far as its client knows."""
        return not self.lost and not self.ends[0].notified

    def damages(self) -> bool:
        """Whether the chunk that is sent now arrives damaged."""
        share = self.weather.damaged_share
        return share > 0.0 and self.rng.random() < share

    def hang_up(self, sender: int) -> None:
        """Close from one side: it hears so itself at once, the other after what is on its way."""
        if self.ends[sender].notified:
            return
        self.ends[sender].notified = True
        streams = ("control", "bulk")
        arrival = max(self._arrival(sender, stream, False) for stream in streams)
        self.sim.at(arrival, lambda: self._notify(1 - sender))

    def drop(self) -> None:
        """The connection breaks: each side notices in its own time."""
        self.lost = True
        for side in (0, 1):
            longest = self.rng.choice((0.1, 1.0, KEEPALIVE_SECONDS))
            self.sim.after(self.rng.uniform(0.0, longest), partial(self._notify, side))

    def end_died(self, side: int) -> None:
        """A process is gone: its machine resets the connection, or is gone as well."""
        if self.ends[side].notified:
            return
        self.ends[side].notified = True
        machine_too = self.rng.random() < 0.3
        seconds = self.rng.uniform(0.0, KEEPALIVE_SECONDS if machine_too else 0.1)
        self.sim.after(seconds, lambda: self._notify(1 - side))

    def _notify(self, side: int) -> None:
        end = self.ends[side]
        if not end.notified:
            end.notified = True
            end.process.do(end.closed)

    def _arrival(self, sender: int, stream: str, begins: bool, more_seconds: float = 0.0) -> float:
        weather = self.weather
        seconds = weather.delay_seconds * self.rng.uniform(0.3, 2.0)
        opens = weather.opens_at(*(end.machine for end in self.ends))
        start = max(self.sim.now, self.silent_until[sender], opens)
        last = self._last.get((sender, stream), 0.0)
        if more_seconds:
            start, seconds = max(start, last), more_seconds
        elif begins:
            start = max(start, last)
            seconds += weather.slice_seconds * self.rng.uniform(0.5, 2.0)
        arrival = max(start + seconds, last)
        self._last[sender, stream] = arrival
        return arrival
