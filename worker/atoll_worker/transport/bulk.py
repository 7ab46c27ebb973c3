"""The Bulk streams of one session that this process carries: gRPC, frames and nothing else.

A process has all lanes of a session, or those of its share of every slice (rule 34). Each lane is
one stream on a TCP connection of its own, opened with the session's number and secret. The end of
one lane is the end of all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import structlog

from atoll_protos.channels import (
    BULK_METHOD,
    LANE_METADATA,
    SECRET_METADATA,
    SESSION_METADATA,
    Options,
    bulk_options,
)
from atoll_protos.credentials import OutOfDateError
from atoll_protos.diagnosis import RefusedError
from atoll_protos.errors import SpecError
from atoll_protos.frames import FrameError, Whole
from atoll_protos.gathering import Gathering
from atoll_worker.transport.lanes import Line

CONNECT_SECONDS_MAX = 10.0

log = structlog.get_logger()

OpenChannel = Callable[[str, Options], grpc.aio.Channel]
Ready = Callable[[str, grpc.aio.Channel], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class BulkStreams:
    """The lanes of `line.share` of one session with the shard at `endpoint`.

    `whole` is called with what has arrived on all of them. A process without a control stream to
    the shard gives `ready`, which finds out why a lane cannot be opened.
    """

    endpoint: str
    open_channel: OpenChannel
    session: int
    secret: str
    line: Line
    gathering: Gathering
    whole: Callable[[Whole], Awaitable[None]]
    ready: Ready | None = None
    bytes_sent: dict[int, int] = field(default_factory=dict)  # of frames, by lane
    bytes_received: dict[int, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Until any of the lanes ends; the first error is raised."""
        share = self.line.share
        try:
            await first_to_end(*(self._lane(lane) for lane in share.lanes))
        finally:
            if not share.is_whole:
                sent, received = sum(self.bytes_sent.values()), sum(self.bytes_received.values())
                lanes = f"{share.first} .. {share.stop - 1}"
                log.info("lanes closed", lanes=lanes, sent=sent, received=received)

    async def _lane(self, lane: int) -> None:
        self.bytes_sent[lane] = self.bytes_received[lane] = 0
        metadata = [
            (SESSION_METADATA, str(self.session)),
            (SECRET_METADATA, self.secret),
        ]
        if self.gathering.lanes > 1:
            metadata.append((LANE_METADATA, str(lane)))
        async with self.open_channel(self.endpoint, bulk_options()) as channel:
            if self.ready is not None:
                await asyncio.wait_for(self.ready(self.endpoint, channel), CONNECT_SECONDS_MAX)
            method: Any = channel.stream_stream(BULK_METHOD)
            call = method(metadata=tuple(metadata))
            await first_to_end(self._read(call, lane), self._write(call, lane))

    async def _read(self, call: Any, lane: int) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            self.bytes_received[lane] += len(frame)
            done = self.gathering.feed(lane, frame)
            if done is not None:
                await self.whole(done)

    async def _write(self, call: Any, lane: int) -> None:
        with suppress(asyncio.InvalidStateError):  # the shard has ended the stream
            while True:
                for frame in (await self.line.next(lane)).frames(lane):
                    await call.write(frame)
                    self.bytes_sent[lane] += len(frame)


def why_ended(error: Exception, endpoint: str) -> str | None:
    """Why streams to a shard have ended, in one line; None where the error is a bug."""
    match error:
        case TimeoutError():
            return f"{endpoint} does not answer"
        case grpc.aio.AioRpcError():
            return f"{error.code().name}: {error.details()}"
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
