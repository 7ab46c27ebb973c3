"""What the head of a learner waits for: decisions on values, without I/O (rules 31, 33 and 34).

A *party* is the head or a lane process, which each hold a share of a slice. A version or an
adoption is whole when all parties have done their share of it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from atoll_protos.transfer.frames import FrameError
from atoll_worker.link.messages import Tick
from atoll_worker.transport.held_values import Key

OWN: Final = -1  # the head among the parties; lane processes are counted from 0


class VerifiedParts(NamedTuple):
    """After a party has verified its parts of a transfer."""

    whole: bool  # all have
    forgotten: tuple[int, ...]  # transfers of the slice that will not become whole


@dataclass(slots=True)
class Arriving:
    """A transfer of which somebody has all its parts."""

    digest: str  # of its head
    missing: set[int]


@dataclass(slots=True)
class Arrivals:
    """On the head: which parties have their parts of which transfer, by its number in the session.

    The first party that has a newer one ends the waiting for the older: its parts may never come.
    """

    parties: frozenset[int]
    under_way: dict[Key, dict[int, Arriving]] = field(default_factory=dict)  # by number
    settled: dict[Key, int] = field(default_factory=dict)  # the newest one that is decided

    def verified(self, party: int, key: Key, number: int, digest: str) -> VerifiedParts:
        """A party has its parts of a transfer. Raises FrameError where the heads differ."""
        if number <= self.settled.get(key, 0):
            return VerifiedParts(whole=False, forgotten=(number,))
        open_ = self.under_way.setdefault(key, {})
        mine = open_.setdefault(number, Arriving(digest, set(self.parties)))
        if mine.digest != digest:
            raise FrameError(f"transfer {number} has another head on lanes of other hosts")
        mine.missing.discard(party)
        older = tuple(sorted(each for each in open_ if each < number))
        for each in (*older, *(() if mine.missing else (number,))):
            del open_[each]
        self.settled[key] = number - 1 if mine.missing else number
        return VerifiedParts(whole=not mine.missing, forgotten=older)

    def closed(self, shard: int) -> None:
        for known in (self.under_way, self.settled):
            for key in [key for key in known if key[0] == shard]:
                del known[key]


@dataclass(slots=True)
class Placing:
    """A place of a version, and who has not placed its share."""

    order: int
    missing: set[int]


@dataclass(slots=True)
class Placings:
    """Commands wait behind the places before them: no rank obeys an Adopt without its value."""

    line: deque[Placing | Any] = field(default_factory=deque)

    def place(self, order: int, processes: Iterable[int]) -> None:
        if missing := set(processes):
            self.line.append(Placing(order, missing))

    def command(self, command: Any) -> list[Any]:
        """The commands that may be sent now; of ticks that wait only the newest stays."""
        if self.line and isinstance(command, Tick) and isinstance(self.line[-1], Tick):
            self.line.pop()
        self.line.append(command)
        return self._due()

    def placed(self, process: int, order: int) -> list[Any]:
        for each in self.line:
            if isinstance(each, Placing) and each.order == order:
                each.missing.discard(process)
        return self._due()

    def _due(self) -> list[Any]:
        due = []
        while self.line:
            first = self.line[0]
            if isinstance(first, Placing):
                if first.missing:
                    break
            else:
                due.append(first)
            self.line.popleft()
        return due
