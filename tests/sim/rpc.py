"""gRPC in virtual time: a server, channels and streams over the simulated network.

It has the parts of grpc.aio that production code calls, with the same meaning: `channel_ready`
waits until a server answers; a stream's `read` gives messages in order, then EOF or an error; a
handler is cancelled when its client is gone; `abort` ends a stream with a status. Messages go
through the serializers of the generated code, so that no two processes share an object.

Each stream has a connection of its own, as production opens a channel for each; faults may break
one of a session's two. Bulk streams have flow control: the writer of a transfer's trailer waits
until it has arrived, so that one transfer is on its way at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from atoll_protos.channels import BULK_METHOD
from atoll_protos.frames import HEADER, Kind
from sim.clock import Process
from sim.network import Connection, End

if TYPE_CHECKING:
    from sim.shard_process import ShardProcess
    from sim.world import World

RETRY_SECONDS = 0.5  # until a client tries again to connect
NO_ANSWER_SECONDS = 5.0  # until a client gives up a machine that cannot be reached
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
    """What a client's calls raise."""
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
        """The next one."""
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
    connection: Connection, side: int, stream: str, data: Any, arrived: Callable[[], None]
) -> None:
    """Put a message on its way; wait as flow control says."""
    kind = HEADER.unpack_from(data)[1] if stream == "bulk" else 0
    when = connection.send(side, stream, arrived, whole_slice=kind == Kind.CHUNK)
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
        """See grpc.aio.Server."""
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
        """See grpc.RpcMethodHandler."""
        if method not in self._handlers:
            found = (each.service(CallDetails(method)) for each in self._generic)
            self._handlers[method] = next(each for each in found if each is not None)
        return self._handlers[method]

    def begin(self, work: Any) -> "asyncio.Task[Any]":
        """Serve one call."""
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
        """As the client gave it."""
        return self._metadata

    def peer(self) -> str:
        """Who it is."""
        return self._stream.kind

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the stream with a status."""
        raise AbortError(code, details)

    async def read(self) -> Any:
        """The next message, or EOF."""
        return await self.inbox.get()

    async def write(self, message: Any) -> None:
        """To the client."""
        stream, data = self._stream, (self._handler.response_serializer or same)(message)
        connection = stream.connection
        assert connection is not None
        ends = stream.kind == "control" and message.HasField("end")
        if ends and connection.rng.random() < LINGER_SHARE:  # meanwhile it goes on to be read
            await asyncio.sleep(connection.rng.uniform(0.0, LINGER_SECONDS))
        await write(connection, 1, stream.kind, data, partial(stream.arrived, data))


class Stream:
    """A client's call of a stream-stream method, on a connection of its own."""

    def __init__(self, channel: "Channel", method: str, metadata: Any, codecs: Any) -> None:
        self.kind = "bulk" if method == BULK_METHOD else "control"
        self.connection: Connection | None = None
        self._channel, self._method, self._metadata = channel, method, metadata
        self._serialize, self._deserialize = codecs
        self._inbox, self._opened = Inbox(), asyncio.Event()
        self._context: Context | None = None
        self._task: asyncio.Task[None] | None = None  # the server's, of its handler
        if (connection := channel.take()) is not None:
            self._open(connection)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._connect())

    # ------------------------------------------------------------ the client's side

    async def read(self) -> Any:
        """The next message, EOF, or an AioRpcError."""
        return await self._inbox.get()

    async def write(self, message: Any) -> None:
        """To the server."""
        await self._opened.wait()
        if self._inbox.ending is not None or self.connection is None:
            raise asyncio.InvalidStateError("RPC already finished.")
        data = self._serialize(message)
        await write(self.connection, 0, self.kind, data, partial(self._received, data))

    def close(self) -> None:
        """Cancel it."""
        if self.connection is None:
            self._opening.cancel()
        else:
            self.connection.hang_up(0)

    async def _connect(self) -> None:
        connection = await self._channel.connect()
        if connection is None:
            self._opened.set()
            self._lost()
        else:
            self._open(connection)

    def _open(self, connection: Connection) -> None:
        self.connection = connection
        self._opened.set()
        client, server = connection.ends
        client.closed, server.closed = self._lost, self._client_gone
        connection.send(0, self.kind, self._begin)
        if connection.lost or client.notified:
            self._lost()

    def _lost(self) -> None:
        self._inbox.end(failure(grpc.StatusCode.UNAVAILABLE, "the connection is lost"))

    def arrived(self, data: Any) -> None:
        """A message of the server is here."""
        message = self._deserialize(data)
        self._channel.heard(message)
        self._inbox.put(message)

    # ------------------------------------------------------------ the server's side

    def _server(self) -> Server:
        assert self.connection is not None
        server: Server = self.connection.ends[1].process.server  # type: ignore[attr-defined]
        return server

    def _begin(self) -> None:
        handler = self._server().handler(self._method)
        self._context = Context(self, handler, self._metadata)
        self._task = self._server().begin(self._serve(handler))

    async def _serve(self, handler: Any) -> None:
        assert self.connection is not None
        ending: Any = grpc.aio.EOF
        try:
            await handler.stream_stream(None, self._context)
        except AbortError as error:
            ending = failure(error.code, error.details)
        self.connection.send(1, self.kind, partial(self._inbox.end, ending))

    def _received(self, data: Any) -> None:
        assert self._context is not None
        deserialize = self._server().handler(self._method).request_deserializer
        self._context.inbox.put((deserialize or same)(data))

    def _client_gone(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Channel:
    """See grpc.aio.Channel: a client's way to the server of one shard."""

    def __init__(
        self,
        world: "World",
        client: Process,
        machine: str,
        shard: int,
        heard: Callable[[Any], None] = lambda message: None,
    ) -> None:
        self.heard = heard
        self._world, self._client, self._machine, self._shard = world, client, machine, shard
        self._rng = world.sim.random(f"channel {client.name} {shard} {world.sim.now}")
        self._ready: Connection | None = None
        self._streams: list[Stream] = []

    async def __aenter__(self) -> "Channel":
        """It connects when it must."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close every connection."""
        if self._ready is not None:
            self._ready.hang_up(0)
        for stream in self._streams:
            stream.close()

    async def channel_ready(self) -> None:
        """Connect, and try again until the server answers."""
        while self._ready is None:
            self._ready = await self.connect()
            if self._ready is None:
                await asyncio.sleep(RETRY_SECONDS * self._rng.uniform(0.5, 2.0))

    def take(self) -> Connection | None:
        """The connection that is ready, for one stream."""
        ready, self._ready = self._ready, None
        return ready

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., Stream]:
        """See grpc.aio.Channel."""
        codecs = request_serializer or same, response_deserializer or same

        def call(metadata: Any = ()) -> Stream:
            stream = Stream(self, method, metadata, codecs)
            self._streams.append(stream)
            return stream

        return call

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., Any]:
        """See grpc.aio.Channel."""

        async def call(request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's name
            waiter = asyncio.get_running_loop().create_future()
            data = request_serializer(request)
            self._send_request(method, data, waiter)
            try:
                return response_deserializer(await asyncio.wait_for(waiter, timeout))
            except TimeoutError:
                raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer") from None

        return call

    def _send_request(self, method: str, data: bytes, waiter: "asyncio.Future[bytes]") -> None:
        """A unary call needs no connection here: it arrives or not, and so does the answer."""
        world, sim, client = self._world, self._world.sim, self._client

        def seconds() -> float:
            return world.weather.delay_seconds * self._rng.uniform(0.5, 2.0)

        def answered(reply: bytes | Exception) -> None:
            if waiter.done():
                return
            if isinstance(reply, Exception):
                waiter.set_exception(reply)
            else:
                waiter.set_result(reply)

        async def serve(server: Server) -> None:
            handler = server.handler(method)
            reply: bytes | Exception
            try:
                request = handler.request_deserializer(data)
                reply = handler.response_serializer(await handler.unary_unary(request, abort))
            except AbortError as error:
                reply = failure(error.code, error.details)
            client.after(seconds(), partial(answered, reply))

        abort = Context(None, None, ())  # type: ignore[arg-type]

        def arrive() -> None:
            process = world.serving(self._shard)
            if not process.alive or not process.server.serving:
                away = failure(grpc.StatusCode.UNAVAILABLE, "nothing listens")
                client.after(seconds(), partial(answered, away))
                return
            process.do(lambda: process.server.serve(serve(process.server)))

        opens = world.weather.opens_at(self._machine, f"shard{self._shard}")
        sim.at(max(opens, sim.now) + seconds(), arrive)

    def connect(self) -> "asyncio.Future[Connection | None]":
        """A new connection; None when nothing listens there or the machine cannot be reached."""
        world, sim, client = self._world, self._world.sim, self._client
        machines = self._machine, f"shard{self._shard}"
        waiter = asyncio.get_running_loop().create_future()
        delay = world.weather.delay_seconds

        def answer(connection: Connection | None) -> None:
            if not waiter.done():
                waiter.set_result(connection)
            elif connection is not None:
                connection.hang_up(0)

        def accept(process: "ShardProcess") -> None:
            connection = None
            if process.server.serving:
                ends = (
                    End(process=client, machine=machines[0], closed=lambda: None),
                    End(process=process, machine=machines[1], closed=lambda: None),
                )
                connection = Connection(sim, world.rng, world.weather, ends)
                world.connections.append(connection)
            client.after(delay * self._rng.uniform(0.5, 2.0), partial(answer, connection))

        def arrive() -> None:
            process = world.serving(self._shard)  # the address leads to every pod of the shard
            if world.weather.opens_at(*machines) > sim.now:
                client.after(NO_ANSWER_SECONDS, partial(answer, None))
            elif process.alive:
                process.do(partial(accept, process))
            else:
                client.after(delay, partial(answer, None))

        sim.after(delay * self._rng.uniform(0.5, 2.0), arrive)
        return waiter
