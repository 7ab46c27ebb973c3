"""The gRPC edge of a shard: Session and Bulk streams, Status, and the registrar's calls."""

import asyncio
from collections import deque
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
    """One session's outbox: ordered control messages, and the set of slices that it lacks."""

    def __init__(self) -> None:
        self.control: deque[pb.ToLearner] = deque()
        self.control_ready = asyncio.Event()
        self.lacking: dict[int, None] = {}  # at most one Publish a slice waits (rule 24)
        self.bulk_ready = asyncio.Event()
        self.ended = False
        self.bulk_task: asyncio.Task[None] | None = None

    def send(self, message: pb.ToLearner) -> None:
        """See driver.Port; a newer tick replaces an unsent older one."""
        if message.HasField("tick") and self.control and self.control[-1].HasField("tick"):
            self.control.pop()
        self.control.append(message)
        self.control_ready.set()

    def publish(self, fragment: int) -> None:
        """See driver.Port."""
        self.lacking[fragment] = None
        self.bulk_ready.set()

    def end(self, end: pb.End) -> None:
        """See driver.Port."""
        if not self.ended:
            self.send(pb.ToLearner(end=end))
            self.ended = True


class SyncerService(rpc.SyncerServicer):
    """Learners and observers dial it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.sessions = 0

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """One instance's control stream."""
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
            driver.feed(driver.shard.session_closed(number, driver.now()))
            log.info("session ended", session=number, slot=first.join.slot)

    async def Status(self, request: Any, context: Any) -> pb.StatusReply:  # noqa: N802
        """What this shard sees."""
        reply = status(self.driver.shard.state, self.driver.now())
        reply.bytes_received = self.driver.bytes_received
        reply.bytes_sent = self.driver.bytes_sent
        reply.reason = reply.reason or "; ".join(sorted(set(self.driver.background.troubles)))
        return reply

    async def bulk(self, request_iterator: Any, context: Any) -> None:
        """One session's raw frames, both ways."""
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
                self.driver.feed(shard.transfer_rejected(number, str(error), self.driver.now()))
        finally:
            writer.cancel()

    async def _read(self, number: int, context: Any) -> None:
        driver = self.driver
        while (message := await context.read()) is not grpc.aio.EOF:
            driver.feed(driver.shard.message(number, message, driver.now()))

    async def _write(self, port: SessionPort, context: Any) -> None:
        while True:
            while port.control:
                message = port.control.popleft()
                await context.write(message)
                if message.HasField("end"):
                    return
            port.control_ready.clear()
            await port.control_ready.wait()

    async def _receive(self, number: int, context: Any) -> None:
        driver = self.driver

        def admit(head: pb.Transfer) -> int | None:
            driver.feed(driver.shard.transfer_started(number, head, driver.now()))
            return driver.accepted.pop(number, None)

        assembler = Assembler(admit)
        while (frame := await context.read()) is not grpc.aio.EOF:
            driver.received(len(frame))
            whole = assembler.feed(frame)
            if whole is not None:
                await driver.transferred(number, whole.head, whole.payload)

    async def _publish(self, number: int, port: SessionPort, context: Any) -> None:
        driver, transfer = self.driver, 0
        while True:
            while port.lacking:
                fragment = next(iter(port.lacking))
                del port.lacking[fragment]
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
        """A shard makes itself known."""
        return await self._call(request, context)

    async def MarkBegun(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Durable before it is answered."""
        return await self._call(request, context)

    async def ReportFinal(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A shard's part of the export is written."""
        return await self._call(request, context)

    async def SetOwner(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The operator's word."""
        return await self._call(request, context)

    async def _call(self, request: Any, context: Any) -> Any:
        if not self.driver.shard.registrar:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this shard is not the registrar; ask shard 0"
            )
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
