"""What a port with `server_options` takes of peers of whom it knows nothing, over real gRPC."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from atoll_protos.network import channels

SECONDS_MAX = 60.0
ONE, ENDLESS = "/test.Limits/One", "/test.Limits/Endless"
SETTINGS, INITIAL_WINDOW_SIZE = 4, 4  # a kind of frame, and one of its entries
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


async def one(request: bytes, context: Any) -> bytes:
    del context
    return request


async def endless(requests: Any, context: Any) -> None:
    del requests, context
    await asyncio.Event().wait()


@asynccontextmanager
async def overheard(port: int) -> AsyncIterator[tuple[int, bytearray]]:
    """Another port that leads there, and all that comes from there, on one connection."""
    said, over = bytearray(), asyncio.Event()

    async def carry(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", port)

        async def back() -> None:
            while data := await server.read(1 << 16):
                said.extend(data)
                to_client.write(data)

        answers = asyncio.create_task(back())
        with suppress(ConnectionError):
            while data := await client.read(1 << 16):
                to_server.write(data)
                await to_server.drain()
        answers.cancel()
        for writer in (to_server, to_client):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(carry, "127.0.0.1") as between:
        yield between.sockets[0].getsockname()[1], said
        await over.wait()


def windows(said: bytes) -> list[int]:
    """How many bytes of a call may be under way, as often as a server of HTTP/2 has set it."""
    found, at = list[int](), 0
    while at < len(said):
        size, kind = int.from_bytes(said[at : at + 3], "big"), said[at + 3]
        for setting in range(at + 9, at + 9 + size, 6) if kind == SETTINGS else ():
            if int.from_bytes(said[setting : setting + 2], "big") == INITIAL_WINDOW_SIZE:
                found.append(int.from_bytes(said[setting + 2 : setting + 6], "big"))
        at += 9 + size
    return found


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[int]:
    """The port of a server with these limits."""
    server = grpc.aio.server(options=channels.server_options(**limits))
    methods: Any = {
        "One": grpc.unary_unary_rpc_method_handler(one),
        "Endless": grpc.stream_stream_rpc_method_handler(endless),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Limits", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def opened(port: int) -> Any:
    return channels.open_channel(f"127.0.0.1:{port}", channels.control_options())


async def ended(silent: socket.socket) -> bool:
    """Waits until the server has closed the connection."""

    def wait() -> bool:
        try:
            while silent.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True

    return await asyncio.wait_for(asyncio.to_thread(wait), SECONDS_MAX)


def is_open(silent: socket.socket) -> bool:
    """Read what a server has sent so far, and whether it has closed the connection."""
    silent.setblocking(False)
    try:
        while silent.recv(4096):
            pass
    except BlockingIOError:
        return True
    return False


def silent(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS_MAX)


async def test_a_message_above_the_limit_is_refused_and_one_below_it_is_answered() -> None:
    async with served(received_bytes_max=1000) as port, opened(port) as channel:
        call = channel.unary_unary(ONE)
        assert await call(bytes(900)) == bytes(900)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(bytes(1100))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_senders_of_messages_above_the_limit_get_no_larger_window() -> None:
    """What fits in it is held in memory, also where it is refused."""
    limit = channels.SMALL_BYTES_MAX
    async with (
        served(received_bytes_max=limit) as port,
        overheard(port) as (way, said),
        opened(way) as channel,
    ):
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
                await channel.unary_unary(ONE)(bytes(15 << 20))
    assert 0 < max(windows(bytes(said))) <= limit


async def test_one_connection_too_many_is_closed_and_an_older_one_is_served_on() -> None:
    async with (
        served(connections=2, handshake_seconds=SECONDS_MAX) as port,
        opened(port) as channel,
    ):
        call = channel.unary_unary(ONE)
        assert await call(b"1") == b"1"
        with silent(port) as within, silent(port) as one_more:
            assert await ended(one_more)
            assert is_open(within)  # else it was time that has ended both
            assert await call(b"2") == b"2"


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with (
        served(handshake_seconds=SECONDS_MAX) as other_port,
        served(handshake_seconds=0.5) as port,
    ):
        with silent(other_port) as with_more_time, silent(port) as nobody:
            assert await ended(nobody)
            assert is_open(with_more_time)


async def test_a_connection_without_a_call_is_closed() -> None:
    async with served(idle_seconds=0.5) as port:
        with silent(port) as idle:
            idle.sendall(PREFACE)
            assert await ended(idle)


async def test_a_connection_has_a_bounded_number_of_open_calls() -> None:
    """Those of another connection are not counted, and an open one that ends makes room."""
    async with served(streams=1) as port, opened(port) as channel, opened(port) as other:
        endless_call = channel.stream_stream(ENDLESS)()
        await endless_call.write(b"")
        waiting = channel.unary_unary(ONE)(b"1")
        assert await other.unary_unary(ONE)(b"2") == b"2"
        assert not waiting.done()
        endless_call.cancel()
        assert await waiting == b"1"


async def test_a_call_whose_message_never_comes_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "AGE_GRACE_SECONDS", 0.5)
    async with served(age_seconds=0.5) as port, opened(port) as channel:
        hangs = channel.stream_unary(ONE)()
        assert await asyncio.wait_for(hangs.code(), SECONDS_MAX) is grpc.StatusCode.UNAVAILABLE
