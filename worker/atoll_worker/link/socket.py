"""The socket between a learner's two processes: `Link`, one end; `TransportEnd`, the transport's.

Small messages are JSON (messages.py) behind a length of 4 bytes. A message is sent after the memory
that it speaks of was written, and that is read after the message was received: the two system calls
order the accesses.

Neither side ever waits for the other in `send` or `receive`; what the socket does not take is kept
in a queue. The transport sees the death of the training process by the end of the socket and, since
a data loader's child process may still hold that open, by a pidfd.
"""

import asyncio
import os
import select
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from atoll_worker.link import messages, shared_memory
from atoll_worker.link.messages import Configure, Message, Tick
from atoll_worker.link.shared_memory import SharedMemory

UNSENT_BYTES_MAX = 16 << 20  # some 100,000 steps that the other end has not read
READ_BYTES = 1 << 18
CONFIGURE_WAIT_SECONDS = 2.0  # of one wait for the first message; it is repeated
CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
LENGTH = struct.Struct("<I")


class LinkError(Exception):
    """The other end has not read for a very long time."""


@dataclass(slots=True)
class Link:
    """One end of the socket. `send` and `receive` never wait.

    `closed` becomes true when the other end is gone; what it sent before can still be received.
    """

    socket: socket.socket
    closed: bool = False
    received: bytearray = field(default_factory=bytearray, repr=False)  # not yet given out
    unsent: deque[tuple[bool, bytes]] = field(default_factory=deque, repr=False)  # (a Tick?, bytes)
    unsent_bytes: int = 0
    written: int = 0  # bytes of the first unsent message that the socket has taken

    def __post_init__(self) -> None:
        self.socket.setblocking(False)

    def send(self, message: Message) -> None:
        """Queue a message and write what the socket takes.

        An unsent Tick gives way to a newer one, unless a part of it is already written. Raises
        LinkError when the other end has left UNSENT_BYTES_MAX unread; a closed link is no error.
        """
        is_tick = isinstance(message, Tick)
        last_is_begun = len(self.unsent) == 1 and self.written > 0
        if is_tick and self.unsent and self.unsent[-1][0] and not last_is_begun:
            self.unsent_bytes -= len(self.unsent.pop()[1])
        body = messages.encode(message)
        data = LENGTH.pack(len(body)) + body
        self.unsent.append((is_tick, data))
        self.unsent_bytes += len(data)
        self.flush()
        if self.unsent_bytes > UNSENT_BYTES_MAX and not self.closed:
            raise LinkError(f"the other process has left {self.unsent_bytes} bytes unread")

    def flush(self) -> None:
        while self.unsent and not self.closed:
            data = self.unsent[0][1]
            try:
                self.written += self.socket.send(memoryview(data)[self.written :])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True
                return
            if self.written == len(data):
                self.unsent.popleft()
                self.unsent_bytes -= len(data)
                self.written = 0

    def receive(self) -> list[Message]:
        self.fill()
        found = []
        while (message := self.next()) is not None:
            found.append(message)
        return found

    def fill(self) -> None:
        """Read what the socket holds, without giving it out."""
        while not self.closed:
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self.received += data

    def next(self) -> Message | None:
        """Take the first message that has been read; None while it is not whole."""
        if len(self.received) < LENGTH.size:
            return None
        stop = LENGTH.size + LENGTH.unpack_from(self.received)[0]
        if len(self.received) < stop:
            return None
        message: Message = messages.decode(self.received[LENGTH.size : stop])
        del self.received[:stop]
        return message

    def wait(self, seconds: float) -> None:
        if self.closed:
            return
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | (select.POLLOUT if self.unsent else 0))
        poll.poll(seconds * 1000)
        self.flush()

    def close(self) -> None:
        self.closed = True
        self.socket.close()


@dataclass(slots=True, kw_only=True)
class TransportEnd:
    """The transport process's end, with all that it was given at its start."""

    link: Link
    configure: Configure
    memory: SharedMemory
    training: int  # a pidfd
    loop: asyncio.AbstractEventLoop | None = None
    on_end: Callable[[], None] | None = None

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call back in the loop; `on_end` once, when the process has died or closed the link."""
        self.loop, self.on_end = loop, on_end

        def readable() -> None:
            self.link.fill()
            while (message := self.link.next()) is not None:
                on_message(message)
            if self.link.closed:
                self._ended()

        loop.add_reader(self.link.socket.fileno(), readable)
        loop.call_soon(readable)  # what came with Configure
        loop.add_reader(self.training, self._ended)

    def send(self, command: Message) -> None:
        self.link.send(command)
        if self.link.closed:
            self._ended()
        elif self.link.unsent and self.loop is not None:
            self.loop.add_writer(self.link.socket.fileno(), self._writable)

    def _writable(self) -> None:
        self.link.flush()
        if self.loop is not None and (self.link.closed or not self.link.unsent):
            self.loop.remove_writer(self.link.socket.fileno())

    def _ended(self) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None and self.loop is not None:
            self.loop.remove_reader(self.link.socket.fileno())
            self.loop.remove_writer(self.link.socket.fileno())
            self.loop.remove_reader(self.training)
            on_end()


def outlive_signals() -> None:
    """Ignore signals to all processes of a job at once: the Leaving must still be sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def open_transport_end(link_fd: int, memory_fd: int) -> TransportEnd:
    """Wait for Configure. Raises EOFError when the training process is gone before it."""
    link = Link(socket.socket(fileno=link_fd))
    try:
        training = os.pidfd_open(creator_pid(link.socket))
    except ProcessLookupError as error:
        raise EOFError("the training process is gone") from error
    configure = first_message(link, training)
    plan = shared_memory.memory_plan(
        configure.layout, configure.run_file.sync, observer=configure.observer
    )
    return TransportEnd(
        link=link,
        configure=configure,
        memory=shared_memory.attach(plan, memory_fd),
        training=training,
    )


def first_message(link: Link, training: int) -> Configure:
    """Messages behind Configure stay in the link for `attach`.

    A process that the training process has forked may still hold the socket when that runs no more.
    """
    while (message := link.next()) is None:
        if link.closed or select.select([training], [], [], 0)[0]:
            raise EOFError("the training process is gone")
        link.wait(CONFIGURE_WAIT_SECONDS)
        link.fill()
    assert isinstance(message, Configure), f"{message} came before Configure"
    return message


def creator_pid(pair: socket.socket) -> int:
    credentials = pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(credentials)[0])
