"""A client's side of gRPC in virtual time: channels, and streams over the simulated network."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from atoll_protos.network.channels import BULK_METHOD, LANE_METADATA, SESSION_METADATA
from sim.clock import Process
from sim.network import Connection, End
from sim.rpc import AbortError, Context, Inbox, Server, failure, same, write

if TYPE_CHECKING:
    from sim.learner_process import LearnerProcess
    from sim.shard_process import ShardProcess
    from sim.world import World

RETRY_SECONDS = 0.5  # until a client tries again to connect
NO_ANSWER_SECONDS = 5.0  # until a client gives up a machine that cannot be reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One of several Bulk streams of a session, as its two ends know it."""

    learner: "LearnerProcess"
    shard: "ShardProcess"
    session: int
    number: int


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
        self._said: dict[str, str] = dict(metadata or ())
        self.lane: Lane | None = None
        if (connection := channel.take()) is not None:
            self._open(connection)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._connect())

    # ------------------------------------------------------------ the client's side

    async def read(self) -> Any:
        """The next message, EOF, or an AioRpcError."""
        return await self._inbox.get()

    async def write(self, message: Any) -> None:
        await self._opened.wait()
        if self._inbox.ending is not None or self.connection is None:
            raise asyncio.InvalidStateError("RPC already finished.")
        data = self._serialize(message)
        self.sends(0, data)
        await write(self.connection, 0, self.kind, data, self._received)

    async def done_writing(self) -> None:
        """The server reads EOF behind the last message."""
        await self._opened.wait()
        if self._inbox.ending is None and self.connection is not None:
            self.connection.send(0, self.kind, self._half_closed)

    def sends(self, side: int, data: Any) -> None:
        """The checkers see every frame of a lane as it leaves."""
        if self.lane is not None:
            self._channel.world.watchers.tell("frame_sent", self.lane, side, data)

    def close(self) -> None:
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
        if LANE_METADATA in self._said:
            connection.is_lane = True
            self.lane = Lane(
                learner=client.process,  # type: ignore[arg-type]
                shard=server.process,  # type: ignore[arg-type]
                session=int(self._said[SESSION_METADATA]),
                number=int(self._said[LANE_METADATA]),
            )
        connection.send(0, self.kind, self._begin)
        if connection.lost or client.notified:
            self._lost()

    def _lost(self) -> None:
        self._inbox.end(failure(grpc.StatusCode.UNAVAILABLE, "the connection is lost"))

    def arrived(self, data: Any) -> None:
        """A message of the server is here."""
        if self.lane is not None:
            self._channel.world.watchers.tell("frame_arrived", self.lane, data)
        message = self._deserialize(data)
        self._channel.heard(message)
        self._inbox.put(message)

    # ------------------------------------------------------------ the server's side

    def _server(self) -> Server:
        assert self.connection is not None
        server: Server = self.connection.ends[1].process.server  # type: ignore[attr-defined]
        return server

    def _begin(self) -> None:
        assert self.connection is not None
        if not self._server().serving:  # it has stopped meanwhile
            self.connection.hang_up(1)
            return
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
        except asyncio.CancelledError:  # the server stops, or the connection is gone
            self.connection.hang_up(1)
            raise
        finally:
            if self.lane is not None:
                self._channel.world.watchers.tell("lane_ended", self.lane)
        self.connection.send(1, self.kind, partial(self._inbox.end, ending))

    def _received(self, data: Any) -> None:
        if self._context is None:
            return  # the server had stopped
        deserialize = self._server().handler(self._method).request_deserializer
        self._context.inbox.put((deserialize or same)(data))

    def _half_closed(self) -> None:
        if self._context is not None:
            self._context.inbox.end(grpc.aio.EOF)

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
        self.world, self._client, self._machine, self._shard = world, client, machine, shard
        self._rng = world.sim.random(f"channel {client.name} {shard} {world.sim.now}")
        self._ready: Connection | None = None
        self._streams: list[Stream] = []

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *error: object) -> None:
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
        codecs = request_serializer or same, response_deserializer or same

        def call(metadata: Any = ()) -> Stream:
            stream = Stream(self, method, metadata, codecs)
            self._streams.append(stream)
            return stream

        return call

    def unary_stream(self, method: str, *_: Any, **__: Any) -> None:
        """The stub names Export, which nothing here calls."""

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., Any]:
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
        world, sim, client = self.world, self.world.sim, self._client

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
        world, sim, client = self.world, self.world.sim, self._client
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
                world.connected(connection)
            client.after(delay * self._rng.uniform(0.5, 2.0), partial(answer, connection))

        def arrive() -> None:
            process = world.serving(self._shard)  # the address leads to every pod of the shard
            if max(world.weather.opens_at(*machines), process.cut_until) > sim.now:
                client.after(NO_ANSWER_SECONDS, partial(answer, None))
            elif process.alive:
                process.do(partial(accept, process))
            else:
                client.after(delay, partial(answer, None))

        sim.after(delay * self._rng.uniform(0.5, 2.0), arrive)
        return waiter
