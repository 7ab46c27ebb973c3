"""The gRPC edge of a shard: Session and Bulk streams, Status, and the registrar's calls.

Each session has two streams (rule 24), so that a large transfer never delays a control message:

    learner --Session--> _read    --> Shard.message
            <----------- _write   <-- SessionPort.control, in order
    learner --Bulk-----> _receive --> Shard.transfer_started, Driver.transferred
            <----------- _publish <-- SessionPort.lacking, one transfer at a time

The session begins with its Join, and the end of either stream ends it. The Bulk stream names the
session's number and the secret of its Welcome, which no other process knows: a session has one
Bulk stream, and whoever else asks for one is refused. A transfer under way in which nothing comes
for STALLED_SECONDS ends its session, else a peer that answers pings could hold a slice for ever.

Memory of a slow receiver is bounded: of unsent ticks only the newest stays, and of each slice only
the fact that the receiver lacks it. What is sent for it is looked up when the stream is free
(`Shard.publish`), so it is always the newest. The number of sessions is bounded too:
RESOURCE_EXHAUSTED refuses a Join, and never ends a session.

With mutual TLS every call is looked at before the rules see anything of it (`doorkeeper`): a Join
is answered with an End, other calls with PERMISSION_DENIED.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
import atoll_protos.v1.atoll_pb2_grpc as rpc
from atoll_protos.channels import (
    BULK_METHOD,
    SECRET_METADATA,
    SESSION_METADATA,
    server_options,
)
from atoll_protos.frames import Assembler, FrameError, transfer_frames
from atoll_protos.identity import Identity
from atoll_syncer import admission
from atoll_syncer.admission import Refusal
from atoll_syncer.doorkeeper import Doorkeeper, anybody
from atoll_syncer.driver import Driver
from atoll_syncer.rules.status import status

JOIN_SECONDS_MAX = 20.0
STALLED_SECONDS = 30.0  # between two frames of a transfer
SESSIONS_MAX = 20_000  # of all kinds, also those that have not sent their Join
DIGITS_MAX = 20  # of a session's number
OBSERVERS_MAX = 64  # each gets all values, and is no part of the training

log = structlog.get_logger()


class SessionPort:
    """What one session is to be sent: ordered control messages, and the slices that it lacks."""

    def __init__(self, secret: str = "", peer: Identity | None = None) -> None:
        self.secret = secret  # of its Welcome
        self.peer = peer  # who has opened it; None in plain text
        self.control: deque[pb.ToLearner] = deque()
        self.control_ready = asyncio.Event()
        self.lacking: dict[
            int, None
        ] = {}  # in order of request: at most one Publish of a slice waits
        self.parts: deque[tuple[str, pb.Companion]] = deque()  # object and head, for an observer
        self.bulk_ready = asyncio.Event()
        self.ended = False
        self.bulk_task: asyncio.Task[None] | None = None
        self.bulk_over = asyncio.Event()  # it ended by itself, so the session must end too

    def send(self, message: pb.ToLearner) -> None:
        """See outside.Port; a newer tick replaces an unsent older one."""
        if message.HasField("welcome"):
            message.welcome.secret = self.secret
        if message.HasField("tick") and self.control and self.control[-1].HasField("tick"):
            self.control.pop()
        self.control.append(message)
        self.control_ready.set()

    def publish(self, fragment: int) -> None:
        """See outside.Port."""
        self.lacking[fragment] = None
        self.bulk_ready.set()

    def publish_companion(self, objects: Sequence[str], *, changed: bool) -> None:
        """See outside.Port."""
        for part, name in enumerate(objects):
            self.parts.append((name, pb.Companion(changed=changed, part=part)))
        self.bulk_ready.set()

    def end(self, end: pb.End) -> None:
        """See outside.Port."""
        if not self.ended:
            self.send(pb.ToLearner(end=end))
            self.ended = True


@contextmanager
def _bugs_end(driver: Driver) -> Iterator[None]:
    """What the rules or the driver raise on a peer's input is a bug and ends the process.

    Without this gRPC would close that one stream, say nothing, and the process would go on with a
    half-changed state.
    """
    try:
        yield
    except Exception as error:
        driver.failed(error)
        raise


class SyncerService(rpc.SyncerServicer):
    """What learners, observers and the operator connect to."""

    def __init__(self, driver: Driver, identity: Identity | None = None) -> None:
        self.driver, self.door = driver, Doorkeeper(identity, driver)
        self.sessions = 0  # so far: the number of the newest
        self.open = 0  # Session streams
        self.observers = 0
        self.said = pb.StatusRequest()  # the operator's last word on the job

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """One instance's control stream, from its Join to the session's end."""
        if self.open >= SESSIONS_MAX:
            await self._full(context, f"this shard has {SESSIONS_MAX} sessions, the most it serves")
        self.open += 1
        try:
            join = await self._join(context)
            if join is None:
                return
            peer = self.door.look(context, "joining", partial(admission.of_join, join=join))
            if isinstance(peer, Refusal):
                await context.write(pb.ToLearner(end=peer.end))
            elif join.observer:
                await self._observer(join, context, peer)
            else:
                await self._session(join, context, peer)
        finally:
            self.open -= 1

    async def _join(self, context: Any) -> pb.Join | None:
        """A stream's first message; None when it is no Join, or does not come."""
        try:
            first = await asyncio.wait_for(context.read(), JOIN_SECONDS_MAX)
        except TimeoutError:
            return None
        return first.join if first is not grpc.aio.EOF and first.HasField("join") else None

    async def _observer(self, join: pb.Join, context: Any, peer: Identity | None) -> None:
        if self.observers >= OBSERVERS_MAX:
            await self._full(context, f"this shard serves at most {OBSERVERS_MAX} observers")
        self.observers += 1
        try:
            await self._session(join, context, peer)
        finally:
            self.observers -= 1

    async def _full(self, context: Any, reason: str) -> None:
        log.warning("join refused", peer=context.peer(), reason=reason)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{reason}; try again later")

    async def _session(self, join: pb.Join, context: Any, peer: Identity | None) -> None:
        self.sessions += 1
        driver, number = self.driver, self.sessions
        port = SessionPort(driver.machine.new_secret(), peer)
        driver.ports[number] = port
        log.info("join", session=number, slot=join.slot, instance=join.instance)
        with _bugs_end(driver):
            driver.feed(driver.shard.session_opened(number, join, driver.now()))
        ends = [
            asyncio.create_task(self._read(number, context)),
            asyncio.create_task(self._write(port, context)),
            asyncio.create_task(port.bulk_over.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*ends, port.bulk_task):
                if task is not None:
                    task.cancel()
            driver.ports.pop(number, None)
            with _bugs_end(driver):
                driver.session_closed(number)
            log.info("session ended", session=number, slot=join.slot)

    async def Status(self, request: Any, context: Any) -> pb.StatusReply:  # noqa: N802
        """The shard's state; what is tried again at the store is its reason, if it has no other.

        What the operator says with its question is told to whoever asks next.
        """
        says = bool(request.intent)
        await self.door.admit(context, "Status", self.door.speaks if says else anybody)
        if says:
            self.said = request
        reply = status(self.driver.shard.state, self.driver.now())
        reply.intent, reply.why = self.said.intent, self.said.why
        reply.must_equal = self.driver.shard.state.run_file.must_equal
        reply.bytes_received = self.driver.bytes_received
        reply.bytes_sent = self.driver.bytes_sent
        reply.reason = reply.reason or "; ".join(sorted(set(self.driver.background.troubles)))
        return reply

    async def bulk(self, request_iterator: Any, context: Any) -> None:
        """One session's raw frames, both ways; its end ends the session."""
        number, port = await self._tied(context)
        port.bulk_task = asyncio.current_task()
        ends = [
            asyncio.create_task(self._received(number, port, context)),
            asyncio.create_task(self._publish(number, port, context)),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                if not task.cancel() and not task.cancelled() and (error := task.exception()):
                    log.warning("bulk stream ended", session=number, reason=repr(error))
            if not port.ended:  # else its End must be written before
                port.bulk_over.set()

    async def _tied(self, context: Any) -> tuple[int, SessionPort]:
        """The session whose Bulk stream this is, by its number and secret; others are refused."""
        metadata = dict(context.invocation_metadata())
        said = str(metadata.get(SESSION_METADATA, ""))
        number = int(said) if said.isascii() and said.isdigit() and len(said) < DIGITS_MAX else 0
        secret = str(metadata.get(SECRET_METADATA, ""))
        port = self.driver.ports.get(number)
        opened_by = port.peer if isinstance(port, SessionPort) else None
        await self.door.admit(context, "Bulk", partial(admission.of_bulk, session=opened_by))
        if not isinstance(port, SessionPort) or number not in self.driver.shard.sessions:
            code, reason = grpc.StatusCode.NOT_FOUND, f"session {said or '(none)'} is unknown"
        elif not hmac.compare_digest(secret.encode(), port.secret.encode()):
            code, reason = grpc.StatusCode.PERMISSION_DENIED, f"session {number} has another secret"
        elif port.bulk_task is not None:
            code, reason = grpc.StatusCode.ALREADY_EXISTS, f"session {number} has its bulk stream"
        else:
            return number, port
        log.warning("bulk stream refused", peer=context.peer(), session=number, reason=reason)
        await context.abort(code, reason)
        raise AssertionError("abort does not return")

    async def _received(self, number: int, port: SessionPort, context: Any) -> None:
        """Transfers of a learner; a bad frame ends the session."""
        try:
            await self._receive(number, context)
        except FrameError as error:
            log.warning("bad transfer", session=number, reason=str(error))
            if not port.ended:  # else the rules have refused its head already
                shard = self.driver.shard
                with _bugs_end(self.driver):
                    self.driver.feed(shard.transfer_rejected(number, str(error), self.driver.now()))

    async def _read(self, number: int, context: Any) -> None:
        """Control messages of a learner, until it closes its side."""
        driver = self.driver
        while (message := await context.read()) is not grpc.aio.EOF:
            with _bugs_end(driver):
                driver.feed(driver.shard.message(number, message, driver.now()))

    async def _write(self, port: SessionPort, context: Any) -> None:
        """Control messages to a learner, in order; returns after an End, the last one."""
        while True:
            while port.control:
                message = port.control.popleft()
                await context.write(message)
                if message.HasField("end"):
                    return
            port.control_ready.clear()
            await port.control_ready.wait()

    async def _receive(self, number: int, context: Any) -> None:
        """Transfers of a learner, one after the other; the rules admit each by its head."""
        driver = self.driver

        def admit(head: pb.Transfer) -> int | None:
            with _bugs_end(driver):
                driver.feed(driver.shard.transfer_started(number, head, driver.now()))
            return driver.accepted.pop(number, None)

        assembler = Assembler(admit)
        while (frame := await self._frame(assembler, context)) is not grpc.aio.EOF:
            driver.received(len(frame))
            whole = assembler.feed(frame)
            if whole is not None:
                with _bugs_end(driver):
                    await driver.transferred(number, whole.head, whole.payload)

    async def _frame(self, assembler: Assembler, context: Any) -> Any:
        """The next frame. Raises FrameError when a transfer under way does not go on."""
        try:
            async with asyncio.timeout(STALLED_SECONDS if assembler.head else None):
                return await context.read()
        except TimeoutError as error:
            reason = f"nothing came for {STALLED_SECONDS:.0f} s in the middle of a transfer"
            raise FrameError(reason) from error

    async def _publish(self, number: int, port: SessionPort, context: Any) -> None:
        """The slices that a learner lacks, one transfer at a time; after them a companion.

        What is sent is looked up here, and not when it was asked for. The payload is a difference
        if the learner holds the version before, bit for bit, and the wire has differences.
        """
        driver, transfer = self.driver, 0
        while True:
            while port.lacking:
                fragment = next(iter(port.lacking))
                del port.lacking[fragment]
                with _bugs_end(driver):
                    publish = driver.shard.publish(number, fragment)
                    if publish is None or driver.values is None:
                        continue
                    held = driver.shard.held_by(number, fragment)
                    payload = driver.values.publish_payload(
                        fragment, publish.version.version.number, held
                    )
                publish.difference = payload.difference
                publish.base = held or 0 if payload.difference else 0
                head = pb.Transfer(
                    publish=publish, encoding=payload.encoding, byte_count=len(payload.data)
                )
                transfer += 1
                for frame in transfer_frames(transfer, head, payload.data):
                    await context.write(frame)
                    driver.sent(len(frame))
            if port.parts:
                name, part = port.parts.popleft()
                data = await driver.part(name)
                transfer += 1
                head = pb.Transfer(companion=part, byte_count=len(data))
                for frame in transfer_frames(transfer, head, data):
                    await context.write(frame)
                    driver.sent(len(frame))
                continue
            port.bulk_ready.clear()
            await port.bulk_ready.wait()


class RegistrarService(rpc.RegistrarServicer):
    """Shard 0's calls for other shards and the operator."""

    def __init__(self, driver: Driver, identity: Identity | None = None) -> None:
        self.driver, self.door = driver, Doorkeeper(identity, driver)

    async def Hello(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard names itself, and learns the run and who is alive."""
        return await self._of_shard("Hello", request, context)

    async def MarkBegun(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard is marked begun, durably before the answer."""
        return await self._of_shard("MarkBegun", request, context)

    async def ReportFinal(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard has written its part of the export."""
        return await self._of_shard("ReportFinal", request, context)

    async def SetOwner(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The operator names the pod that owns a slot."""
        of_slot = partial(admission.of_owner, slot=request.slot)
        await self.door.admit(context, "SetOwner", of_slot)
        return await self._call(request, context)

    async def _of_shard(self, asked: str, request: Any, context: Any) -> Any:
        shards = partial(admission.of_roles, roles=admission.SHARDS, asked=asked)
        await self.door.admit(context, asked, shards)
        return await self._call(request, context)

    async def _call(self, request: Any, context: Any) -> Any:
        """The answer, once what the call changed is durable; refused by every other shard."""
        if not self.driver.shard.registrar:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this shard is not the registrar; ask shard 0"
            )
        with _bugs_end(self.driver):
            return await self.driver.call(request)


def add_services(
    server: grpc.aio.Server, driver: Driver, identity: Identity | None = None
) -> SyncerService:
    """All of a shard's services but health. `identity`: the shard's own; None: plain text."""
    service = SyncerService(driver, identity)
    rpc.add_SyncerServicer_to_server(service, server)
    rpc.add_RegistrarServicer_to_server(RegistrarService(driver, identity), server)
    name, _, method = BULK_METHOD.strip("/").partition("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(service.bulk)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {method: handler}),)
    )
    return service


def make_server() -> grpc.aio.Server:
    """A server with the shared options."""
    return grpc.aio.server(options=server_options())
