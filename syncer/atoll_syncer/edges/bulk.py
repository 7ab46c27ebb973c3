"""The Bulk streams of a shard's sessions: transfers in frames, both ways (rules 10, 24 and 34).

    learner --lane k--> _receive --> Gathering --> Shard.transfer_started   (a first part)
                                               --> Driver.transferred       (all parts are here)
            <---------- _publish <-- SessionPort.sending, one transfer at a time

A transfer under way in which nothing comes for STALLED_SECONDS ends its session, else a peer that
answers pings could hold a slice for ever.

Memory of a slow receiver is bounded: of each slice a lane remembers only that the receiver lacks
it. What is sent is looked up when the stream is free (`Shard.publish`), so it is always the newest.
Memory of a slow sender is bounded by one buffer for each slice (gathering.py).
"""

import asyncio
import hmac
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import LANE_METADATA, SECRET_METADATA, SESSION_METADATA
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.division import part_spans, span_bytes
from atoll_protos.transfer.frames import Buffer, FrameError, transfer_frames
from atoll_protos.transfer.gathering import Gathering
from atoll_syncer.driver import Driver
from atoll_syncer.duties.port import SessionPort, Spans
from atoll_syncer.edges import admission
from atoll_syncer.edges.doorkeeper import Doorkeeper
from atoll_syncer.rules.transfers import slice_of

CLOSE_SECONDS = 0.5  # in which a peer closes the streams of a session that is over
STALLED_SECONDS = 30.0  # between two frames of a transfer
DIGITS_MAX = 20  # of a session's number, and of a lane's

log = structlog.get_logger()


@contextmanager
def bugs_end(driver: Driver) -> Iterator[None]:
    """A bug ends the process: gRPC alone would close the stream, and go on with half a change."""
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
        port.lanes[lane].opened = True
        if port.incoming is None:
            port.incoming = Gathering(len(port.lanes), partial(self._admit, number), self._form)
        if len(port.lanes) > 1:
            with bugs_end(self.driver):
                self.driver.feed(self.driver.shard.lane_opened(number, self.driver.now()))
        ends = [
            asyncio.create_task(self._received(number, port, lane, context)),
            asyncio.create_task(self._publish(number, port, lane, context)),
            asyncio.create_task(port.closed.wait()),
        ]
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
        state = self.driver.state
        session = state.sessions.open.get(number)
        rule = partial(
            admission.of_bulk,
            session=None if port is None else port.peer,
            slot="" if session is None else session.slot,
            given=state.expected.given,
        )
        peer = await self.door.admit(context, "Bulk", rule)
        if port is None or session is None:
            code, reason = grpc.StatusCode.NOT_FOUND, f"session {said or '(none)'} is unknown"
        elif not hmac.compare_digest(secret.encode(), port.secret.encode()):
            code, reason = grpc.StatusCode.PERMISSION_DENIED, f"session {number} has another secret"
        elif not 0 <= lane < len(port.lanes):
            code = grpc.StatusCode.NOT_FOUND
            reason = f"session {number} has {len(port.lanes)} lanes, and no lane {lane}"
        elif port.lanes[lane].opened:
            code = grpc.StatusCode.ALREADY_EXISTS
            reason = f"lane {lane} of session {number} is open already"
        else:
            port.lanes[lane].machine = peer.machine if peer else ""
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
                assert port.incoming is not None, "frames before a lane"
                shard, head = self.driver.shard, port.incoming.head(lane)
                with bugs_end(self.driver):
                    self.driver.feed(
                        shard.transfer_rejected(number, str(error), self.driver.now(), head)
                    )

    async def _receive(self, number: int, port: SessionPort, lane: int, context: Any) -> None:
        driver, gathering = self.driver, port.incoming
        assert gathering is not None, "frames before a lane"
        end = driver.recording.end_of(number, port.lanes[lane].machine)
        while (frame := await self._frame(gathering, lane, context)) is not grpc.aio.EOF:
            driver.recording.received(len(frame), end)
            whole = gathering.feed(lane, frame)
            if whole is not None:
                with bugs_end(driver):
                    await driver.transferred(number, whole.head, whole.payload)

    def _admit(self, number: int, head: pb.Transfer) -> int | None:
        driver = self.driver
        with bugs_end(driver):
            driver.feed(driver.shard.transfer_started(number, head, driver.now()))
        return driver.accepted.pop(number, None)

    def _form(self, head: pb.Transfer) -> Form | None:
        layout = self.driver.state.layout
        if head.HasField("companion") or layout is None:
            return None
        return layout.slice(self.driver.state.number, slice_of(head)).form

    async def _frame(self, gathering: Gathering, lane: int, context: Any) -> Any:
        """The next frame. Raises FrameError when a transfer under way does not go on."""
        if gathering.lanes == 1:
            seconds = STALLED_SECONDS if gathering.head(lane) else None
            return await self._in_time(context.read(), seconds)
        reading = asyncio.ensure_future(context.read())
        try:
            while True:
                owed = gathering.owed(lane)
                with suppress(_StalledError):
                    return await self._in_time(asyncio.shield(reading), STALLED_SECONDS)
                if gathering.head(lane) or owed & gathering.owed(lane):
                    raise _StalledError(STALLED)
        finally:
            reading.cancel()

    async def _in_time(self, reading: Any, seconds: float | None) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await reading
        except TimeoutError as error:
            raise _StalledError(STALLED) from error

    # ------------------------------------------------------------ what it is sent

    async def _publish(self, number: int, port: SessionPort, lane: int, context: Any) -> None:
        """One transfer at a time; what is sent is looked up here, and not when it was asked for."""
        driver, own = self.driver, port.lanes[lane]
        end = driver.recording.end_of(number, own.machine)
        while True:
            while own.lacking:
                fragment = port.take(lane)
                with bugs_end(driver):
                    publish = driver.shard.publish(number, fragment)
                    if publish is None or driver.values is None:
                        continue
                    compose = partial(self._composed, number, len(port.lanes), publish)
                    sending = port.sending(lane, publish, compose)
                head = pb.Transfer()
                head.CopyFrom(sending.head)
                spans = sending.spans[lane]
                head.byte_count = span_bytes(spans)
                for frame in transfer_frames(sending.number, head, sending.data, spans):
                    await context.write(frame)
                    driver.recording.sent(len(frame), end)
            own.ready.clear()
            await own.ready.wait()

    def _composed(
        self, number: int, lanes: int, publish: pb.Publish
    ) -> tuple[pb.Transfer, Buffer, Spans]:
        """A version as this session gets it, and which bytes go on which lane."""
        driver, fragment = self.driver, publish.version.slice
        assert driver.values is not None, "a version without values"
        receiver = driver.state.sessions.open.get(number)
        held = None if receiver is None else receiver.held.get(fragment)
        version = publish.version.version.number
        payload = driver.values.publish_payload(fragment, version, held)
        publish.difference = payload.difference
        publish.base = held or 0 if payload.difference else 0
        size = len(payload.data)
        head = pb.Transfer(publish=publish, encoding=payload.encoding, byte_count=size)
        spans: Spans = ((range(size),),)
        if lanes > 1:
            form = driver.values.layout.slice(driver.state.number, fragment).form
            spans = part_spans(form, payload.encoding, lanes)
        return head, payload.data, spans


STALLED = f"nothing came for {STALLED_SECONDS:.0f} s in the middle of a transfer"


class _StalledError(FrameError):
    """A peer that does not go on."""


def _number(text: str) -> int:
    """A number that a peer has named; -1 for what is none."""
    fits = text.isascii() and text.isdigit() and len(text) < DIGITS_MAX
    return int(text) if fits else -1
