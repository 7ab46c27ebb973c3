"""A proxy before a server of HTTP that plays a bad network and a server in trouble.

It takes the requests of a connection one after the other, so a fault meets a request and not a
connection. It runs in a thread of its own; a test sets its faults from another.
"""

import asyncio
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES_MAX = 1 << 16
HEAD_END = b"\r\n\r\n"
READ_BYTES = 1 << 18
HELD_LOOK_SECONDS = 0.05
REASONS = {403: "Forbidden", 409: "Conflict", 429: "Too Many Requests", 503: "Slow Down"}


class ConnectionEndedError(Exception):
    """This connection is not served any more."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next `count` requests whose line matches.

    `status` answers in the server's place. `loses_answer` lets the server do what is asked, and
    resets the connection when it answers. `without` is a header that the server never sees.
    """

    line: re.Pattern[str]
    count: int
    status: int = 0
    body: bytes = b""
    loses_answer: bool = False
    without: str = ""
    seconds: float = 0.0  # before the server hears of it
    met: int = 0


@dataclass(slots=True)
class Side:
    """A connection to the client or to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class FaultProxy:
    """The faults, which may be changed while the proxy runs, and what it was asked."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.delay_seconds = 0.0  # of each request, and of each answer
        self.lines: list[str] = []  # of all requests
        self.byte_counts: list[int] = []  # of their bodies
        self._faults: list[Fault] = []
        self._is_cut = False
        self._held_pid = 0
        self._open: dict[asyncio.Task[None], list[Side]] = {}
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()

    def answer(self, status: int, line: str, *, count: int = 1, body: bytes = b"") -> Fault:
        """Answer the next requests whose line matches in the server's place."""
        return self._add(Fault(line=re.compile(line), count=count, status=status, body=body))

    def lose_answers(self, line: str, *, count: int = 1) -> Fault:
        """Forward the next requests whose line matches, and reset instead of their answers."""
        return self._add(Fault(line=re.compile(line), count=count, loses_answer=True))

    def strip(self, header: str, line: str) -> Fault:
        """Take a header out of all requests whose line matches."""
        return self._add(Fault(line=re.compile(line), count=1 << 30, without=header.lower()))

    def slow(self, line: str, seconds: float) -> Fault:
        """Keep each request whose line matches for so long."""
        return self._add(Fault(line=re.compile(line), count=1 << 30, seconds=seconds))

    def cut(self) -> None:
        """Reset what is open, and take nothing new, until `heal`."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._abort)

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()
        self.delay_seconds, self._is_cut = 0.0, False

    @contextmanager
    def holding(self, pid: int) -> Iterator[None]:
        """Hold what a process asks and is answered, as when its packets are lost."""
        self._held_pid = pid
        try:
            yield
        finally:
            self._held_pid = 0

    @contextmanager
    def running(self) -> Iterator["FaultProxy"]:
        """Serve on a port of its own until the end of the block."""
        listening = threading.Event()
        main = self._main(listening)
        thread = threading.Thread(target=self._loop.run_until_complete, args=(main,))
        thread.start()
        listening.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()
            self._loop.close()

    async def _main(self, listening: threading.Event) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await self._stopping.wait()
        server.close()
        self._is_cut = True
        self._abort()
        while self._open:
            await asyncio.wait(self._open)

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _abort(self) -> None:
        for sides in self._open.values():
            for side in sides:
                side.writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, and one to the server for it."""
        task = asyncio.current_task()
        assert task is not None
        client = Side(reader, writer)
        sides = self._open[task] = [client]
        try:
            if not self._is_cut:
                server = Side(*await asyncio.open_connection("127.0.0.1", self.target_port))
                sides.append(server)
                for side in sides:
                    own = side.writer.get_extra_info("socket")
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not self._is_cut:
                    await self._exchange(client, server)
        except (ConnectionEndedError, OSError, asyncio.IncompleteReadError):
            pass  # an end of one side is the end of both
        finally:
            for side in sides:
                side.writer.transport.abort()
                with suppress(OSError):
                    await side.writer.wait_closed()
            del self._open[task]

    async def _exchange(self, client: Side, server: Side) -> None:
        """One request and its answer. Raises what `_serve` takes for an end."""
        head = await client.reader.readuntil(HEAD_END)
        line, headers = parsed(head)
        self.lines.append(line)
        self.byte_counts.append(int(headers.get("content-length", "0")))
        fault = self._fault_of(line)
        await asyncio.sleep(self.delay_seconds + (fault.seconds if fault else 0.0))
        await self._pass(client)
        if fault and fault.status:
            async for _ in body(client.reader, head):
                pass
            client.writer.write(own_answer(fault))
            await client.writer.drain()
            return
        server.writer.write(without(fault.without, head) if fault else head)
        await copy(body(client.reader, head), server.writer)
        answer = await server.reader.readuntil(HEAD_END)
        await asyncio.sleep(self.delay_seconds)
        await self._pass(client)
        if fault and fault.loses_answer:
            raise ConnectionEndedError
        client.writer.write(answer)
        ended = line.startswith("HEAD ") or parsed(answer)[0].split()[1] in ("204", "304")
        if not ended:
            await copy(body(server.reader, answer), client.writer)
        await client.writer.drain()

    async def _pass(self, client: Side) -> None:
        """Return when the client's process is not held; what it has given up meanwhile is lost."""
        pid, port = self._held_pid, client.writer.get_extra_info("peername")[1]
        if not pid or not has_connection(pid, port):
            return
        while self._held_pid == pid:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(HELD_LOOK_SECONDS)
        if not has_connection(pid, port):
            raise ConnectionEndedError

    def _fault_of(self, line: str) -> Fault | None:
        """The first that matches and is not used up; it is counted."""
        for fault in [*self._faults]:
            if fault.met < fault.count and fault.line.search(line):
                fault.met += 1
                return fault
        return None


def has_connection(pid: int, port: int) -> bool:
    """Whether a process has a connection from this port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[1].split(":")[1], 16) == port}
    with suppress(OSError):  # it has ended
        return any(os.readlink(each) in sockets for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def parsed(head: bytes) -> tuple[str, Mapping[str, str]]:
    """The first line of a request or an answer, and its headers by their names in small letters."""
    line, *rest = head.decode("latin-1").split("\r\n")
    pairs = (each.partition(":") for each in rest if each)
    return line, {name.lower(): value.strip() for name, _, value in pairs}


def without(header: str, head: bytes) -> bytes:
    """A head that lacks one of its headers."""
    start = header.encode() + b":"
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not header or not line.lower().startswith(start))


async def body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """What follows a head, as it comes. What has no length is empty; the servers here give one."""
    _, headers = parsed(head)
    if "chunked" in headers.get("transfer-encoding", ""):
        byte_count = -1
        while byte_count:
            size = await reader.readuntil(b"\r\n")
            byte_count = int(size.split(b";")[0], 16)
            yield size + await reader.readexactly(byte_count + len(b"\r\n"))
        return
    left = int(headers.get("content-length", "0"))
    while left:
        if not (data := await reader.read(min(left, READ_BYTES))):
            raise ConnectionEndedError
        left -= len(data)
        yield data


async def copy(chunks: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    """Write all of them."""
    async for chunk in chunks:
        writer.write(chunk)
        await writer.drain()


def own_answer(fault: Fault) -> bytes:
    """What the client gets in the server's place."""
    head = f"HTTP/1.1 {fault.status} {REASONS[fault.status]}\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(fault.body)}\r\n\r\n".encode() + fault.body
