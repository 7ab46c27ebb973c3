"""gRPC in virtual time: servers, their handlers, and what crosses a connection.

With `channel`, a client's side, it has the parts of grpc.aio that production code calls, with the
same meaning: `channel_ready` waits until a server answers; a stream's `read` gives messages in
order, then EOF or an error; a handler is cancelled when its client is gone; `abort` ends a stream
with a status. Messages go through the serializers of the generated code, so that no two processes
share an object.

Each stream has a connection of its own, as production opens a channel for each; faults may break
one of a session's streams. Bulk streams have flow control: the writer of a transfer's trailer waits
until it has arrived, so that one transfer is on its way at a time. A chunk of values may arrive
damaged.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import HEADER, Kind
from sim.clock import Process
from sim.network import Connection

if TYPE_CHECKING:
    from sim.channel import Stream

SLOW_WRITE_SHARE = 0.1  # of control messages
SLOW_WRITE_SECONDS = 0.02
LINGER_SHARE = 0.3  # of Ends that cannot be written at once: the peer reads nothing for a while
LINGER_SECONDS = 4.0


class CallDetails:
    """What a generic handler is asked with."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class AbortError(Exception):
    """Raised in a handler by `abort`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def same(message: Any) -> Any:
    """The serializer of bytes."""
    return message


class Inbox:
    """Messages that have arrived, for one reader."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.ending: Any = None  # EOF or an exception: what comes after all items

    def put(self, item: Any) -> None:
        """A message; nothing comes after the end."""
        if self.ending is None:
            self._items.append(item)
            self._wake()

    def end(self, ending: Any) -> None:
        """EOF or an exception; the first one counts."""
        if self.ending is None:
            self.ending = ending
            self._wake()

    async def get(self) -> Any:
        while not self._items:
            if self.ending is not None:
                if isinstance(self.ending, BaseException):
                    raise self.ending
                return self.ending
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def write(
    connection: Connection, side: int, stream: str, data: Any, arrived: Callable[[Any], None]
) -> None:
    """Put a message on its way; wait as flow control says."""
    kind, offset = (HEADER.unpack_from(data)[n] if stream == "bulk" else 0 for n in (1, 4))
    if kind == Kind.CHUNK and connection.damages():
        data = data[:-1] + bytes([data[-1] ^ 1])
    if kind == Kind.HEAD:
        connection.slow_head(side, pb.Transfer.FromString(data[HEADER.size :]).byte_count)
    seconds = connection.slow_seconds(side, len(data) - HEADER.size) if kind == Kind.CHUNK else 0.0
    deliver, begins = partial(arrived, data), kind == Kind.CHUNK and not offset
    when = connection.send(side, stream, deliver, begins=begins, seconds=seconds)
    if kind == Kind.TRAILER:
        await asyncio.sleep(when - connection.sim.now)
    elif not kind and connection.rng.random() < SLOW_WRITE_SHARE:
        await asyncio.sleep(connection.rng.uniform(0.0, SLOW_WRITE_SECONDS))


class Server:
    """A shard's server: handlers by method, and the calls that it serves."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.serving = False
        self._generic: list[Any] = []
        self._handlers: dict[str, Any] = {}
        self._calls: dict[asyncio.Task[Any], None] = {}  # in order

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._generic += handlers

    def add_registered_method_handlers(self, service_name: str, handlers: Any) -> None:
        """The same handlers again."""

    async def start(self) -> None:
        """From now on connections are accepted."""
        self.serving = True

    async def stop(self, grace: float) -> None:
        """Accept no more, and end what is open after the grace."""
        self.serving = False
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=grace)
        for call in list(self._calls):
            call.cancel()

    def handler(self, method: str) -> Any:
        if method not in self._handlers:
            found = (each.service(CallDetails(method)) for each in self._generic)
            self._handlers[method] = next(each for each in found if each is not None)
        return self._handlers[method]

    def begin(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._calls[task] = None
        task.add_done_callback(self._done)
        return task

    def serve(self, work: Any) -> None:
        """The same, of a call that no connection can end."""
        self.begin(work)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        del self._calls[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.process.sim.fails(error)


class Context:
    """A handler's side of a stream."""

    def __init__(self, stream: "Stream", handler: Any, metadata: Any) -> None:
        self._stream, self._handler, self._metadata = stream, handler, metadata
        self.inbox = Inbox()

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return self._stream.kind

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the stream with a status."""
        raise AbortError(code, details)

    async def read(self) -> Any:
        return await self.inbox.get()

    async def write(self, message: Any) -> None:
        stream, data = self._stream, (self._handler.response_serializer or same)(message)
        connection = stream.connection
        assert connection is not None
        ends = stream.kind == "control" and message.HasField("end")
        if ends and connection.rng.random() < LINGER_SHARE:  # meanwhile it goes on to be read
            await asyncio.sleep(connection.rng.uniform(0.0, LINGER_SECONDS))
        stream.sends(1, data)
        await write(connection, 1, stream.kind, data, stream.arrived)
