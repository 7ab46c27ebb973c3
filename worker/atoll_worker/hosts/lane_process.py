"""A lane process: carries one host's share of every slice, as the head of the learner tells it.

Its training process, whose memory holds the share, is the first rank of its host. The head knows
the rules (side.py is the stream to it); the lane process decides when its own memory may be read
and written:

    Prepare(offer)  waits for the Boundary that reports the capture, is formed in a thread,
                    and is answered by Prepared; a capture that was overwritten is lost
    Numbered        its parts go in line on the lanes of the open session
    Publish         whose own parts are verified: told to the head, kept until its Keep or Forget
    Keep            decoded: a candidate now
    PlaceShare      waits until the training process has left the adopt region; then Placed

It ends with its training process or with the head. After a Leaving of its training process it
serves on until the head has gone: the head may still have a companion or a Leave to send in
sessions that end with any of their lanes.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.network.channels import PLAIN_TEXT, Folder
from atoll_protos.network.credentials import OutOfDateError
from atoll_protos.network.diagnosis import RefusedError
from atoll_protos.transfer.frames import Whole
from atoll_protos.transfer.gathering import Gathering
from atoll_worker.hosts import side
from atoll_worker.hosts.head import head_digest
from atoll_worker.hosts.lanes import Lanes, Line, divided, form_of
from atoll_worker.link.messages import Boundary, Leaving
from atoll_worker.link.socket import TransportEnd
from atoll_worker.transport.bulk import OpenChannel, Outgoing, Ready, why_ended
from atoll_worker.transport.held_values import Key, Values, publish_bytes
from atoll_worker.transport.numbers import Base, Encoded, Numbers

CONNECT_SECONDS_MAX = 20.0

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class LaneSession:
    """The lanes of one session with a shard."""

    opening: int  # the head's number of it
    streams: Lanes
    verified: dict[tuple[int, int], Whole]  # by slice and number
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Parts:
    """What one Prepare asked for: this host's parts of its slices, by fragment."""

    wanted: pb.Prepare
    bases: dict[int, Base]  # as they were held when it came
    encoded: dict[int, Encoded] = field(default_factory=dict)
    begun: bool = False  # to be formed; an offer waits for its capture


@dataclass(slots=True, kw_only=True)
class LaneProcess:
    """See the module. `run` is its whole life."""

    end: TransportEnd
    numbers: Numbers
    open_channel: OpenChannel
    ready: Ready
    folder: Folder = PLAIN_TEXT  # with the credentials that it shows to the head
    values: Values = field(init=False)
    stream: side.SideStream = field(init=False)
    sessions: dict[int, LaneSession] = field(default_factory=dict)  # by shard
    prepared: dict[int, Parts] = field(default_factory=dict)  # by order
    given: set[Key] = field(default_factory=set)  # adopt regions that the training process has
    places: dict[Key, pb.PlaceShare] = field(default_factory=dict)  # that wait for their region
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the training process
    left: bool = False  # the training process, in order
    works: set["asyncio.Task[Any]"] = field(default_factory=set)
    bug: Exception | None = None  # of this process

    def __post_init__(self) -> None:
        self.values = Values(self.numbers)
        self.values.begin((each.shard, each.fragment) for each in self.end.configure.layout.slices)

    async def run(self) -> int:
        """Until the training process or the head has gone: the exit code. Raises bugs."""
        configure = self.end.configure
        try:
            channel = side.dial(configure.head, self.folder)
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await self.ready(configure.head, channel)
        except (SpecError, OutOfDateError, RefusedError, TimeoutError) as error:
            reason = why_ended(error, configure.head)
            log.error(
                "rank 0 of this learner is not reached", address=configure.head, reason=reason
            )
            return int(ExitCode.TRY_AGAIN)
        self.stream = side.followed(channel, configure.secret, configure.silence_seconds)
        share = configure.share
        hello = pb.LaneHello(first=share.first, stop=share.stop, lanes=share.parts)
        self.stream.send(hello=hello)
        self.end.attach(asyncio.get_running_loop(), self._hear_training, self.gone.set)
        head = asyncio.create_task(self.stream.run(self._from_head))
        ending = asyncio.create_task(self._ended())
        await asyncio.wait({head, ending}, return_when=asyncio.FIRST_COMPLETED)
        if self.bug is not None:
            raise self.bug
        if not head.done():
            return int(ending.result())
        try:
            lost = head.result()
        except Exception as error:
            lost = f"has said what cannot be done: {error!r}"
        if lost:
            log.error(
                f"the transport process of rank 0 {lost}; this lane process ends",
                lanes=str(share.lanes),
            )
            return int(ExitCode.TRY_AGAIN)
        return int(ExitCode.FINAL)

    async def _ended(self) -> ExitCode:
        """Return when the training process is gone, which kills this one if the head stays long."""
        await self.gone.wait()
        return ExitCode.FINAL if self.left else ExitCode.TRY_AGAIN

    def _hear_training(self, message: Any) -> None:
        try:
            self._from_training(message)
        except Exception as error:
            self.bug = error
            self.gone.set()
            raise

    def _from_training(self, message: Any) -> None:
        match message:
            case Boundary():
                for key in message.captured:
                    self.values.captured(key)
                for shard, fragment, _ in message.adopted:
                    self.given.discard((shard, fragment))
                    if (waiting := self.places.pop((shard, fragment), None)) is not None:
                        self._place(waiting)
                for parts in list(self.prepared.values()):
                    if not parts.begun:
                        self._offer(parts)
            case Leaving():
                self.stream.send(left=pb.Left())
                self.left = True

    def _from_head(self, message: Any) -> None:
        match message:
            case pb.LanesOpened():
                self._opened(message)
            case pb.LanesClosed():
                self._closed(message.shard)
            case pb.Prepare():
                self._prepare(message)
            case pb.Numbered():
                self._numbered(message)
            case pb.Drop():
                self.prepared.pop(message.order, None)
            case pb.Keep():
                verified = self.sessions[message.shard].verified
                whole = verified.pop((message.fragment, message.number))
                self.values.arrived(message.shard, whole.head, whole.payload)
            case pb.Forget():
                verified = self.sessions[message.shard].verified
                verified.pop((message.fragment, message.number), None)
            case pb.PlaceShare():
                self._place(message)
            case pb.PromoteShare():
                self.values.promote(message.shard, message.fragment, message.version)
            case pb.DiscardShare():
                self.values.discard(message.shard, message.fragment, message.version)

    def _place(self, wanted: pb.PlaceShare) -> None:
        key = wanted.shard, wanted.fragment
        if key in self.given:
            self.places[key] = wanted
            return
        self.given.add(key)
        self.values.place(wanted.shard, wanted.fragment, wanted.version)
        self.stream.send(placed=pb.Placed(order=wanted.order))

    # ------------------------------------------------------------ what is sent

    def _prepare(self, wanted: pb.Prepare) -> None:
        keys = [(wanted.shard, fragment) for fragment in wanted.fragments]
        bases = {key[1]: self.values.bases[key] for key in keys if wanted.what != pb.PREPARES_SEED}
        self.prepared[wanted.order] = parts = Parts(wanted, bases)
        if wanted.what == pb.PREPARES_OFFER:
            self._offer(parts)
            return
        parts.begun, bad = True, list[str]()
        for key in keys:
            if wanted.what == pb.PREPARES_SEED:
                bad += self.numbers.not_finite(*key)
                parts.encoded[key[1]] = self.numbers.encode_seed(*key)
            else:
                parts.encoded[key[1]] = self.numbers.encode_base(bases[key[1]])
        self.stream.send(prepared=pb.Prepared(order=wanted.order, not_finite=bad))

    def _offer(self, parts: Parts) -> None:
        (fragment,) = parts.wanted.fragments
        count = self.values.captures[parts.wanted.shard, fragment]
        if count == parts.wanted.capture:
            parts.begun = True
            work = asyncio.create_task(self._formed(parts))
            self.works.add(work)
            work.add_done_callback(self.works.discard)
        elif count > parts.wanted.capture:
            self._lost(parts)

    async def _formed(self, parts: Parts) -> None:
        wanted = parts.wanted
        (fragment,) = wanted.fragments
        key = wanted.shard, fragment
        formed, error = None, ""
        try:
            formed = await self.values.formed(key, parts.bases[fragment], wanted.capture)
        except Exception as bug:  # or no memory for it: as where the head fails at it
            log.exception("an offer is not formed", shard=wanted.shard, slice=fragment)
            error = f"error in forming an offer: {bug!r}"
        if wanted.order not in self.prepared:
            return  # dropped, or its session is over
        session = self.sessions.get(wanted.shard)
        if error and session is not None:  # a round would wait for it; the next session may have it
            lost = pb.LanesLost(shard=wanted.shard, opening=session.opening, reason=error)
            self.stream.send(lanes_lost=lost)
        elif formed is None:
            self._lost(parts)
        else:
            parts.encoded[fragment] = formed.encoded
            prepared = pb.Prepared(order=wanted.order, not_finite=formed.not_finite)
            self.stream.send(prepared=prepared)

    def _lost(self, parts: Parts) -> None:
        del self.prepared[parts.wanted.order]
        self.stream.send(prepared=pb.Prepared(order=parts.wanted.order, lost=True))

    def _numbered(self, message: pb.Numbered) -> None:
        parts = self.prepared[message.order]
        encoding, data = parts.encoded.pop(message.fragment)
        if not parts.encoded:
            del self.prepared[message.order]
        head = message.head
        assert head.encoding == encoding, (head, encoding)
        form = self.end.configure.layout.slice(message.shard, message.fragment).form
        line = self.sessions[message.shard].streams.line
        line.add(divided(message.number, Outgoing(head, data), form, line.share))

    # ------------------------------------------------------------ the lanes

    def _opened(self, message: pb.LanesOpened) -> None:
        configure, shard = self.end.configure, message.shard
        share = configure.share
        form = partial(form_of, self.end.configure.layout, shard)
        gathering = Gathering(share.parts, partial(self._admit, shard), form, share)
        verified: dict[tuple[int, int], Whole] = {}
        streams = Lanes(
            endpoint=configure.endpoints[shard],
            open_channel=self.open_channel,
            session=message.session,
            secret=message.secret,
            line=Line(share),
            gathering=gathering,
            whole=partial(self._whole, shard, message.opening, verified),
            ready=self.ready,
        )
        session = LaneSession(opening=message.opening, streams=streams, verified=verified)
        self.sessions[shard] = session
        session.task = asyncio.create_task(self._serve(shard, session), name=f"shard-{shard}")

    def _closed(self, shard: int) -> None:
        if (session := self.sessions.pop(shard, None)) is not None and session.task is not None:
            session.task.cancel()
        for order in [o for o, parts in self.prepared.items() if parts.wanted.shard == shard]:
            del self.prepared[order]

    async def _serve(self, shard: int, session: LaneSession) -> None:
        reason, remedy = "the shard closed the session", ""
        try:
            await session.streams.run()
        except asyncio.CancelledError:
            reason = ""
        except Exception as error:
            found = why_ended(error, session.streams.endpoint)
            reason = found or f"error in a stream: {error!r}"
            if isinstance(error, SpecError):
                reason, remedy = f"{error.field}: {error.problem}", error.remedy
            if found is None:  # a bug
                log.error("stream failed", shard=shard, reason=reason)
        if reason:
            lost = pb.LanesLost(shard=shard, opening=session.opening, reason=reason, remedy=remedy)
            self.stream.send(lanes_lost=lost)

    def _admit(self, shard: int, head: pb.Transfer) -> int | None:
        """The head's rules judge what a Publish says; here its size is checked (rule 25)."""
        if form_of(self.end.configure.layout, shard, head) is None or not head.HasField("publish"):
            return None
        return publish_bytes(self.end.configure, shard, head)

    async def _whole(
        self, shard: int, opening: int, verified: dict[tuple[int, int], Whole], whole: Whole
    ) -> None:
        fragment = whole.head.publish.version.slice
        verified[fragment, whole.number] = whole
        here = pb.Verified(shard=shard, opening=opening, fragment=fragment, number=whole.number)
        here.digest = head_digest(whole.head)
        self.stream.send(verified=here)
