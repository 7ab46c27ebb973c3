"""What the ranks of one learner have between them: words, collectives and lifelines.

Real ranks have torch.distributed and TCP streams (atoll_worker.ranks). Here:

- a *word* of the head comes to each other rank in its own time, and in order;
- a *collective* is over when every rank has begun it; torch knows it by its number alone, so each
  rank says what it takes it for. It is over on each rank at its own time;
- a *lifeline* carries beats between the head and each other rank. Who is lost is decided by
  production's `Peers`.

A rank that has ended resets its streams, unless its machine is gone as well. Then the others'
collectives fail, as gloo's do, or they wait on, as NCCL's do.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll_worker.ranks.control import HEAD
from atoll_worker.ranks.lifeline import BEAT, BEAT_SECONDS, LEFT, lost_error

if TYPE_CHECKING:
    from sim.rank import Rank
    from sim.world import World

MACHINE_TOO_SHARE = 0.3  # of the ends of a process
RESET_SECONDS_MAX = 0.1
MESSAGE_SECONDS = (0.0002, 0.004)
SLOW_SHARE, SLOW_SECONDS = 0.05, 0.3  # of the messages


class CollectiveError(RuntimeError):
    """As torch raises when another rank is gone."""


@dataclass(slots=True)
class Word:
    """Some bytes of the head on one rank; see control.Word."""

    arrived: "asyncio.Future[bytes]"

    def heard(self) -> bytes:
        """Whoever asks has awaited `arrived`."""
        return self.arrived.result()


@dataclass(slots=True)
class Collective:
    """What the ranks have given to one, and take it for."""

    parts: dict[int, tuple[object, Any]] = field(default_factory=dict)
    waiting: "dict[int, asyncio.Future[dict[int, tuple[object, Any]]]]" = field(
        default_factory=dict
    )


class RankGroup:
    """The ranks of one start of a learner, by number; the first is the head."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.sim, self.name = world, world.sim, name
        self.rng = world.sim.random(f"ranks of {name}")
        self.silence_seconds_max = world.scenario.silence_seconds
        self.resets = self.rng.random() < 0.5  # whether collectives fail when a rank is gone
        self.ranks: list[Rank] = []
        self.collectives: dict[int, Collective] = defaultdict(Collective)
        self.begun: dict[int, int] = defaultdict(int)  # collectives of each rank
        self.words: dict[tuple[int, int], asyncio.Future[bytes]] = {}  # rank, number
        self.said: dict[int, int] = defaultdict(int)  # words of each rank
        self.broken: set[int] = set()  # ranks whose collectives fail
        self._last: dict[tuple[int, int, str], float] = {}

    def send(
        self, sender: "Rank", receiver: "Rank", stream: str, action: Callable[[], None]
    ) -> None:
        """Have the receiver do something, after all that went before on this stream."""
        seconds = self.rng.uniform(*MESSAGE_SECONDS)
        if self.rng.random() < SLOW_SHARE:
            seconds += self.rng.uniform(0.0, SLOW_SECONDS)
        key = sender.number, receiver.number, stream
        arrival = self._last[key] = max(self.sim.now + seconds, self._last.get(key, 0.0))
        self.sim.at(arrival, partial(receiver.process.do, action))

    def _end(self, rank: "Rank", other: "Rank") -> None:
        """All streams from a rank to this other one end, after what is on its way."""
        ends = (at for key, at in self._last.items() if key[:2] == (rank.number, other.number))
        arrival = max((self.sim.now, *ends))
        self.sim.at(arrival, partial(other.process.do, partial(self._reset, rank, other)))

    # ------------------------------------------------------------ words

    def begin_word(self, rank: "Rank", said: bytes | None) -> Word:
        """The head says a word; the others begin to receive theirs."""
        number = self.said[rank.number]
        self.said[rank.number] += 1
        arrived = self._word(rank, number)
        if said is not None:
            arrived.set_result(said)
            for other in self.ranks:
                if other is not rank:
                    self.send(rank, other, "words", partial(self._hear, other, number, said))
        elif not arrived.done():
            self._fails_if_broken(rank, arrived)
        return Word(arrived)

    def _word(self, rank: "Rank", number: int) -> "asyncio.Future[bytes]":
        key = rank.number, number
        if key not in self.words:
            self.words[key] = rank.process.loop.create_future()
        return self.words[key]

    def _hear(self, rank: "Rank", number: int, said: bytes) -> None:
        arrived = self._word(rank, number)
        if not arrived.done():
            arrived.set_result(said)

    # ------------------------------------------------------------ collectives

    async def together(self, rank: "Rank", what: object, part: Any) -> dict[int, Any]:
        """What each rank has given to this rank's next collective; those that took it for this."""
        number = self.begun[rank.number]
        self.begun[rank.number] += 1
        each = self.collectives[number]
        each.parts[rank.number] = what, part
        waiting = each.waiting[rank.number] = rank.process.loop.create_future()
        if self.is_over(each):
            del self.collectives[number]
            for other in self.ranks:
                if other.number in each.waiting:
                    waits = each.waiting[other.number]
                    self.send(rank, other, "collectives", partial(self._over, waits, each.parts))
        else:
            self._fails_if_broken(rank, waiting)
        parts = await waiting
        return {other: given for other, (taken, given) in parts.items() if taken == what}

    def is_over(self, each: Collective) -> bool:
        """Whether every rank has begun it."""
        return len(each.parts) == len(self.ranks)

    @staticmethod
    def _over(waiting: "asyncio.Future[Any]", parts: dict[int, tuple[object, Any]]) -> None:
        if not waiting.done():
            waiting.set_result(parts)

    # ------------------------------------------------------------ lifelines

    def enter(self, rank: "Rank") -> None:
        """The rank has opened its lifelines."""
        for other in rank.peers.heard:
            rank.peers.heard[other] = self.sim.now
        self.beat(rank)

    def beat(self, rank: "Rank") -> None:
        """Once a second: a rank says that it is there, and looks for the others."""
        rank.peers.look(self.sim.now)
        self._judge(rank)
        if rank.peers.lost:
            return
        for other in rank.peers.heard:
            self._say(rank, self.ranks[other], BEAT)
        rank.process.after(BEAT_SECONDS, partial(self.beat, rank))

    def ended(self, rank: "Rank", *, in_order: bool) -> None:
        """The process of a rank is gone."""
        for other in self.ranks:
            if in_order and other is not rank:
                self._say(rank, other, LEFT)
        if not in_order and self.rng.random() < MACHINE_TOO_SHARE:
            return
        for other in self.ranks:
            if other is not rank:
                seconds = self.rng.uniform(0.0, RESET_SECONDS_MAX)
                self.sim.after(seconds, partial(self._end, rank, other))

    def _say(self, rank: "Rank", other: "Rank", said: bytes) -> None:
        self.send(rank, other, "line", partial(self._heard, rank, other, said))

    def _heard(self, rank: "Rank", other: "Rank", said: bytes) -> None:
        other.peers.hear(rank.number, said, self.sim.now)
        self._judge(other)

    def _reset(self, rank: "Rank", other: "Rank") -> None:
        """The streams of a rank to this other one have ended."""
        self._heard(rank, other, b"")
        if not self.resets:
            return
        self.broken.add(other.number)
        for waiting in self._waits_of(other):
            self._fails_if_broken(other, waiting)

    def _waits_of(self, rank: "Rank") -> "list[asyncio.Future[Any]]":
        collectives: list[asyncio.Future[Any]] = [
            each.waiting[rank.number]
            for each in self.collectives.values()
            if rank.number in each.waiting
        ]
        words: list[asyncio.Future[Any]] = [
            self.words[rank.number, number]
            for number in range(self.said[rank.number])
            if (rank.number, number) in self.words
        ]
        return [waiting for waiting in collectives + words if not waiting.done()]

    def _fails_if_broken(self, rank: "Rank", waiting: "asyncio.Future[Any]") -> None:
        if rank.number in self.broken:
            waiting.set_exception(CollectiveError("connection reset by peer"))
            waiting.exception()  # it may be that nobody awaits it

    def _judge(self, rank: "Rank") -> None:
        """As the thread of lifeline.py: end the process if its training thread does not."""
        if rank.peers.lost and not rank.judged:
            rank.judged = True
            error = lost_error(rank.peers.lost)
            rank.process.after(rank.peers.end_seconds, partial(rank.end, error))

    # ------------------------------------------------------------ questions

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are there and move."""
        return all(each.process.alive and not each.process.paused for each in self.ranks)

    def others(self, number: int) -> list[int]:
        """Whom a rank has a lifeline with."""
        count = self.world.scenario.ranks[self.ranks[HEAD].slot]
        return list(range(1, count)) if number == HEAD else [HEAD]
