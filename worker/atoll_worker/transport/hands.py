"""The hands of a learner, as the transport of its head has them: their streams, and what they owe.

A learner on one host has no hands: then everything here is done at once, by the head alone.

The hands dial the head (stream.py), since each of them is told where it listens. What a hand says
is judged in coordination.py; what follows is told to the hands first and to the head's own
transport after it, so that no hand hears of a step before the one that it follows from.
"""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.frames import FrameError, Whole
from atoll_protos.listening import listening_socket
from atoll_protos.parts import Share
from atoll_worker.link.codec import LinkError
from atoll_worker.link.messages import Command
from atoll_worker.transport import side
from atoll_worker.transport.coordination import (
    OWN,
    READY,
    Arrivals,
    Key,
    Outcome,
    Placings,
    Preparing,
)
from atoll_worker.transport.side import Hello, Kind
from atoll_worker.transport.stream import SideStream

HELLO_SECONDS_MAX = 20.0
COME_SECONDS_MAX = 120.0  # from the head's word where it listens to the last hand
CLOSE_SECONDS_MAX = 2.0

log = structlog.get_logger()


class HandsListener(Protocol):
    """What the head's transport hears."""

    def command(self, command: Command) -> None:
        """The training process is to have it now."""

    def arrived(self, shard: int, whole: Whole) -> None:
        """A Publish is here, on all hosts; `whole` is what the head holds of it."""

    def lanes_lost(self, shard: int, reason: str, remedy: str) -> None:
        """The session with a shard cannot go on."""


@dataclass(slots=True)
class Ticket:
    """One Prepare: its outcome, and what is done with what was prepared."""

    order: int
    shard: int
    tell: Callable[[Any], None]
    outcome: "asyncio.Future[Outcome] | None" = None  # None: nobody is asked

    async def prepared(self) -> Outcome:
        """When all hands have their parts; is cancelled with the session."""
        return READY if self.outcome is None else await self.outcome

    def numbered(self, fragment: int, number: int, head: pb.Transfer) -> None:
        """The hands may send their parts of this slice."""
        if self.outcome is None:
            return
        named = head.SerializeToString()
        self.tell(
            side.Numbered(
                order=self.order, shard=self.shard, fragment=fragment, number=number, head=named
            )
        )

    def drop(self) -> None:
        """Nothing of it is sent."""
        self.tell(side.Drop(order=self.order))


@dataclass(slots=True)
class Hand:
    """One lane process."""

    share: Share
    stream: SideStream


@dataclass(slots=True, kw_only=True)
class Hands:
    """See the module. `share` is the head's; the hands have the other lanes.

    `lost` is done with who is lost, and how that was seen.
    """

    share: Share
    secret: str = ""
    silence_seconds_max: float = 0.0
    come_seconds_max: float = COME_SECONDS_MAX
    listener: HandsListener | None = None
    hands: dict[int, Hand] = field(default_factory=dict)
    lost: str = ""  # who, and how that was seen
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # one has come or is lost
    sessions: dict[int, int] = field(default_factory=dict)  # the open one's number, by shard
    _preparing: Preparing = field(default_factory=Preparing)
    _placings: Placings = field(default_factory=Placings)
    _arrivals: Arrivals = field(default_factory=lambda: Arrivals(frozenset({OWN})))
    _tickets: dict[int, Ticket] = field(default_factory=dict)
    _wholes: dict[tuple[Key, int], Whole] = field(default_factory=dict)  # by slice and number
    _orders: int = 0
    _server: asyncio.Server | None = None
    _serving: set["asyncio.Task[Any]"] = field(default_factory=set)
    _over: bool = False

    # ------------------------------------------------------------ they come, and go

    async def listen(self, host: str) -> int:
        """Let them connect, also from other hosts: they prove a secret. Returns the port."""
        listening = listening_socket(host)
        self._server = await asyncio.start_server(self._connected, sock=listening)
        return int(listening.getsockname()[1])

    async def gathered(self) -> None:
        """Return when all are here, or one is lost; nobody else can connect after it."""
        try:
            async with asyncio.timeout(self.come_seconds_max):
                while self._missing() and not self.lost:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            first = min(self._missing())
            self._lose(
                f"the lane process of lane {first} has not come within {self.come_seconds_max:g} s"
            )
        self._close_server()
        self._arrivals.parties = frozenset({OWN, *self.hands})

    async def failed(self) -> str:
        """Return when one is lost: who, and how that was seen."""
        while not self.lost:
            self.changed.clear()
            await self.changed.wait()
        return self.lost

    async def leave(self) -> None:
        """End the streams in order."""
        self._over = True
        self._close_server()
        ends = [hand.stream.leave(CLOSE_SECONDS_MAX) for hand in self.hands.values()]
        await asyncio.gather(*ends)
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_SECONDS_MAX)

    def abort(self) -> None:
        """End the streams at once, and with them the hands: the learner is to start again."""
        self._over = True
        for hand in self.hands.values():
            hand.stream.abort()

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()

    def _missing(self) -> set[int]:
        """The lanes of hands that are not here."""
        there = {lane for hand in self.hands.values() for lane in hand.share.lanes}
        return set(range(self.share.parts)) - set(self.share.lanes) - there

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A task of asyncio's, which must not end as cancelled when the transport ends."""
        task = asyncio.current_task()
        assert task is not None, "a task of the server"
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await self._serve(SideStream(reader, writer, self.silence_seconds_max))

    async def _serve(self, stream: SideStream) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS_MAX):
                hello = await stream.hello()
        except (LinkError, OSError, TimeoutError) as error:
            log.warning("not a lane process of this learner", reason=str(error) or "it is silent")
            await stream.turn_away()
            return
        if reason := self._refusal(hello):
            log.warning("a lane process is turned away", reason=reason)
            await stream.turn_away()
            return
        number = len(self.hands)
        self.hands[number] = Hand(Share(hello.first, hello.stop, hello.lanes), stream)
        self.changed.set()
        name = f"the lane process of lanes {hello.first} .. {hello.stop - 1}"
        try:
            if how := await stream.run(partial(self._heard, number)):
                self._lose(f"{name} {how}")
        except Exception as error:
            self._lose(f"{name} has said what cannot be done: {error!r}")
            raise

    def _refusal(self, hello: Hello) -> str:
        if not hmac.compare_digest(hello.secret.encode(), self.secret.encode()):
            return "it has another secret"
        lanes = range(hello.first, hello.stop)
        if hello.lanes != self.share.parts or not lanes or not {*lanes} <= self._missing():
            missing = sorted(self._missing())
            return f"it has lanes {lanes} of {hello.lanes}, of {self.share.parts} lack {missing}"
        return ""

    def _lose(self, how: str) -> None:
        if not self._over:
            self.lost = self.lost or how
            self.changed.set()

    # ------------------------------------------------------------ what the head's transport says

    def opened(self, shard: int, welcome: pb.Welcome) -> None:
        """The head opens its lanes of this session."""
        self._orders += 1
        self.sessions[shard] = self._orders
        self._tell(
            side.Opened(
                shard=shard,
                opening=self._orders,
                session=welcome.session,
                secret=welcome.secret,
            )
        )

    def closed(self, shard: int) -> None:
        """The session with a shard is over."""
        self.sessions.pop(shard, None)
        self._arrivals.closed(shard)
        for key, number in [each for each in self._wholes if each[0][0] == shard]:
            del self._wholes[key, number]
        for order in self._preparing.closed(shard):
            if (outcome := self._tickets.pop(order).outcome) is not None:
                outcome.cancel()
        self._tell(side.Closed(shard=shard))

    def prepare(
        self, kind: Kind, shard: int, fragments: tuple[int, ...], capture: int = 0
    ) -> Ticket:
        """The hands are to form their parts of these slices."""
        self._orders += 1
        ticket = Ticket(self._orders, shard, self._tell)
        if self.hands:
            ticket.outcome = asyncio.get_running_loop().create_future()
            self._tickets[ticket.order] = ticket
            self._preparing.begin(ticket.order, shard, self.hands)
            self._tell(
                side.Prepare(
                    order=ticket.order,
                    what=kind,
                    shard=shard,
                    fragments=fragments,
                    capture=capture,
                )
            )
        return ticket

    def verified(self, shard: int, whole: Whole) -> None:
        """The head's parts of a Publish are here. Raises FrameError where heads differ."""
        if not self.hands:
            self._listener.arrived(shard, whole)
            return
        key = shard, whole.head.publish.version.slice
        self._wholes[key, whole.number] = whole
        self._judge(OWN, key, whole.number, head_digest(whole.head))

    def command(self, command: Command) -> None:
        """The training process is to have it behind all that was placed before."""
        self._send(self._placings.command(command))

    def place(self, shard: int, fragment: int, version: int) -> None:
        """The head has placed its share."""
        self._orders += 1
        self._placings.place(self._orders, self.hands)
        self._tell(side.Place(order=self._orders, shard=shard, fragment=fragment, version=version))

    def promote(self, shard: int, fragment: int, version: int) -> None:
        """The candidate is adopted."""
        self._tell(side.Promote(shard=shard, fragment=fragment, version=version))

    def discard(self, shard: int, fragment: int, version: int) -> None:
        """The candidate is not needed."""
        self._tell(side.Discard(shard=shard, fragment=fragment, version=version))

    # ------------------------------------------------------------ what the hands say

    def _heard(self, hand: int, message: Any) -> None:
        match message:
            case side.Prepared():
                self._prepared(hand, message)
            case side.Verified(shard=shard) if message.opening == self.sessions.get(shard):
                key = shard, message.fragment
                try:
                    self._judge(hand, key, message.number, message.digest)
                except FrameError as error:
                    self._listener.lanes_lost(shard, f"bad transfer: {error}", "")
            case side.Placed(order=order):
                self._send(self._placings.placed(hand, order))
            case side.LanesLost(shard=shard) if message.opening == self.sessions.get(shard):
                lanes = self.hands[hand].share.lanes
                reason = f"lanes {lanes.start} .. {lanes.stop - 1}: {message.reason}"
                self._listener.lanes_lost(shard, reason, message.remedy)

    def _prepared(self, hand: int, message: side.Prepared) -> None:
        outcome = self._preparing.said(
            hand, message.order, lost=message.lost, not_finite=message.not_finite
        )
        if outcome is not None:
            waiting = self._tickets.pop(message.order).outcome
            assert waiting is not None, "nobody was asked"
            if not waiting.done():  # who waits is cancelled before the session's end is told
                waiting.set_result(outcome)

    def _judge(self, party: int, key: Key, number: int, digest: str) -> None:
        """A party has its parts of a transfer: is it whole everywhere?"""
        verdict = self._arrivals.verified(party, key, number, digest)
        for each in verdict.forgotten:
            self._wholes.pop((key, each), None)
            self._tell(side.Forget(shard=key[0], fragment=key[1], number=each))
        if verdict.whole:
            self._tell(side.Keep(shard=key[0], fragment=key[1], number=number))
            self._listener.arrived(key[0], self._wholes.pop((key, number)))

    def _send(self, commands: list[Command]) -> None:
        for each in commands:
            self._listener.command(each)

    def _tell(self, message: Any) -> None:
        for hand in self.hands.values():
            hand.stream.send(message)

    @property
    def _listener(self) -> HandsListener:
        assert self.listener is not None, "nobody listens"
        return self.listener


def head_digest(head: pb.Transfer) -> str:
    """Equal for equal heads of whole transfers."""
    return hashlib.sha256(head.SerializeToString(deterministic=True)).hexdigest()
