"""A lane process: carries one host's share of every slice, as the head of the learner tells it.

It has a training process of its own, whose memory holds the share: the first rank of its host. And
it has a stream to the head (side.py), which knows the rules. It decides nothing about rounds,
versions or offers; it decides when its own memory may be read and written (coordination.Regions):

    Prepare(offer)  waits for the Boundary that reports the capture, is formed in a thread,
                    and is answered by Prepared; a capture that was overwritten is lost
    Numbered        its parts go in line on the lanes of the open session
    Publish         whose own parts are verified: told to the head, kept until its Keep or Forget
    Keep            decoded: a candidate now
    Place           waits until the training process has left the adopt region; then Placed

What it does with values is what the head does with its own (values.py). Commands reach its training
process by way of the head's, since all ranks obey the head.

It ends with the first of three: its training process (then the head loses it), the head (then the
training process sees the end of its link), or both in order. After a Leaving of its training
process it serves on until the head has gone: the head may still have a companion or a Leave to send
in sessions that end with any of their lanes.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.addresses import split
from atoll_protos.codecs import Form
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.frames import Whole
from atoll_protos.gathering import Gathering, key_of
from atoll_worker.link.messages import Boundary, Leaving
from atoll_worker.transport import side
from atoll_worker.transport.bulk import BulkStreams, OpenChannel, Ready, why_ended
from atoll_worker.transport.coordination import Capture, Regions
from atoll_worker.transport.ends import TrainingEnd
from atoll_worker.transport.hands import head_digest
from atoll_worker.transport.lanes import Line, Outgoing, divided
from atoll_worker.transport.numbers import Base, Encoded, Numbers
from atoll_worker.transport.side import Hello, Kind
from atoll_worker.transport.stream import SideStream
from atoll_worker.transport.values import Values, publish_bytes

CONNECT_SECONDS_MAX = 20.0
LEAVE_SECONDS_MAX = 9.0  # from a Leaving to the end of the head, which may take 3 + 3 + 2 s

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Session:
    """The lanes of one session with a shard."""

    opening: int  # the head's number of it
    line: Line
    streams: BulkStreams
    verified: dict[tuple[int, int], Whole]  # by slice and number
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Parts:
    """What one Prepare asked for: this host's parts of its slices, by fragment."""

    wanted: side.Prepare
    bases: dict[int, Base]  # as they were held when it came
    encoded: dict[int, Encoded] = field(default_factory=dict)
    begun: bool = False  # to be formed; an offer waits for its capture


@dataclass(slots=True, kw_only=True)
class LaneProcess:
    """See the module. `run` is its whole life."""

    end: TrainingEnd
    numbers: Numbers
    open_channel: OpenChannel
    ready: Ready
    values: Values = field(init=False)
    regions: Regions = field(init=False)
    stream: SideStream = field(init=False)
    sessions: dict[int, Session] = field(default_factory=dict)  # by shard
    prepared: dict[int, Parts] = field(default_factory=dict)  # by order
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the training process
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    works: set["asyncio.Task[Any]"] = field(default_factory=set)
    bug: Exception | None = None  # of this process

    def __post_init__(self) -> None:
        self.values = Values(self.numbers)
        self.values.begin((each.shard, each.fragment) for each in self.end.layout.slices)
        self.regions = Regions(self.values.captures)

    async def run(self) -> int:
        """Until the training process or the head has gone; returns the exit code, raises bugs."""
        configure = self.end.configure
        host, port = split(configure.head)
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            log.error("the head of this learner is not reached", head=configure.head, reason=error)
            return int(ExitCode.TRY_AGAIN)
        self.stream = SideStream(reader, writer, configure.silence_seconds)
        share = configure.share
        self.stream.send(
            Hello(secret=configure.secret, first=share.first, stop=share.stop, lanes=share.parts)
        )
        self.end.attach(asyncio.get_running_loop(), self._hear_training, self.gone.set)
        head = asyncio.create_task(self.stream.run(self._from_head))
        ending = asyncio.create_task(self._ended())
        await asyncio.wait({head, ending}, return_when=asyncio.FIRST_COMPLETED)
        if self.bug is not None:
            raise self.bug
        if not head.done():
            return int(ending.result())
        if lost := head.result():
            log.error(
                f"the head's transport {lost}; this lane process ends", lanes=str(share.lanes)
            )
            return int(ExitCode.TRY_AGAIN)
        return int(ExitCode.FINAL)

    async def _ended(self) -> ExitCode:
        """Return when the training process is lost, or the head outlasts its leaving for long."""
        gone, left = (asyncio.create_task(each.wait()) for each in (self.gone, self.leaving))
        await asyncio.wait({gone, left}, return_when=asyncio.FIRST_COMPLETED)
        if not left.done():
            return ExitCode.TRY_AGAIN
        await asyncio.sleep(LEAVE_SECONDS_MAX)
        return ExitCode.FINAL

    # ------------------------------------------------------------ the training process

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
                    if (waiting := self.regions.adopted((shard, fragment))) is not None:
                        self._place(waiting)
                for parts in list(self.prepared.values()):
                    if not parts.begun:
                        self._offer(parts)
            case Leaving():
                self.stream.send(side.Left())
                self.leaving.set()

    # ------------------------------------------------------------ the head

    def _from_head(self, message: Any) -> None:
        match message:
            case side.Opened():
                self._opened(message)
            case side.Closed(shard=shard):
                self._closed(shard)
            case side.Prepare():
                self._prepare(message)
            case side.Numbered():
                self._numbered(message)
            case side.Drop(order=order):
                self.prepared.pop(order, None)
            case side.Keep(shard=shard, fragment=fragment, number=number):
                whole = self.sessions[shard].verified.pop((fragment, number))
                self.values.arrived(shard, whole.head, whole.payload)
            case side.Forget(shard=shard, fragment=fragment, number=number):
                self.sessions[shard].verified.pop((fragment, number), None)
            case side.Place():
                if self.regions.place(message):
                    self._place(message)
            case side.Promote(shard=shard, fragment=fragment, version=version):
                self.values.promote(shard, fragment, version)
            case side.Discard(shard=shard, fragment=fragment, version=version):
                self.values.discard(shard, fragment, version)

    def _place(self, wanted: side.Place) -> None:
        self.values.place(wanted.shard, wanted.fragment, wanted.version)
        self.stream.send(side.Placed(order=wanted.order))

    # ------------------------------------------------------------ what is sent

    def _prepare(self, wanted: side.Prepare) -> None:
        keys = [(wanted.shard, fragment) for fragment in wanted.fragments]
        bases = {key[1]: self.values.bases[key] for key in keys if wanted.what != Kind.SEED}
        self.prepared[wanted.order] = parts = Parts(wanted, bases)
        if wanted.what == Kind.OFFER:
            self._offer(parts)
            return
        parts.begun, bad = True, list[str]()
        for key in keys:
            if wanted.what == Kind.SEED:
                bad += self.numbers.not_finite(*key)
                parts.encoded[key[1]] = self.numbers.encode_seed(*key)
            else:
                parts.encoded[key[1]] = self.numbers.encode_base(bases[key[1]])
        self.stream.send(side.Prepared(order=wanted.order, not_finite=tuple(bad)))

    def _offer(self, parts: Parts) -> None:
        """Form it, if its capture is reported."""
        match self.regions.captured(parts.wanted):
            case Capture.THERE:
                parts.begun = True
                work = asyncio.create_task(self._formed(parts))
                self.works.add(work)
                work.add_done_callback(self.works.discard)
            case Capture.LOST:
                self._lost(parts)

    async def _formed(self, parts: Parts) -> None:
        wanted = parts.wanted
        (fragment,) = wanted.fragments
        key = wanted.shard, fragment
        try:
            formed = await self.values.formed(key, parts.bases[fragment], wanted.capture)
        except Exception as error:  # no memory for it, or a bug: as where the head fails at it
            log.exception("an offer is not formed", shard=wanted.shard, slice=fragment)
            self._cannot(parts, f"error in forming an offer: {error!r}")
            return
        if wanted.order not in self.prepared:
            return  # dropped, or its session is over
        if formed is None:
            self._lost(parts)
            return
        parts.encoded[fragment] = formed.encoded
        self.stream.send(side.Prepared(order=wanted.order, not_finite=formed.not_finite))

    def _cannot(self, parts: Parts, reason: str) -> None:
        """The session ends: its rounds would wait for this offer, and the next one may have it."""
        shard = parts.wanted.shard
        if parts.wanted.order not in self.prepared:
            return  # dropped, or its session is over
        if (session := self.sessions.get(shard)) is None:  # about to open
            self._lost(parts)
            return
        lost = side.LanesLost(shard=shard, opening=session.opening, reason=reason)
        self.stream.send(lost)

    def _lost(self, parts: Parts) -> None:
        del self.prepared[parts.wanted.order]
        self.stream.send(side.Prepared(order=parts.wanted.order, lost=True))

    def _numbered(self, message: side.Numbered) -> None:
        parts = self.prepared[message.order]
        encoding, data = parts.encoded.pop(message.fragment)
        if not parts.encoded:
            del self.prepared[message.order]
        head = pb.Transfer.FromString(message.head)
        assert head.encoding == encoding, (head, encoding)
        form = self.end.layout.slice(message.shard, message.fragment).form
        line = self.sessions[message.shard].line
        line.add(divided(message.number, Outgoing(head, data), form, line.share))

    # ------------------------------------------------------------ the lanes

    def _opened(self, message: side.Opened) -> None:
        configure, shard = self.end.configure, message.shard
        share = configure.share
        line = Line(share)
        gathering = Gathering(
            share.parts, partial(self._admit, shard), partial(self._form, shard), share
        )
        verified: dict[tuple[int, int], Whole] = {}
        streams = BulkStreams(
            endpoint=configure.endpoints[shard],
            open_channel=self.open_channel,
            session=message.session,
            secret=message.secret,
            line=line,
            gathering=gathering,
            whole=partial(self._whole, shard, message.opening, verified),
            ready=self.ready,
        )
        session = Session(opening=message.opening, line=line, streams=streams, verified=verified)
        self.sessions[shard] = session
        session.task = asyncio.create_task(self._serve(shard, session), name=f"shard-{shard}")

    def _closed(self, shard: int) -> None:
        """What was prepared for the session, or came in it, is forgotten."""
        if (session := self.sessions.pop(shard, None)) is not None and session.task is not None:
            session.task.cancel()
        for order in [o for o, parts in self.prepared.items() if parts.wanted.shard == shard]:
            del self.prepared[order]

    async def _serve(self, shard: int, session: Session) -> None:
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
            self.stream.send(
                side.LanesLost(shard=shard, opening=session.opening, reason=reason, remedy=remedy)
            )

    def _admit(self, shard: int, head: pb.Transfer) -> int | None:
        """The head's rules judge what a Publish says; here its size is checked (rule 25)."""
        if self._form(shard, head) is None or not head.HasField("publish"):
            return None
        return publish_bytes(self.end.layout, self.end.run_file.sync, shard, head)

    def _form(self, shard: int, head: pb.Transfer) -> Form | None:
        kind, fragment = key_of(head)
        layout = self.end.layout
        if kind == "companion" or not 0 <= fragment < layout.fragments:
            return None
        return layout.slice(shard, fragment).form

    async def _whole(
        self, shard: int, opening: int, verified: dict[tuple[int, int], Whole], whole: Whole
    ) -> None:
        fragment = whole.head.publish.version.slice
        verified[fragment, whole.number] = whole
        self.stream.send(
            side.Verified(
                shard=shard,
                opening=opening,
                fragment=fragment,
                number=whole.number,
                digest=head_digest(whole.head),
            )
        )
