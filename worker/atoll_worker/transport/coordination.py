"""What the head of a learner and its lane processes wait for: decisions on values, without I/O.

A version, an offer and an adoption of a learner on several hosts are of all hosts or of none
(rules 31, 33 and 34). Every *party*, which is the head or one hand, holds its share of a slice, and
says when its share of a work is done. Here it is decided when the whole is done.

On the head:

- `Preparing`: an offer may be sent once every party has formed its part from the capture of the
  same boundary. One that has lost the capture loses it for all.
- `Arrivals`: a version has arrived once every party has all its parts of one transfer, and all
  heads are equal. The first party that has a newer one ends the waiting for the older: its other
  parts may never come.
- `Placings`: a command to the training process stays behind the Place before it, until every party
  has placed its share. So an Adopt is never obeyed by a rank that has no value for it.

On a hand:

- `Regions`: an adopt region is written again only when the training process has reported the
  adoption before, and an offer is formed when it has reported the capture. It may report later than
  the head's does: each training process tells its own transport process.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from atoll_protos.frames import FrameError
from atoll_worker.link.messages import Tick
from atoll_worker.transport.side import Place, Prepare

OWN: Final = -1  # the head among the parties; hands are counted from 0

Key: TypeAlias = tuple[int, int]  # shard and fragment


# ---------------------------------------------------------------- the head: what is sent


class Outcome(NamedTuple):
    """All hands have prepared their parts, or somebody has lost the capture."""

    lost: bool
    not_finite: tuple[str, ...]


READY: Final = Outcome(lost=False, not_finite=())  # where nobody is asked


@dataclass(slots=True)
class Wanted:
    """One Prepare that is under way."""

    shard: int
    missing: set[int]
    lost: bool = False
    not_finite: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Preparing:
    """Which hands have prepared their parts of what is to be sent; see the module."""

    under_way: dict[int, Wanted] = field(default_factory=dict)  # by order

    def begin(self, order: int, shard: int, hands: Iterable[int]) -> None:
        """These hands are asked."""
        self.under_way[order] = Wanted(shard, set(hands))

    def said(
        self, hand: int, order: int, *, lost: bool, not_finite: Sequence[str]
    ) -> Outcome | None:
        """A hand has answered; the outcome with the last answer. What is forgotten has none."""
        wanted = self.under_way.get(order)
        if wanted is None:
            return None
        wanted.missing.discard(hand)
        wanted.lost = wanted.lost or lost
        wanted.not_finite += not_finite
        if wanted.missing:
            return None
        del self.under_way[order]
        return Outcome(wanted.lost, tuple(dict.fromkeys(wanted.not_finite)))

    def closed(self, shard: int) -> list[int]:
        """The session is over: the orders that are forgotten with it."""
        over = [order for order, wanted in self.under_way.items() if wanted.shard == shard]
        for order in over:
            del self.under_way[order]
        return over


# ---------------------------------------------------------------- the head: what has come


class Verdict(NamedTuple):
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
    """Which parties have their parts of which transfer; numbers are those of the open session."""

    parties: frozenset[int]
    under_way: dict[Key, dict[int, Arriving]] = field(default_factory=dict)  # by number
    settled: dict[Key, int] = field(default_factory=dict)  # the newest one that is decided

    def verified(self, party: int, key: Key, number: int, digest: str) -> Verdict:
        """A party has its parts of a transfer. Raises FrameError where the heads differ."""
        if number <= self.settled.get(key, 0):
            return Verdict(whole=False, forgotten=(number,))
        open_ = self.under_way.setdefault(key, {})
        mine = open_.setdefault(number, Arriving(digest, set(self.parties)))
        if mine.digest != digest:
            raise FrameError(f"transfer {number} has another head on lanes of other hosts")
        mine.missing.discard(party)
        older = tuple(sorted(each for each in open_ if each < number))
        for each in (*older, *(() if mine.missing else (number,))):
            del open_[each]
        self.settled[key] = number - 1 if mine.missing else number
        return Verdict(whole=not mine.missing, forgotten=older)

    def closed(self, shard: int) -> None:
        """The session is over, and its numbers."""
        for known in (self.under_way, self.settled):
            for key in [key for key in known if key[0] == shard]:
                del known[key]


# ---------------------------------------------------------------- the head: what is adopted


@dataclass(slots=True)
class Placing:
    """A Place, and who has not placed its share."""

    order: int
    missing: set[int]


@dataclass(slots=True)
class Placings:
    """The commands to the training process, in order, behind the Places before them."""

    line: deque[Placing | Any] = field(default_factory=deque)

    def place(self, order: int, hands: Iterable[int]) -> None:
        """What follows waits for these."""
        if missing := set(hands):
            self.line.append(Placing(order, missing))

    def command(self, command: Any) -> list[Any]:
        """The commands that may be sent now; of ticks that wait only the newest stays."""
        if self.line and isinstance(command, Tick) and isinstance(self.line[-1], Tick):
            self.line.pop()
        self.line.append(command)
        return self._due()

    def placed(self, hand: int, order: int) -> list[Any]:
        """A hand has placed its share: the commands that may be sent now."""
        for each in self.line:
            if isinstance(each, Placing) and each.order == order:
                each.missing.discard(hand)
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


# ---------------------------------------------------------------- a hand


class Capture(Enum):
    """Whether an offer can be formed from the capture that it names."""

    AWAITED = "the training process has not reported it"
    THERE = "it is in its region"
    LOST = "a newer one has been reported"


@dataclass(slots=True)
class Regions:
    """What a hand's training process has reported of the shared memory, and what waits for it."""

    captures: dict[Key, int]  # counter of the newest capture that is reported
    given: set[Key] = field(default_factory=set)  # adopt regions that the training process has
    places: dict[Key, Place] = field(default_factory=dict)  # that wait for their region

    def captured(self, prepare: Prepare) -> Capture:
        """Of the capture that an offer is to be formed from."""
        (fragment,) = prepare.fragments
        count = self.captures[prepare.shard, fragment]
        if count == prepare.capture:
            return Capture.THERE
        return Capture.AWAITED if count < prepare.capture else Capture.LOST

    def place(self, wanted: Place) -> bool:
        """Whether the value may be placed now; else it waits."""
        key = wanted.shard, wanted.fragment
        if key in self.given:
            self.places[key] = wanted
            return False
        self.given.add(key)
        return True

    def adopted(self, key: Key) -> Place | None:
        """The training process has reported an adoption: the Place that waited for it, if any."""
        waiting = self.places.pop(key, None)
        if waiting is None:
            self.given.discard(key)
        return waiting
