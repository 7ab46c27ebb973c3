"""The gRPC edge of a learner or observer: both streams of one shard, dialled out."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import channels, diagnosis
from atoll_protos.channels import (
    BULK_METHOD,
    SECRET_METADATA,
    SESSION_METADATA,
    Folder,
    Options,
    bulk_options,
    control_options,
)
from atoll_protos.credentials import CredentialsError, Fault, OutOfDateError
from atoll_protos.diagnosis import RefusedError
from atoll_protos.errors import SpecError
from atoll_protos.frames import Assembler, Buffer, FrameError, transfer_frames
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

CONNECT_SECONDS_MAX = 10.0
CONNECTED, FAILED = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE

log = structlog.get_logger()

OpenChannel = Callable[[str, Options], grpc.aio.Channel]
Ready = Callable[[str, grpc.aio.Channel], Awaitable[None]]
Outgoing = tuple[pb.Transfer, Buffer]
Payload = Callable[[], Awaitable[Outgoing | None]]  # None: there is nothing to send after all


class Listener(Protocol):
    """What the driver of a machine hears from one shard; called in the event loop."""

    def connected(self, shard: int) -> None:
        """The control stream is open: Join may be sent."""

    def disconnected(self, shard: int, reason: str) -> None:
        """Both streams are gone; said once per `dial`."""

    def message(self, shard: int, message: pb.ToLearner) -> None:
        """A control message has arrived."""

    def publish_started(self, shard: int, head: pb.Transfer) -> int | None:
        """The byte count that the coming transfer may have, or None to drop the session."""

    async def published(self, shard: int, head: pb.Transfer, payload: bytearray) -> None:
        """A transfer is whole and its checksum is right."""


class Dialler:
    """Opens channels with the credentials that lie in the folder now, or in plain text."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._fault: Fault | None = None

    def open(self, endpoint: str, options: Options) -> grpc.aio.Channel:
        """Raises CredentialsError, and OutOfDateError for what a renewal heals."""
        return channels.open_channel(endpoint, options, self.folder.read())

    def trouble(self) -> str:
        """Why no channel could be opened now, in one line; empty: one could.

        The words stay as they are while the same is wrong with the same file.
        """
        found: Fault | None = None
        try:
            self.folder.read()
        except (CredentialsError, OutOfDateError) as error:
            found = error.fault
        known = self._fault
        if known is None or found is None or (known.kind, known.field) != (found.kind, found.field):
            self._fault = found
        return f"{self._fault}; until then it keeps the connections it has" if self._fault else ""

    async def ready(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        """Until a server has answered. When the first attempt fails, look once why.

        Raises RefusedError and MismatchError where shard and process do not take each other.
        """
        looked = False
        while (state := channel.get_state(try_to_connect=True)) is not CONNECTED:
            if state is FAILED and not looked:
                looked = True
                credentials = self.folder.read()
                seen = await diagnosis.look(endpoint, credentials)
                error = diagnosis.judge(seen, credentials, self.folder.clock())
                if error is not None:
                    raise error
            else:
                await channel.wait_for_state_change(state)


async def channel_ready(endpoint: str, channel: grpc.aio.Channel) -> None:
    """Until a server has answered."""
    del endpoint
    await channel.channel_ready()


@dataclass(slots=True)
class Outbox:
    """Messages on their way: ordered ones, and a mailbox in which the latest report wins."""

    ordered: deque[pb.ToShard] = field(default_factory=deque)
    report: pb.ToShard | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.taken.set()  # nothing waits yet, also where no session ever comes

    def put(self, message: pb.ToShard) -> None:
        """Queue one message; a report replaces an unsent older one (rule 7)."""
        if message.WhichOneof("kind") == "report":
            self.report = message
        else:
            self.ordered.append(message)
        self.ready.set()
        self.taken.clear()

    async def take(self) -> pb.ToShard:
        """The next message; waits for one."""
        while True:
            if self.ordered:
                return self.ordered.popleft()
            if self.report is not None:
                message, self.report = self.report, None
                return message
            self.taken.set()
            self.ready.clear()
            await self.ready.wait()


class ShardClient:
    """Both streams to one shard. `dial` once per connection; `hang_up` ends it."""

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
        self.bytes_sent = 0
        self.bytes_received = 0
        self._outbox = Outbox()
        self._bulk: asyncio.Queue[Payload] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def dial(self) -> None:
        """Open the streams in the background; the listener hears how it goes."""
        assert self._task is None, "dialled twice"
        self._outbox, self._bulk = Outbox(), asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name=f"shard-{self.shard}")

    def hang_up(self) -> None:
        """Close both streams; the listener hears `disconnected`."""
        if self._task is not None:
            self._task.cancel()

    def send(self, message: pb.ToShard) -> None:
        """Queue a control message for the open session."""
        self._outbox.put(message)

    def send_bulk(self, payload: Payload) -> None:
        """Queue a transfer; `payload` is asked for its head and bytes when its turn comes."""
        self._bulk.put_nowait(payload)

    async def drained(self, seconds_max: float) -> None:
        """Wait until queued control messages have left, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._outbox.taken.wait(), seconds_max)

    async def _run(self) -> None:
        reason = "the shard closed the session"
        try:
            async with self._open_channel(self.endpoint, control_options()) as channel:
                await asyncio.wait_for(self._ready(self.endpoint, channel), CONNECT_SECONDS_MAX)
                await self._session(channel)
        except TimeoutError:
            reason = f"{self.endpoint} does not answer"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except FrameError as error:
            reason = f"bad transfer: {error}"
        except SpecError as error:  # of the credentials: no dialling helps
            reason = str(error)
            self._refuse(f"{error.field}: {error.problem}", error.remedy)
        except OutOfDateError as error:
            reason = str(error)
        except RefusedError as error:
            reason = f"{self.endpoint}: {error}"
        except asyncio.CancelledError:
            reason = "hung up"
        except Exception as error:  # a bug; the session that it ended is not left mute
            reason = f"error in a stream: {error!r}"
            log.error("stream failed", shard=self.shard, reason=reason)
            raise
        finally:
            self._task = None
            self.listener.disconnected(self.shard, reason)

    def _refuse(self, reason: str, remedy: str) -> None:
        """What a shard would say of these credentials, if it could be asked."""
        end = pb.End(code=pb.NOT_ALLOWED, reason=reason, remedy=remedy)
        self.listener.message(self.shard, pb.ToLearner(end=end))

    async def _session(self, channel: grpc.aio.Channel) -> None:
        """Until any of the streams ends; the first error is raised."""
        call = SyncerStub(channel).Session()
        self.listener.connected(self.shard)
        session = asyncio.get_running_loop().create_future()
        await first_to_end(
            self._read_control(call, session), self._write_control(call), self._bulk_stream(session)
        )

    async def _read_control(self, call: Any, session: "asyncio.Future[pb.Welcome]") -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            if message.WhichOneof("kind") == "welcome" and not session.done():
                session.set_result(message.welcome)
            self.listener.message(self.shard, message)

    async def _write_control(self, call: Any) -> None:
        with suppress(asyncio.InvalidStateError):  # the shard has ended the stream
            while True:
                await call.write(await self._outbox.take())

    async def _bulk_stream(self, session: "asyncio.Future[pb.Welcome]") -> None:
        """Opened once the shard has said the session's number and secret in its Welcome."""
        welcome = await session
        metadata = (
            (SESSION_METADATA, str(welcome.session)),
            (SECRET_METADATA, welcome.secret),
        )
        async with self._open_channel(self.endpoint, bulk_options()) as channel:
            method: Any = channel.stream_stream(BULK_METHOD)
            call = method(metadata=metadata)
            await first_to_end(self._read_bulk(call), self._write_bulk(call))

    async def _read_bulk(self, call: Any) -> None:
        assembler = Assembler(lambda head: self.listener.publish_started(self.shard, head))
        while (frame := await call.read()) is not grpc.aio.EOF:
            self.bytes_received += len(frame)
            done = assembler.feed(frame)
            if done is not None:
                await self.listener.published(self.shard, done.head, done.payload)

    async def _write_bulk(self, call: Any) -> None:
        number, data_state = 0, None
        with suppress(asyncio.InvalidStateError):  # the shard has ended the stream
            while True:
                outgoing = await (await self._bulk.get())()
                if outgoing is None:
                    continue
                head, data = outgoing
                data_state = once(head, data_state)
                number += 1
                for frame in transfer_frames(number, head, data):
                    await call.write(frame)
                    self.bytes_sent += len(frame)


def once(head: pb.Transfer, sent: bytes | None) -> bytes | None:
    """A session carries a data state once: not in an offer that has the same one as the last.

    `sent` is the last one so far; returns the last one with this offer.
    """
    if not head.offer.HasField("data_state"):
        return sent
    if head.offer.data_state != sent:
        return head.offer.data_state
    head.offer.ClearField("data_state")
    head.offer.same_data_state = True
    return sent


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
