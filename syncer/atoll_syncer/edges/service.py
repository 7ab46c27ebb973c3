"""The gRPC edge of a shard: Session and Bulk streams, Status, and the registrar's calls.

    learner --Session--> _read    --> Shard.message
            <----------- _write   <-- SessionPort.control, in order
    learner --lane k--> _receive --> Gathering --> Shard.transfer_started   (a first stripe)
                                               --> Driver.transferred       (all stripes are here)
            <-all lanes- _publish <-- SessionPort.lacking, one transfer at a time

Memory is bounded (rules 10, 24, 34): of unsent ticks only the newest stays, and of each slice only
the fact that the receiver lacks it; what is sent is looked up when the streams are free, so it is
the newest. A slow sender has one buffer (Gathering), and a transfer in which nothing comes for
STALLED_SECONDS ends its session, else a peer that answers pings could hold a slice for ever.
RESOURCE_EXHAUSTED refuses a Join beyond the number of sessions, and never ends a session.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import printable
from atoll_protos.names import LANES_MAX
from atoll_protos.network.channels import (
    BULK_METHOD,
    LANE_METADATA,
    SECRET_METADATA,
    SESSION_METADATA,
    server_options,
)
from atoll_protos.network.credentials import Identity
from atoll_protos.network.listening import raise_file_limit
from atoll_protos.transfer.frames import (
    Buffer,
    FrameError,
    transfer_frames,
)
from atoll_protos.transfer.gathering import Gathering
from atoll_protos.v1.atoll_pb2_grpc import (
    RegistrarServicer,
    SyncerServicer,
    add_RegistrarServicer_to_server,
    add_SyncerServicer_to_server,
)
from atoll_syncer.driver import Driver
from atoll_syncer.duties.port import SessionPort
from atoll_syncer.edges import admission
from atoll_syncer.edges.admission import CallRefusal, Doorkeeper, anybody
from atoll_syncer.rules.status import status, why_no_export
from atoll_syncer.storage.files import StoreError

CLOSE_SECONDS = 0.5  # in which a peer closes the streams of a session that is over
STALLED_SECONDS = 30.0  # between two frames of a transfer
DIGITS_MAX = 20  # of a session's number, and of a lane's

log = structlog.get_logger()


@contextmanager
def bugs_end(driver: Driver) -> Iterator[None]:
    """End the process at a bug: gRPC alone would close the stream after half a change."""
    try:
        yield
    except Exception as error:
        driver.failed(error)
        raise


class BulkStreams:
    """All lanes of all sessions; `serve` is one of them."""

    def __init__(self, driver: Driver, door: Doorkeeper) -> None:
        self.driver, self.door = driver, door

    async def serve(self, context: Any) -> None:
        number, port, lane = await self._tied(context)
        port.streams[lane] = context
        if port.incoming is None:
            port.incoming = Gathering(port.lanes, partial(self._admit, number))
        ends = [
            asyncio.create_task(self._received(number, port, lane, context)),
            asyncio.create_task(port.closed.wait()),
        ]
        if len(port.streams) == port.lanes:
            ends.append(asyncio.create_task(self._publish(number, port)))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                if not task.cancel() and not task.cancelled() and (error := task.exception()):
                    log.warning("bulk stream ended", session=number, reason=repr(error))
            if not port.ended:  # else its End must be written before
                port.bulk_over.set()
        if port.closed.is_set():  # its End goes by another connection, and must come first
            await asyncio.sleep(CLOSE_SECONDS)

    async def _tied(self, context: Any) -> tuple[int, SessionPort, int]:
        """Session and lane of this stream, by numbers and secret; others are refused."""
        metadata = dict(context.invocation_metadata())
        said = str(metadata.get(SESSION_METADATA, ""))
        number = _number(said)
        secret = str(metadata.get(SECRET_METADATA, ""))
        lane = _number(str(metadata.get(LANE_METADATA, "0")))
        port = self.driver.ports.get(number)
        session = self.driver.state.sessions.open.get(number)
        rule = partial(admission.of_bulk, session=None if port is None else port.peer)
        await self.door.admit(context, "Bulk", rule)
        if port is None or session is None:
            unknown = printable(said) or "(none)"
            code, reason = grpc.StatusCode.NOT_FOUND, f"session {unknown} is unknown"
        elif not hmac.compare_digest(secret.encode(), port.secret.encode()):
            code, reason = grpc.StatusCode.PERMISSION_DENIED, f"session {number} has another secret"
        elif not 0 <= lane < port.lanes:
            code = grpc.StatusCode.NOT_FOUND
            reason = f"session {number} has {port.lanes} lanes, and no lane {lane}"
        elif lane in port.streams:
            code = grpc.StatusCode.ALREADY_EXISTS
            reason = f"lane {lane} of session {number} is open already"
        else:
            return number, port, lane
        log.warning("bulk stream refused", peer=context.peer(), session=number, reason=reason)
        await context.abort(code, reason)
        raise AssertionError("abort does not return")

    # ------------------------------------------------------------ what a learner sends

    async def _received(self, number: int, port: SessionPort, lane: int, context: Any) -> None:
        """Transfers of a learner; a bad frame ends the session."""
        try:
            await self._receive(number, port, lane, context)
        except FrameError as error:
            log.warning("bad transfer", session=number, reason=str(error))
            if not port.ended:  # else the rules have refused its head already
                assert port.incoming is not None, "frames before a stream"
                shard, head = self.driver.shard, port.incoming.head
                with bugs_end(self.driver):
                    self.driver.feed(
                        shard.transfer_rejected(number, str(error), self.driver.now(), head)
                    )

    async def _receive(self, number: int, port: SessionPort, lane: int, context: Any) -> None:
        driver, gathering = self.driver, port.incoming
        assert gathering is not None, "frames before a stream"
        end = driver.recording.end_of(number, port.machine)
        while (frame := await self._frame(gathering, lane, context)) is not grpc.aio.EOF:
            driver.recording.received(len(frame), end)
            whole = gathering.feed(lane, frame)
            if whole is not None:
                with bugs_end(driver):
                    await driver.transferred(number, whole.head, whole.payload)
            await gathering.turn(lane)

    def _admit(self, number: int, head: pb.Transfer) -> int | None:
        driver = self.driver
        with bugs_end(driver):
            driver.feed(driver.shard.transfer_started(number, head, driver.now()))
        return driver.accepted.pop(number, None)

    async def _frame(self, gathering: Gathering, lane: int, context: Any) -> Any:
        """Return the next frame. Raises FrameError when a transfer under way does not go on."""
        reading = asyncio.ensure_future(context.read())
        try:
            while True:
                waited_for = gathering.transfers if gathering.owes(lane) else None
                if (await asyncio.wait([reading], timeout=STALLED_SECONDS))[0]:
                    return reading.result()
                if gathering.owes(lane) and gathering.transfers == waited_for:
                    raise FrameError(STALLED)
        finally:
            reading.cancel()

    # ------------------------------------------------------------ what it is sent

    async def _publish(self, number: int, port: SessionPort) -> None:
        """One transfer at a time; what is sent is looked up here, and not when it was asked for."""
        driver = self.driver
        end = driver.recording.end_of(number, port.machine)

        async def send(lane: int, frames: Iterator[bytes]) -> None:
            for frame in frames:
                await port.streams[lane].write(frame)
                driver.recording.sent(len(frame), end)

        for transfer in count(1):
            composed = None
            while composed is None:
                composed = self._composed(number, await port.next_lacking())
            stripes = (transfer_frames(transfer, *composed, port.lanes, n) for n in port.streams)
            await asyncio.gather(*map(send, port.streams, stripes))

    def _composed(self, number: int, fragment: int) -> tuple[pb.Transfer, Buffer] | None:
        """Return the newest version of a slice for this session; None: there is none to send."""
        driver = self.driver
        with bugs_end(driver):
            publish = driver.shard.publish(number, fragment)
            if publish is None or driver.values is None:
                return None
            receiver = driver.state.sessions.open.get(number)
            held = None if receiver is None else receiver.held.get(fragment)
            version = publish.version.version.number
            payload = driver.values.publish_payload(fragment, version, held)
        publish.difference = payload.difference
        publish.base = held or 0 if payload.difference else 0
        size = len(payload.data)
        head = pb.Transfer(publish=publish, encoding=payload.encoding, byte_count=size)
        return head, payload.data


STALLED = f"nothing came for {STALLED_SECONDS:.0f} s in the middle of a transfer"


def _number(text: str) -> int:
    """Return a number that a peer has named; -1 for what is none."""
    fits = text.isascii() and text.isdigit() and len(text) < DIGITS_MAX
    return int(text) if fits else -1


JOIN_SECONDS_MAX = 20.0
END_SECONDS_MAX = 20.0  # until an End is written
SHUT_OUT_SECONDS_MAX = 0.7  # and that of a peer whose certificate is over
SESSIONS_MAX = 20_000  # of all kinds, also those that have not sent their Join
UNJOINED_MAX = 8  # of one certificate, and one for each slot: a region's learners may share one
OBSERVERS_MAX = 64  # each gets all values, and is no part of the training
CONNECTIONS_SPARE = 1000  # of others than learners, and of peers that have not shaken hands
HEALTH_CONNECTIONS = 256
HEALTH_BYTES_MAX = 4 << 10


class SyncerService(SyncerServicer):
    """What learners, observers and the operator connect to."""

    def __init__(self, driver: Driver, identity: Identity | None = None) -> None:
        self.driver, self.door = driver, Doorkeeper(identity, driver)
        self.streams = BulkStreams(driver, self.door)
        self.open = 0  # Session streams
        self.unjoined = Counter[str]()  # those without a Join yet, by certificate
        self.observers = 0
        self.said = pb.StatusRequest()  # the operator's last word on the job

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
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
        """Return a stream's first message; None when it is no Join, or does not come."""
        if caller := self.door.caller(context):
            most = UNJOINED_MAX + self._slots()
            if self.unjoined[caller] >= most:
                await self._full(context, f"{caller} has {most} sessions that have not joined")
        self.unjoined[caller] += 1
        try:
            async with asyncio.timeout(JOIN_SECONDS_MAX):
                first = await context.read()
        except TimeoutError:
            return None
        finally:
            self.unjoined[caller] -= 1
        return first.join if first is not grpc.aio.EOF and first.HasField("join") else None

    def _slots(self) -> int:
        state = self.driver.state
        return max(len(state.expected.every), len(state.run_file.slots))

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
        slot, instance = printable(join.slot), printable(join.instance)
        log.info("join", session=number, slot=slot, instance=instance, lanes=lanes)
        with bugs_end(driver):
            certificate = self.door.certificate(context, peer)
            driver.feed(driver.shard.session_opened(number, join, driver.now(), certificate))
        ends = [
            asyncio.create_task(self._read(number, context)),
            asyncio.create_task(self._write(port, context)),
            asyncio.create_task(port.bulk_over.wait()),
            asyncio.create_task(self._end_in_time(port)),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            port.closed.set()
            for task in ends:
                task.cancel()
            driver.ports.pop(number, None)
            with bugs_end(driver):
                driver.session_closed(number)
            log.info("session ended", session=number, slot=slot)

    async def _end_in_time(self, port: SessionPort) -> None:
        """Close the stream of a peer that does not read its End."""
        await port.ending.wait()
        await asyncio.sleep(SHUT_OUT_SECONDS_MAX if port.shut_out else END_SECONDS_MAX)

    async def Status(self, request: Any, context: Any) -> pb.StatusReply:
        """Return the shard's state; its reason may be what is tried again at the store.

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

    async def Export(self, request: Any, context: Any) -> None:  # type: ignore[override]
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


class RegistrarService(RegistrarServicer):
    """Shard 0's calls for other shards and the operator."""

    def __init__(self, driver: Driver, identity: Identity | None = None) -> None:
        self.driver, self.door = driver, Doorkeeper(identity, driver)

    async def Hello(self, request: Any, context: Any) -> Any:
        return await self._of_shard("Hello", request, context)

    async def MarkBegun(self, request: Any, context: Any) -> Any:
        return await self._of_shard("MarkBegun", request, context)

    async def ReportFinal(self, request: Any, context: Any) -> Any:
        return await self._of_shard("ReportFinal", request, context)

    async def SetOwner(self, request: Any, context: Any) -> Any:
        of_slot = partial(admission.of_owner, slot=request.slot)
        await self.door.admit(context, "SetOwner", of_slot)
        return await self._call(request, context)

    async def _of_shard(self, asked: str, request: Any, context: Any) -> Any:
        shards = partial(admission.of_roles, roles=admission.SHARDS, asked=asked)
        await self.door.admit(context, asked, shards)
        return await self._call(request, context)

    async def _call(self, request: Any, context: Any) -> Any:
        """Answer once what the call changed is durable; every other shard refuses it."""
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
    add_SyncerServicer_to_server(service, server)
    add_RegistrarServicer_to_server(RegistrarService(driver, identity), server)
    name, _, method = BULK_METHOD.strip("/").partition("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(service.bulk)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {method: handler}),)
    )
    return service


def make_server(slots: int) -> grpc.aio.Server:
    """For the calls of a job with so many slots, of which each may have LANES_MAX connections.

    Connections take at most half of the open files, so that the store always has some.
    """
    connections = CONNECTIONS_SPARE + slots * (1 + LANES_MAX)
    most = min(connections, raise_file_limit() // 2)
    return grpc.aio.server(options=server_options(connections=most))


def make_health_server() -> grpc.aio.Server:
    """For probes, each on a connection of its own: whoever reaches it may ask, and no more."""
    options = server_options(
        HEALTH_BYTES_MAX,
        connections=min(HEALTH_CONNECTIONS, raise_file_limit() // 8),
        streams=4,
        handshake_seconds=5.0,
        idle_seconds=10.0,
        age_seconds=60.0,
    )
    return grpc.aio.server(options=options)
