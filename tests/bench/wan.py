"""A link between regions on this machine: every connection has a rate and a delay of its own.

One TCP connection over a long way carries what its window and its losses allow, however wide the
line is. So the rate belongs to the connection, and several of them carry more than one.
"""

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.local.supervision.ports import free_ports

CHUNK_BYTES: Final = 64 << 10
LOOPBACK: Final = "127.0.0.1"
UNREAD_CHUNKS_MAX: Final = 256  # on the line; what comes then waits with its sender


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What each connection has, in either direction."""

    megabytes_per_second: float
    delay_milliseconds: float


async def carry(
    line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: list[int]
) -> None:
    """One direction of a connection, to its end; appends how many bytes it has carried."""
    loop = asyncio.get_running_loop()
    on_the_line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNREAD_CHUNKS_MAX)

    async def deliver() -> None:
        while (arrival := await on_the_line.get())[1]:
            await asyncio.sleep(arrival[0] - loop.time())
            writer.write(arrival[1])
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    free_at, carried = loop.time(), 0
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            carried += len(data)
            free_at = max(free_at, loop.time()) + len(data) / (line.megabytes_per_second * 1e6)
            await asyncio.sleep(free_at - loop.time())
            await on_the_line.put((free_at + line.delay_milliseconds / 1e3, data))
    await on_the_line.put((0.0, b""))
    with suppress(OSError):
        await delivery
        writer.write_eof()
    counts.append(carried)


async def serve(port: int, upstream: str, line: Line, counts: Path) -> None:
    """Lay the line; a line of the file `counts` has what a connection that has ended carried."""
    host, _, upstream_port = upstream.rpartition(":")

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(upstream_port))
        up: list[int] = []
        down: list[int] = []
        await asyncio.gather(
            carry(line, reader, far_writer, up), carry(line, far_reader, writer, down)
        )
        for each in (writer, far_writer):
            each.close()
        with counts.open("a") as file:
            file.write(json.dumps([up[0], down[0]]) + "\n")

    server = await asyncio.start_server(connect, LOOPBACK, port)
    async with server:
        await server.serve_forever()


def run(port: int, upstream: str, line: Line, counts: Path) -> None:
    """See `serve`; for a process of its own."""
    asyncio.run(serve(port, upstream, line, counts))


@contextmanager
def wan(upstream: str, line: Line, counts: Path) -> Iterator[str]:
    """Gives the endpoint that reaches `upstream` over this line."""
    (port,) = free_ports(1)
    forks = multiprocessing.get_context("fork")
    process = forks.Process(target=run, args=(port, upstream, line, counts), daemon=True)
    process.start()
    try:
        yield f"{LOOPBACK}:{port}"
    finally:
        process.terminate()
        process.join()


def carried(counts: Path) -> list[tuple[int, int]]:
    """(bytes up, bytes down) of every connection that has ended."""
    return [tuple(json.loads(each)) for each in counts.read_text().splitlines()]
