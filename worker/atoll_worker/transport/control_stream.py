"""The gRPC edge of a learner or observer: the streams of one shard, dialled out.

The Bulk streams of a session: gRPC, frames and nothing else.

What is to be sent waits in the client's queue as *payloads*, each of which is asked for its head
and bytes when its turn comes. It goes over all lanes of the session (rule 32).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.network import channels
from atoll_protos.network.channels import (
    BULK_METHOD,
    LANE_METADATA,
    SECRET_METADATA,
    SESSION_METADATA,
    Folder,
    Options,
    RefusedError,
    bulk_options,
    control_options,
    details_of,
)
from atoll_protos.network.credentials import Credentials, CredentialsError, OutOfDateError
from atoll_protos.transfer.frames import (
    Buffer,
    FrameError,
    Whole,
    transfer_frames,
)
from atoll_protos.transfer.gathering import Gathering
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

CONNECT_SECONDS_MAX = 10.0

OpenChannel = Callable[[str, Options], grpc.aio.Channel]
Ready = Callable[[str, grpc.aio.Channel], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is to be sent: its head, with the byte count of the whole, and its bytes."""

    head: pb.Transfer
    data: Buffer


Payload = Callable[[], Awaitable[Outgoing | None]]  # None: there is nothing to send after all
Payloads = asyncio.Queue[Payload]


def not_told() -> None:
    """Where nobody wants to know that bytes have come."""


@dataclass(slots=True, kw_only=True)
class Bulk:
    """The streams of one session, one for each lane. The end of one is the end of all.

    `admit` is asked for each transfer that comes (`frames.Assembler`), `whole` gets each that is
    complete, and `heard` is called for every frame.
    """

    endpoint: str
    open_channel: OpenChannel
    session: int
    secret: str
    payloads: Payloads
    admit: Callable[[pb.Transfer], int | None]
    whole: Callable[[Whole], Awaitable[None]]
    heard: Callable[[], None] = not_told
    lanes: int = 1

    async def run(self) -> None:
        async with AsyncExitStack() as opened:
            gathering = Gathering(self.lanes, self.admit)
            calls = [await self._call(opened, lane) for lane in range(self.lanes)]
            reads = [self._read(gathering, lane, call) for lane, call in enumerate(calls)]
            await first_to_end(*reads, self._write(calls))

    async def _call(self, opened: AsyncExitStack, lane: int) -> Any:
        metadata = [(SESSION_METADATA, str(self.session)), (SECRET_METADATA, self.secret)]
        if self.lanes > 1:
            metadata.append((LANE_METADATA, str(lane)))
        channel = self.open_channel(self.endpoint, bulk_options())
        method: Any = (await opened.enter_async_context(channel)).stream_stream(BULK_METHOD)
        return method(metadata=tuple(metadata))

    async def _read(self, gathering: Gathering, lane: int, call: Any) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            self.heard()
            if (whole := gathering.feed(lane, frame)) is not None:
                await self.whole(whole)
            await gathering.turn(lane)

    async def _write(self, calls: Sequence[Any]) -> None:
        data_state: bytes | None = None  # the last one that was sent
        with suppress(asyncio.InvalidStateError):  # the shard has ended a stream
            for number in count(1):
                while (outgoing := await (await self.payloads.get())()) is None:
                    pass
                head, data = outgoing.head, outgoing.data
                data_state = once(head, data_state)
                stripes = (
                    transfer_frames(number, head, data, self.lanes, lane)
                    for lane in range(self.lanes)
                )
                await asyncio.gather(*map(_send, calls, stripes))


async def _send(call: Any, frames: Iterator[bytes]) -> None:
    for frame in frames:
        await call.write(frame)


def once(head: pb.Transfer, sent: bytes | None) -> bytes | None:
    """Send a data state once a session: `sent` was the last; return the last one now."""
    if not head.offer.HasField("data_state"):
        return sent
    if head.offer.data_state != sent:
        return head.offer.data_state
    head.offer.ClearField("data_state")
    head.offer.same_data_state = True
    return sent


def why_ended(error: Exception, endpoint: str) -> str | None:
    """Why streams to a shard have ended, in one line; None where the error is a bug."""
    match error:
        case TimeoutError():
            return f"{endpoint} does not answer"
        case grpc.aio.AioRpcError():
            return f"{error.code().name}: {details_of(error)}"
        case FrameError():
            return f"bad transfer: {error}"
        case SpecError() | OutOfDateError():  # of the credentials
            return str(error)
        case RefusedError():
            return f"{endpoint}: {error}"
    return None


async def first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one returns or raises, then cancel the others; raises what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


FAILED: Final = grpc.ChannelConnectivity.TRANSIENT_FAILURE

ATTEMPT_SECONDS: Final = 1.0  # at one address in the first dial; doubles to CONNECT_SECONDS_MAX
ATTEMPTS: Final = 4  # that a dial lasts at least

log = structlog.get_logger()


class Listener(Protocol):
    """What the driver of a machine hears from one shard; called in the event loop."""

    def connected(self, shard: int) -> None:
        """Allow the Join: the control stream is open."""

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Payloads) -> Any:
        """Open the Bulk streams of a shard that takes this process; their `run` is their life."""

    def disconnected(self, shard: int, reason: str) -> None:
        """All streams are gone; said once per `dial`."""

    def message(self, shard: int, message: pb.ToLearner) -> None:
        """Take a control message."""


class Dialler:
    """Opens channels with the credentials that lie in the folder now, or in plain text."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._shown: dict[str, Credentials] = {}  # by endpoint, with which its session began

    def open(self, endpoint: str, options: Options) -> grpc.aio.Channel:
        """Raise CredentialsError, and OutOfDateError for what a renewal heals."""
        found = self.folder.read()
        if found is not None and options != bulk_options():
            self._shown[endpoint] = found
        return channels.open_channel(endpoint, options, found)

    def outlived(self) -> frozenset[str]:
        """Endpoints whose sessions began with another certificate than one dialled now would."""
        try:
            found = self.folder.read()
        except (CredentialsError, OutOfDateError):
            return frozenset()
        shown = self._shown.items()
        return frozenset(e for e, each in shown if found and each.certificate != found.certificate)

    def trouble(self) -> str:
        """Why no channel could be opened now, in one line; empty: one could."""
        try:
            self.folder.read()
        except (CredentialsError, OutOfDateError) as error:
            return f"{error}; until then it keeps the connections it has"
        return ""

    async def ready(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        """Until a server has answered. When the first attempt fails, look meanwhile why.

        Raises RefusedError and MismatchError where shard and process do not take each other.
        """
        await first_to_end(channel.channel_ready(), self._judged(endpoint, channel))

    async def _judged(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        while (state := channel.get_state()) is not FAILED:
            await channel.wait_for_state_change(state)
        credentials = self.folder.read()
        seen = await channels.probe(endpoint, credentials)
        error = channels.judge(seen, credentials, self.folder.clock())
        if error is not None:
            raise error
        await asyncio.Event().wait()  # the channel tries on


async def channel_ready(endpoint: str, channel: grpc.aio.Channel) -> None:
    del endpoint
    await channel.channel_ready()


@dataclass(slots=True)
class Outbox:
    """Messages on their way: ordered ones, and the latest report (rule 7)."""

    ordered: deque[pb.ToShard] = field(default_factory=deque)
    report: pb.ToShard | None = None
    closed: bool = False  # nothing comes after what waits
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: pb.ToShard) -> None:
        if message.WhichOneof("kind") == "report":
            self.report = message
        else:
            self.ordered.append(message)
        self.ready.set()

    def close(self) -> None:
        self.closed = True
        self.ready.set()

    async def take(self) -> pb.ToShard | None:
        """Wait for the next message and return it; None behind the last."""
        while True:
            if self.ordered:
                return self.ordered.popleft()
            if self.report is not None:
                message, self.report = self.report, None
                return message
            if self.closed:
                return None
            self.ready.clear()
            await self.ready.wait()


class ShardClient:
    """All streams to one shard. `dial` once per connection; `leave` or `hang_up` ends it."""

    def __init__(
        self,
        shard: int,
        endpoint: str,
        listener: Listener,
        open_channel: OpenChannel,
        ready: Ready = channel_ready,
    ) -> None:
        self.shard, self.endpoint, self.listener = shard, endpoint, listener
        self._open_channel, self._ready = open_channel, ready
        self._outbox = Outbox()
        self._bulk: asyncio.Queue[Payload] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._hung_up = ""  # why
        self._unanswered = 0  # dials, in a row
        self._welcomed = False  # else the shard has heard nothing but a Join

    def dial(self) -> None:
        assert self._task is None, "dialled twice"
        self._outbox, self._bulk = Outbox(), asyncio.Queue()
        self._hung_up, self._welcomed = "hung up", False
        self._task = asyncio.create_task(self._run(), name=f"shard-{self.shard}")

    def hang_up(self, reason: str = "hung up") -> None:
        """Close all streams; the listener hears `disconnected` with the first reason."""
        if self._task is not None and not self._task.cancelling():
            self._hung_up = reason
            self._task.cancel()

    def send(self, message: pb.ToShard) -> None:
        self._outbox.put(message)

    def send_bulk(self, payload: Payload) -> None:
        """`payload` is asked for its head and bytes when its turn comes."""
        self._bulk.put_nowait(payload)

    async def leave(self, seconds_max: float) -> None:
        """Close the control stream first, the others when the shard has answered (rule 24)."""
        if self._task is not None and self._welcomed:
            self._outbox.close()
            await asyncio.wait([self._task], timeout=seconds_max)
        self.hang_up()

    async def _run(self) -> None:
        reason = "the shard closed the session"
        try:
            attempt = self._patience()
            async with self._open_channel(self.endpoint, control_options(attempt)) as channel:
                async with asyncio.timeout(min(CONNECT_SECONDS_MAX, ATTEMPTS * attempt)):
                    await self._ready(self.endpoint, channel)
                self._unanswered = 0
                await self._session(channel)
        except asyncio.CancelledError:
            reason = self._hung_up
        except Exception as error:
            if isinstance(error, SpecError):  # of the credentials: no dialling helps
                self.refuse(f"{error.field}: {error.problem}", error.remedy)
            found = why_ended(error, self.endpoint)
            reason = found or f"error in a stream: {error!r}"
            if found is None:  # a bug; the session that it ended is not left mute
                log.error("stream failed", shard=self.shard, reason=reason)
                raise
        finally:
            self._task = None
            self.listener.disconnected(self.shard, reason)

    def _patience(self) -> float:
        """How long an attempt at one address may take: an end that is gone or stands says nothing.

        It holds up the other process of its shard, which may begin to listen a moment later. On a
        slow link an attempt needs longer, so a dial without an answer makes that of the next one
        longer.
        """
        seconds = min(CONNECT_SECONDS_MAX, ATTEMPT_SECONDS * (1 << min(self._unanswered, 8)))
        self._unanswered += 1
        return seconds

    def refuse(self, reason: str, remedy: str) -> None:
        """Say what a shard would say of these credentials, if it could be asked."""
        end = pb.End(code=pb.NOT_ALLOWED, reason=reason, remedy=remedy)
        self.listener.message(self.shard, pb.ToLearner(end=end))

    async def _session(self, channel: grpc.aio.Channel) -> None:
        call = SyncerStub(channel).Session()
        self.listener.connected(self.shard)
        session = asyncio.get_running_loop().create_future()
        await first_to_end(
            self._read_control(call, session),
            self._write_control(call),
            self._bulk_streams(session),
        )

    async def _read_control(self, call: Any, session: "asyncio.Future[pb.Welcome]") -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self.listener.message(self.shard, message)  # who may hang up for what it says
            assert self._task is not None, "a session without its task"
            is_welcome = message.WhichOneof("kind") == "welcome" and not session.done()
            if is_welcome and not self._task.cancelling():
                self._welcomed = True
                session.set_result(message.welcome)

    async def _write_control(self, call: Any) -> None:
        with suppress(asyncio.InvalidStateError):  # the shard has ended the stream
            while (message := await self._outbox.take()) is not None:
                await call.write(message)
            await call.done_writing()
            await asyncio.Event().wait()  # until the shard closes the session

    async def _bulk_streams(self, session: "asyncio.Future[pb.Welcome]") -> None:
        welcome = await session
        await self.listener.opened(self.shard, welcome, self._bulk).run()
