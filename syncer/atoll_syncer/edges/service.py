"""The gRPC edge of a shard: Session streams, Status, and the registrar's calls (rules 24, 37).

    learner --Session--> _read    --> Shard.message
            <----------- _write   <-- SessionPort.control, in order

Memory of a slow receiver is bounded: of unsent ticks only the newest stays, and of each slice only
the fact that the receiver lacks it. The number of sessions is bounded too: RESOURCE_EXHAUSTED
refuses a Join, and never ends a session.
"""

import asyncio
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import BULK_METHOD, server_options
from atoll_protos.network.identity import Identity
from atoll_protos.network.services import Service, add_handlers
from atoll_protos.transfer.division import LANES_MAX
from atoll_syncer.driver import Driver
from atoll_syncer.duties.port import SessionPort
from atoll_syncer.edges import admission
from atoll_syncer.edges.admission import CallRefusal
from atoll_syncer.edges.bulk import BulkStreams, bugs_end
from atoll_syncer.edges.doorkeeper import Doorkeeper, anybody
from atoll_syncer.model.effects import refuse
from atoll_syncer.rules.status import status, why_no_export
from atoll_syncer.storage.store import StoreError

JOIN_SECONDS_MAX = 20.0
LANES_SECONDS_MAX = 60.0  # from the Welcome until all lanes are open
END_SECONDS_MAX = 20.0  # until an End is written
SHUT_OUT_SECONDS_MAX = 0.7  # and that of a peer whose certificate is over
SESSIONS_MAX = 20_000  # of all kinds, also those that have not sent their Join
OBSERVERS_MAX = 64  # each gets all values, and is no part of the training

log = structlog.get_logger()


class SyncerService:
    """What learners, observers and the operator connect to."""

    def __init__(self, driver: Driver, identity: Identity | None = None) -> None:
        self.driver, self.door = driver, Doorkeeper(identity, driver)
        self.streams = BulkStreams(driver, self.door)
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
            of_join = partial(admission.of_join, join=join)
            slot = "" if join.observer else join.slot
            peer = self.door.look(context, "joining", of_join, slot)
            if isinstance(peer, CallRefusal):
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
            async with asyncio.timeout(JOIN_SECONDS_MAX):
                first = await context.read()
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
        driver = self.driver
        number = next(driver.session_numbers)
        lanes = min(max(1, join.lanes), LANES_MAX)  # the rules refuse a Join that says more
        port = SessionPort(driver.machine.new_secret(), peer, lanes)
        driver.ports[number] = port
        log.info("join", session=number, slot=join.slot, instance=join.instance, lanes=lanes)
        with bugs_end(driver):
            certificate = self.door.certificate(context, peer)
            driver.feed(driver.shard.session_opened(number, join, driver.now(), certificate))
        ends = [
            asyncio.create_task(self._read(number, context)),
            asyncio.create_task(self._write(port, context)),
            asyncio.create_task(port.bulk_over.wait()),
            asyncio.create_task(self._end_in_time(port)),
        ]
        look = asyncio.create_task(self._lanes_come(port))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            port.closed.set()
            for task in (*ends, look):
                task.cancel()
            driver.ports.pop(number, None)
            with bugs_end(driver):
                driver.session_closed(number)
            log.info("session ended", session=number, slot=join.slot)

    async def _end_in_time(self, port: SessionPort) -> None:
        """A peer that does not read its End keeps no stream open."""
        await port.ending.wait()
        await asyncio.sleep(SHUT_OUT_SECONDS_MAX if port.shut_out else END_SECONDS_MAX)

    async def _lanes_come(self, port: SessionPort) -> None:
        """A session of several lanes ends when they do not come: nobody is to wait for it."""
        if len(port.lanes) == 1:
            return
        await port.welcomed.wait()
        await asyncio.sleep(LANES_SECONDS_MAX)
        if missing := port.closed_lanes:
            names = ", ".join(map(str, missing))
            reason = f"lane {names} of {len(port.lanes)} has not come in {LANES_SECONDS_MAX:.0f} s"
            log.warning("lanes are missing", reason=reason)
            port.end(refuse(pb.BAD_TRANSFER, reason))

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
        reply.must_equal = self.driver.state.run_file.must_equal
        reply.bytes_received = self.driver.recording.bytes_received
        reply.bytes_sent = self.driver.recording.bytes_sent
        for (region, machine), (received, sent) in self.driver.recording.links.items():
            reply.links.add(region=region, machine=machine, received=received, sent=sent)
        reply.checkpoint = self.driver.checkpoints.newest
        refused = self.driver.machine.metrics.refused_peer
        if refused is not None:
            reply.refused_peer = refused[0]
            reply.seconds_since_refused_peer = self.driver.now() - refused[1]
        reply.reason = reply.reason or "; ".join(sorted(set(self.driver.background.troubles)))
        return reply

    async def Export(self, request: Any, context: Any) -> None:  # noqa: N802
        driver, asked = self.driver, "observing"
        observers = partial(admission.of_roles, roles=admission.OBSERVERS, asked=asked)
        await self.door.admit(context, asked, observers)
        if why := why_no_export(driver.state, request.run_hash, driver.now()):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        try:
            async for piece in driver.export_pieces():
                await context.write(piece)
                driver.recording.sent(len(piece.data))
        except StoreError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def bulk(self, request_iterator: Any, context: Any) -> None:
        await self.streams.serve(context)

    async def _read(self, number: int, context: Any) -> None:
        driver = self.driver
        while (message := await context.read()) is not grpc.aio.EOF:
            with bugs_end(driver):
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


class RegistrarService:
    """Shard 0's calls for other shards and the operator."""

    def __init__(self, driver: Driver, identity: Identity | None = None) -> None:
        self.driver, self.door = driver, Doorkeeper(identity, driver)

    async def Hello(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._of_shard("Hello", request, context)

    async def MarkBegun(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._of_shard("MarkBegun", request, context)

    async def ReportFinal(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._of_shard("ReportFinal", request, context)

    async def SetOwner(self, request: Any, context: Any) -> Any:  # noqa: N802
        of_slot = partial(admission.of_owner, slot=request.slot)
        await self.door.admit(context, "SetOwner", of_slot)
        return await self._call(request, context)

    async def _of_shard(self, asked: str, request: Any, context: Any) -> Any:
        shards = partial(admission.of_roles, roles=admission.SHARDS, asked=asked)
        await self.door.admit(context, asked, shards)
        return await self._call(request, context)

    async def _call(self, request: Any, context: Any) -> Any:
        """The answer, once what the call changed is durable; refused by every other shard."""
        if not self.driver.state.registrar:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this shard is not the registrar; ask shard 0"
            )
        if objection := self.driver.shard.objection(request):
            log.warning("call refused", peer=context.peer(), reason=objection)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, objection)
        with bugs_end(self.driver):
            return await self.driver.call(request)


def add_services(
    server: grpc.aio.Server, driver: Driver, identity: Identity | None = None
) -> SyncerService:
    """All of a shard's services but health. `identity`: the shard's own; None: plain text."""
    service = SyncerService(driver, identity)
    add_handlers(Service.SYNCER, service, server)
    add_handlers(Service.REGISTRAR, RegistrarService(driver, identity), server)
    name, _, method = BULK_METHOD.strip("/").partition("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(service.bulk)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {method: handler}),)
    )
    return service


def make_server() -> grpc.aio.Server:
    return grpc.aio.server(options=server_options())
