"""The carrier of a learner that has several lanes, on its first host, with those on further hosts.

The lane processes dial the head (side.py). What one reports is judged in coordination.py; what
follows is told to the lane processes first and to the head's own rules after it, so that none of
them hears of a step before the one that it follows from. Without further hosts all of it is done
at once.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.addresses import split
from atoll_protos.network.channels import PLAIN_TEXT, Folder
from atoll_protos.transfer.division import Share
from atoll_protos.transfer.frames import Buffer, FrameError, Whole
from atoll_protos.transfer.gathering import Gathering
from atoll_worker.hosts.coordination import OWN, Arrivals, Placings
from atoll_worker.hosts.lanes import Dividing, Lanes, Shared, form_of
from atoll_worker.hosts.side import BROKEN, Door, SideStream
from atoll_worker.link.messages import Listening, Message
from atoll_worker.transport.bulk import Outgoing, Payloads
from atoll_worker.transport.carrier import Carrier, Others, as_asked
from atoll_worker.transport.held_values import Key, PreparedParts

HELLO_SECONDS_MAX = 20.0
COME_SECONDS_MAX = 120.0  # from the head's word where it listens to the last lane process
CLOSE_SECONDS_MAX = 2.0

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Asked(Others):
    """One Prepare, until every lane process has its part; a capture that one has lost is lost."""

    order: int
    shard: int
    tell: Callable[..., None]
    missing: set[int]  # lane processes that have not answered
    outcome: "asyncio.Future[PreparedParts]"
    lost: bool = False
    not_finite: dict[str, None] = field(default_factory=dict)

    def answered(self, process: int, answer: pb.Prepared) -> bool:
        """Whether all have answered now."""
        self.missing.discard(process)
        self.lost = self.lost or answer.lost
        self.not_finite.update(dict.fromkeys(answer.not_finite))
        if self.missing:
            return False
        if not self.outcome.done():  # who waits is cancelled before the session's end is told
            self.outcome.set_result(PreparedParts(self.lost, tuple(self.not_finite)))
        return True

    async def prepared(self) -> PreparedParts:
        return await self.outcome

    def outgoing(self, fragment: int, head: pb.Transfer, data: Buffer) -> Outgoing:
        return Shared(head, data, partial(self.numbered, fragment))

    def numbered(self, fragment: int, number: int, head: pb.Transfer) -> None:
        to = {"order": self.order, "shard": self.shard, "fragment": fragment}
        self.tell(numbered=pb.Numbered(**to, number=number, head=head))

    def drop(self) -> None:
        self.tell(drop=pb.Drop(order=self.order))


@dataclass(slots=True)
class Followed:
    """One lane process, as its head has it."""

    share: Share
    stream: SideStream


@dataclass(kw_only=True)
class Head(Carrier):
    """See the module. `folder` has the credentials with which it serves the lane processes."""

    folder: Folder = PLAIN_TEXT
    come_seconds_max: float = COME_SECONDS_MAX
    processes: dict[int, Followed] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # one has come or is lost
    sessions: dict[int, int] = field(default_factory=dict)  # the open one's number, by shard
    _placings: Placings = field(default_factory=Placings)
    _arrivals: Arrivals = field(default_factory=lambda: Arrivals(frozenset({OWN})))
    _asked: dict[int, Asked] = field(default_factory=dict)
    _wholes: dict[tuple[Key, int], Whole] = field(default_factory=dict)  # by slice and number
    _orders: int = 0
    _door: Door | None = None
    _over: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        configure = self.end.configure
        self.share, self.silence_seconds_max = configure.share, configure.silence_seconds

    async def listen(self) -> None:
        configure = self.end.configure
        if configure.lane_processes:
            self._door = Door(
                folder=self.folder,
                secret=configure.secret,
                follow=self._follow,
                refused=self._turn_away,
            )
            self.end.send(Listening(port=await self._door.open(split(configure.head)[0])))

    async def gathered(self) -> None:
        """Return when all are here, or one is lost; nobody else is let in after it."""
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
        self._arrivals.parties = frozenset({OWN, *self.processes})

    async def failed(self) -> str:
        while not self.lost:
            self.changed.clear()
            await self.changed.wait()
        return self.lost

    async def leave(self) -> None:
        self._over = True
        ends = [each.stream.leave(CLOSE_SECONDS_MAX) for each in self.processes.values()]
        await asyncio.gather(*ends)
        if self._door is not None:
            await self._door.close(CLOSE_SECONDS_MAX)

    def abort(self) -> None:
        self._over = True
        for each in self.processes.values():
            each.stream.abort()

    def _missing(self) -> set[int]:
        there = {lane for each in self.processes.values() for lane in each.share.lanes}
        return set(range(self.share.parts)) - set(self.share.lanes) - there

    def _turn_away(self, reason: str) -> None:
        log.warning("a lane process is turned away", reason=reason)

    async def _follow(self, context: Any) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS_MAX):
                message = await context.read()
        except (TimeoutError, *BROKEN):
            self._turn_away("it is silent")
            return
        hello = message.hello if isinstance(message, pb.ToHead) else pb.LaneHello()
        if reason := self._refusal(hello):
            self._turn_away(reason)
            return
        stream = SideStream(context, pb.ToLaneProcess, self.silence_seconds_max)
        number = len(self.processes)
        self.processes[number] = Followed(Share(hello.first, hello.stop, hello.lanes), stream)
        self.changed.set()
        name = f"the lane process of lanes {hello.first} .. {hello.stop - 1}"
        try:
            if how := await stream.run(partial(self._heard, number)):
                self._lose(f"{name} {how}")
        except asyncio.CancelledError:  # gRPC's, which came while the stream ended
            if stream.how_ended:
                self._lose(f"{name} {stream.how_ended}")
            raise
        except Exception as error:
            self._lose(f"{name} has said what cannot be done: {error!r}")
            raise

    def _refusal(self, hello: pb.LaneHello) -> str:
        lanes = range(hello.first, hello.stop)
        if hello.lanes != self.share.parts or not lanes or not {*lanes} <= self._missing():
            missing = sorted(self._missing())
            return f"it has lanes {lanes} of {hello.lanes}, of {self.share.parts} lack {missing}"
        return ""

    def _lose(self, how: str) -> None:
        if not self._over:
            self.lost = self.lost or how
            self.changed.set()

    # ------------------------------------------------------------ sessions

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Payloads) -> Lanes:
        lanes, form = self.share.parts, partial(form_of, self.end.configure.layout, shard)
        as_asked(welcome, lanes)
        self._orders += 1
        self.sessions[shard] = self._orders
        opened = pb.LanesOpened(shard=shard, opening=self._orders, session=welcome.session)
        opened.secret = welcome.secret
        self._tell(opened=opened)
        return Lanes(
            endpoint=self.end.configure.endpoints[shard],
            open_channel=self.open_channel,
            session=welcome.session,
            secret=welcome.secret,
            line=Dividing(self.share, payloads, form),
            gathering=Gathering(lanes, partial(self._admit, shard), form, self.share),
            whole=partial(self._whole, shard),
            heard=partial(self.heard, shard),
        )

    def closed(self, shard: int) -> None:
        self.sessions.pop(shard, None)
        self._arrivals.closed(shard)
        for key, number in [each for each in self._wholes if each[0][0] == shard]:
            del self._wholes[key, number]
        for asked in [each for each in self._asked.values() if each.shard == shard]:
            del self._asked[asked.order]
            asked.outcome.cancel()
        self._tell(closed=pb.LanesClosed(shard=shard))

    async def _whole(self, shard: int, whole: Whole) -> None:
        """The head's parts of a Publish are here. Raises FrameError where heads differ."""
        if not self.processes:
            self._arrived(shard, whole)
            return
        key = shard, whole.head.publish.version.slice
        self._wholes[key, whole.number] = whole
        self._judge(OWN, key, whole.number, head_digest(whole.head))

    def place(self, shard: int, fragment: int, number: int) -> None:
        super().place(shard, fragment, number)
        self._orders += 1
        self._placings.place(self._orders, self.processes)
        order = self._orders
        self._tell(place=pb.PlaceShare(order=order, shard=shard, fragment=fragment, version=number))

    def promote(self, shard: int, fragment: int, number: int) -> None:
        super().promote(shard, fragment, number)
        self._tell(promote=pb.PromoteShare(shard=shard, fragment=fragment, version=number))

    def discard(self, shard: int, fragment: int, number: int) -> None:
        super().discard(shard, fragment, number)
        self._tell(discard=pb.DiscardShare(shard=shard, fragment=fragment, version=number))

    def command(self, command: Message) -> None:
        self._send_commands(self._placings.command(command))

    def prepare(
        self, what: pb.Prepares, shard: int, fragments: tuple[int, ...], capture: int = 0
    ) -> Others:
        if not self.processes:
            return Others()
        self._orders += 1
        asked = Asked(
            order=self._orders,
            shard=shard,
            tell=self._tell,
            missing=set(self.processes),
            outcome=asyncio.get_running_loop().create_future(),
        )
        self._asked[asked.order] = asked
        wanted = pb.Prepare(order=asked.order, what=what, shard=shard, capture=capture)
        wanted.fragments.extend(fragments)
        self._tell(prepare=wanted)
        return asked

    # ------------------------------------------------------------ what the lane processes report

    def _heard(self, process: int, message: Any) -> None:
        match message:
            case pb.Prepared() if asked := self._asked.get(message.order):
                if asked.answered(process, message):
                    del self._asked[message.order]
            case pb.Verified() if message.opening == self.sessions.get(message.shard):
                key = message.shard, message.fragment
                try:
                    if key not in self.exchange.state.slices:
                        raise FrameError(f"slice {message.fragment} is unknown")
                    self._judge(process, key, message.number, message.digest)
                except FrameError as error:
                    self._lanes_lost(message.shard, f"bad transfer: {error}", "")
            case pb.Placed():
                self._send_commands(self._placings.placed(process, message.order))
            case pb.LanesLost() if message.opening == self.sessions.get(message.shard):
                lanes = self.processes[process].share.lanes
                reason = f"lanes {lanes.start} .. {lanes.stop - 1}: {message.reason}"
                self._lanes_lost(message.shard, reason, message.remedy)

    def _judge(self, party: int, key: Key, number: int, digest: str) -> None:
        verdict = self._arrivals.verified(party, key, number, digest)
        for each in verdict.forgotten:
            self._wholes.pop((key, each), None)
            self._tell(forget=pb.Forget(shard=key[0], fragment=key[1], number=each))
        if verdict.whole:
            self._tell(keep=pb.Keep(shard=key[0], fragment=key[1], number=number))
            self._arrived(key[0], self._wholes.pop((key, number)))

    def _lanes_lost(self, shard: int, reason: str, remedy: str) -> None:
        client = self.client(shard)
        if remedy:
            client.refuse(reason, remedy)
        client.hang_up(reason)

    def _send_commands(self, commands: list[Any]) -> None:
        for each in commands:
            self.end.send(each)

    def _tell(self, **message: Any) -> None:
        for each in self.processes.values():
            each.stream.send(**message)


def head_digest(head: pb.Transfer) -> str:
    return hashlib.sha256(head.SerializeToString(deterministic=True)).hexdigest()
