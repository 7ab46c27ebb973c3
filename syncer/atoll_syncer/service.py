"""The gRPC edge of a shard: Session and Bulk streams, Status, and the registrar's calls.

Each session has two streams (rule 24), so that a large transfer never delays a control message:

    learner --Session--> _read    --> Shard.message
            <----------- _write   <-- SessionPort.control, in order
    learner --Bulk-----> _receive --> Shard.transfer_started, Driver.transferred
            <----------- _publish <-- SessionPort.lacking, one transfer at a time

The session begins with its Join and ends with the Session stream; the Bulk stream names the
session's number and is cancelled with it. Memory of a slow receiver is bounded: of unsent ticks
only the newest stays, and of each slice only the fact that the receiver lacks it. What is sent
for it is looked up when the stream is free (`Shard.publish`), so it is always the newest.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
import atoll_protos.v1.atoll_pb2_grpc as rpc
from atoll_protos.channels import BULK_METHOD, SESSION_METADATA, server_options
from atoll_protos.frames import Assembler, FrameError, transfer_frames
from atoll_syncer.driver import Driver
from atoll_syncer.rules.status import status

JOIN_SECONDS_MAX = 20.0

log = structlog.get_logger()


class SessionPort:
    """What one session is to be sent: ordered control messages, and the slices that it lacks."""

    def __init__(self) -> None:
        self.control: deque[pb.ToLearner] = deque()
        self.control_ready = asyncio.Event()
        self.lacking: dict[
            int, None
        ] = {}  # in order of request: at most one Publish of a slice waits
        self.bulk_ready = asyncio.Event()
        self.ended = False
        self.bulk_task: asyncio.Task[None] | None = None

    def send(self, message: pb.ToLearner) -> None:
        """See outside.Port; a newer tick replaces an unsent older one."""
        if message.HasField("tick") and self.control and self.control[-1].HasField("tick"):
            self.control.pop()
        self.control.append(message)
        self.control_ready.set()

    def publish(self, fragment: int) -> None:
        """See outside.Port."""
        self.lacking[fragment] = None
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

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.sessions = 0

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """One instance's control stream, from its Join to the session's end."""
        self.sessions += 1
        number, port, driver = self.sessions, SessionPort(), self.driver
        try:
            first = await asyncio.wait_for(context.read(), JOIN_SECONDS_MAX)
        except TimeoutError:
            return
        if first is grpc.aio.EOF or not first.HasField("join"):
            return
        driver.ports[number] = port
        log.info("join", session=number, slot=first.join.slot, instance=first.join.instance)
        with _bugs_end(driver):
            driver.feed(driver.shard.session_opened(number, first.join, driver.now()))
        reader = asyncio.create_task(self._read(number, context))
        writer = asyncio.create_task(self._write(port, context))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer, port.bulk_task):
                if task is not None:
                    task.cancel()
            driver.ports.pop(number, None)
            with _bugs_end(driver):
                driver.session_closed(number)
            log.info("session ended", session=number, slot=first.join.slot)

    async def Status(self, request: Any, context: Any) -> pb.StatusReply:  # noqa: N802
        """The shard's state; what is tried again at the store is its reason, if it has no other."""
        reply = status(self.driver.shard.state, self.driver.now())
        reply.bytes_received = self.driver.bytes_received
        reply.bytes_sent = self.driver.bytes_sent
        reply.reason = reply.reason or "; ".join(sorted(set(self.driver.background.troubles)))
        return reply

    async def bulk(self, request_iterator: Any, context: Any) -> None:
        """One session's raw frames, both ways; a bad frame ends the session."""
        metadata = dict(context.invocation_metadata())
        number = int(metadata.get(SESSION_METADATA, "0"))
        port = self.driver.ports.get(number)
        session = self.driver.shard.sessions.get(number)
        if port is None or not isinstance(port, SessionPort) or session is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"session {number} is unknown")
            return
        port.bulk_task = asyncio.current_task()
        writer = asyncio.create_task(self._publish(number, port, context))
        try:
            await self._receive(number, context)
        except FrameError as error:
            log.warning("bad transfer", session=number, slot=session.slot, reason=str(error))
            if not port.ended:  # else the rules have refused its head already
                shard = self.driver.shard
                with _bugs_end(self.driver):
                    self.driver.feed(shard.transfer_rejected(number, str(error), self.driver.now()))
        finally:
            writer.cancel()

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
        while (frame := await context.read()) is not grpc.aio.EOF:
            driver.received(len(frame))
            whole = assembler.feed(frame)
            if whole is not None:
                with _bugs_end(driver):
                    await driver.transferred(number, whole.head, whole.payload)

    async def _publish(self, number: int, port: SessionPort, context: Any) -> None:
        """The slices that a learner lacks, one transfer at a time.

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
            port.bulk_ready.clear()
            await port.bulk_ready.wait()


class RegistrarService(rpc.RegistrarServicer):
    """Shard 0's calls for other shards and the operator."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    async def Hello(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard names itself, and learns the run and who is alive."""
        return await self._call(request, context)

    async def MarkBegun(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard is marked begun, durably before the answer."""
        return await self._call(request, context)

    async def ReportFinal(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard has written its part of the export."""
        return await self._call(request, context)

    async def SetOwner(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The operator names the pod that owns a slot."""
        return await self._call(request, context)

    async def _call(self, request: Any, context: Any) -> Any:
        """The answer, once what the call changed is durable; refused by every other shard."""
        if not self.driver.shard.registrar:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this shard is not the registrar; ask shard 0"
            )
        with _bugs_end(self.driver):
            return await self.driver.call(request)


def add_services(server: grpc.aio.Server, driver: Driver) -> SyncerService:
    """All of a shard's services but health."""
    service = SyncerService(driver)
    rpc.add_SyncerServicer_to_server(service, server)
    rpc.add_RegistrarServicer_to_server(RegistrarService(driver), server)
    name, _, method = BULK_METHOD.strip("/").partition("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(service.bulk)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {method: handler}),)
    )
    return service


def make_server() -> grpc.aio.Server:
    """A server with the shared options."""
    return grpc.aio.server(options=server_options())
