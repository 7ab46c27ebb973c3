"""One Bulk stream of a session: gRPC, frames and nothing else.

What is to be sent waits in the client's queue as *payloads*, each of which is asked for its head
and bytes when its turn comes. A session of several lanes has several such streams (hosts.lanes).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.network.channels import (
    BULK_METHOD,
    LANE_METADATA,
    SECRET_METADATA,
    SESSION_METADATA,
    Options,
    bulk_options,
)
from atoll_protos.network.credentials import OutOfDateError
from atoll_protos.network.diagnosis import RefusedError
from atoll_protos.transfer.frames import Buffer, FrameError, Whole, transfer_frames

CONNECT_SECONDS_MAX = 10.0

OpenChannel = Callable[[str, Options], grpc.aio.Channel]
Ready = Callable[[str, grpc.aio.Channel], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is to be sent: its head, with the byte count of the whole, and the bytes held here."""

    head: pb.Transfer
    data: Buffer


Payload = Callable[[], Awaitable[Outgoing | None]]  # None: there is nothing to send after all
Payloads = asyncio.Queue[Payload]


def not_told() -> None:
    """Where nobody wants to know that bytes have come."""


@dataclass(slots=True, kw_only=True)
class Bulk:
    """One stream. `next_frames` waits for a transfer, `take` gets each frame that has come.

    `heard` is called first for each of them, `whole` with what `take` has completed; `ready` finds
    out why a stream cannot be opened, for a process without a control stream. `lane` is None where
    the session has one.
    """

    endpoint: str
    open_channel: OpenChannel
    session: int
    secret: str
    next_frames: Callable[[], Awaitable[Iterator[bytes]]]
    take: Callable[[bytes], Whole | None]
    whole: Callable[[Whole], Awaitable[None]]
    heard: Callable[[], None] = not_told
    ready: Ready | None = None
    lane: int | None = None
    bytes_sent: int = 0  # of frames
    bytes_received: int = 0

    async def run(self) -> None:
        metadata = [(SESSION_METADATA, str(self.session)), (SECRET_METADATA, self.secret)]
        if self.lane is not None:
            metadata.append((LANE_METADATA, str(self.lane)))
        async with self.open_channel(self.endpoint, bulk_options()) as channel:
            if self.ready is not None:
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    await self.ready(self.endpoint, channel)
            method: Any = channel.stream_stream(BULK_METHOD)
            call = method(metadata=tuple(metadata))
            await first_to_end(self._read(call), self._write(call))

    async def _read(self, call: Any) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            self.bytes_received += len(frame)
            self.heard()
            done = self.take(frame)
            if done is not None:
                await self.whole(done)

    async def _write(self, call: Any) -> None:
        with suppress(asyncio.InvalidStateError):  # the shard has ended the stream
            while True:
                for frame in await self.next_frames():
                    await call.write(frame)
                    self.bytes_sent += len(frame)


class Numbered:
    """The transfers of one session, in the order of their payloads, numbered from 1."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._data_state: bytes | None = None  # the last one that was sent
        self._number = 0

    async def next(self) -> tuple[int, Outgoing]:
        while (outgoing := await (await self._payloads.get())()) is None:
            pass
        self._data_state = once(outgoing.head, self._data_state)
        self._number += 1
        return self._number, outgoing

    async def next_frames(self) -> Iterator[bytes]:
        number, outgoing = await self.next()
        return transfer_frames(number, outgoing.head, outgoing.data)


def once(head: pb.Transfer, sent: bytes | None) -> bytes | None:
    """A session carries a data state once: `sent` was the last; returns the last one now."""
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
