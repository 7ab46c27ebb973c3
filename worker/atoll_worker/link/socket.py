"""The socket between a learner's two processes: `Link`, one end; `TransportEnd`, the transport's.

Theory of operation
-------------------
A learner has two processes. The *training process* is the user's: model, optimizer, data. The
*transport process* is ours: it runs the rules (rules/exchange.py) and speaks gRPC with the shards.
They are separate because Python code in the training process takes time from the training thread:
at 100 MB/s of transfer a training thread kept 77% of its speed with the transport in the same
process and 96% with a process of its own (measured on a CPU, the worst case).

      training process                                       transport process
    +--------------------+  socket: Boundary, Leaving, ...  +---------------------+
    |  Learner.step()    | ===============================> |  Exchange (rules)   |
    |  Replica, Staging  | <=============================== |  gRPC to the shards |
    +--------------------+  Start, Tick, Adopt, Capture ... +---------------------+
             |  writes      +--------------------------+  reads     |
             +------------> | capture regions, counters| -----------+
             |  reads       +--------------------------+  writes    |
             +------------- | adopt regions            | <----------+
                            +--------------------------+
                                   shared memory

The socket carries small messages (messages.py); values of the model go through the shared memory
(memory.py), which has two regions for each slice.

1. A *capture region* is written by the training process only. The transport asks for a copy of the
   slice with Capture; the training process copies at its next step boundary and says so in the
   Boundary. The transport reads the region later, when it forms an offer, and by then a new capture
   may be under way. So each capture region has a counter, as a seqlock has: it is odd while the
   region is written, and grows by 2 with every finished capture. The transport knows from the
   Boundaries which count its capture has. It copies the region and compares the counter; if it
   differs, the copy is dropped, and the next capture answers in its place.
2. An *adopt region* has one owner at a time. The transport writes a published value into it and
   sends Adopt; from then on the region belongs to the training process, until the Boundary that
   names the adoption has come back. One Adopt per slice is outstanding at most.
3. Each message is sent after the memory that it speaks of has been written, and the memory is read
   after the message has been received. The two system calls order the accesses.

Neither side ever waits for the other in `send` or `receive`. What the socket does not take is kept
in a queue; in it a newer Tick replaces an unsent older one. If the other end stops reading for so
long that 16 MiB are queued, `send` raises LinkError.

If the training process dies, in whatever way, the transport notices the end of the socket. A data
loader's child process may still hold the socket open, so the transport also watches the training
process itself by a pidfd. It then exits; the shards see the sessions end. If the transport dies,
the training process notices the end of the socket at its next step boundary and raises
TransportLostError (exit code 75). It does not start another transport: the bases of all slices were
in the lost one, and a new process recovers them from the shards in the same way as after any crash.
The shared memory has no name; the kernel frees it with the last process that maps it.

SIGTERM and Ctrl-C are the training process's to handle, so the transport ignores both: it must
still be there to send the Leave.
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

from atoll_protos.codecs import base_encoding
from atoll_protos.companion import PART_BYTES, part_bytes
from atoll_protos.layout import Layout
from atoll_protos.parts import ALL, Share
from atoll_protos.run import RunFile, Sync
from atoll_worker.link import codec, memory
from atoll_worker.link.codec import LinkError
from atoll_worker.link.memory import Memory, Plan
from atoll_worker.link.messages import Command, Configure, Message, Tick

UNSENT_BYTES_MAX = 16 << 20  # some 100,000 steps that the other end has not read
READ_BYTES = 1 << 18
CONFIGURE_WAIT_SECONDS = 2.0  # of one wait for the first message; it is repeated
CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid


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
        LinkError when the other end has not read for so long that UNSENT_BYTES_MAX are queued; a
        closed link is no error.
        """
        is_tick = isinstance(message, Tick)
        last_is_begun = len(self.unsent) == 1 and self.written > 0
        if is_tick and self.unsent and self.unsent[-1][0] and not last_is_begun:
            self.unsent_bytes -= len(self.unsent.pop()[1])
        data = codec.encode(message)
        self.unsent.append((is_tick, data))
        self.unsent_bytes += len(data)
        self.flush()
        if self.unsent_bytes > UNSENT_BYTES_MAX and not self.closed:
            raise LinkError(f"the other process has left {self.unsent_bytes} bytes unread")

    def flush(self) -> None:
        """Write as much of the queue as the socket takes."""
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
        """All whole messages that have arrived, in order. Raises LinkError for anything else."""
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
        """The first message that was read and not yet given out; None if there is no whole one."""
        return codec.take_first(self.received)

    def wait(self, seconds: float) -> None:
        """Return when there is something to receive, at the latest after `seconds`."""
        if self.closed:
            return
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | (select.POLLOUT if self.unsent else 0))
        poll.poll(seconds * 1000)
        self.flush()

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        self.socket.close()


def memory_plan(layout: Layout, sync: Sync, *, observer: bool, share: Share = ALL) -> Plan:
    """The shared memory of a job's learner or observer; an observer captures nothing.

    `share` is what this process holds of each slice (`Configure.share`).
    """
    encoding = base_encoding(sync.wire_down)
    return memory.plan(layout, adopt_encoding=encoding, captures=not observer, share=share)


@dataclass(slots=True, kw_only=True)
class TransportEnd:
    """The transport process's end, with all that it was given at its start."""

    link: Link
    configure: Configure
    run_file: RunFile
    layout: Layout
    memory: Memory
    memory_fd: int = -1
    loop: asyncio.AbstractEventLoop | None = None
    on_end: Callable[[], None] | None = None

    def companion_part(self, part: int, byte_count: int, *, changed: bool) -> bytes:
        """One part of the companion that the training process has given, of `byte_count` in all."""
        offset = memory.companion_offset(self.memory.plan, changed=changed) + part * PART_BYTES
        return os.pread(self.memory_fd, part_bytes(byte_count, part), offset)

    def companion_sent(self) -> None:
        """The whole companion is sent: give its memory back."""
        os.ftruncate(self.memory_fd, memory.companion_offset(self.memory.plan, changed=False))

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call back in the event loop: `on_message` for every message, `on_end` once.

        The end is the death of the training process, however it died, or its closing of the link.
        """
        self.loop, self.on_end = loop, on_end

        def readable() -> None:
            self.link.fill()
            while (message := self.link.next()) is not None:
                on_message(message)
            if self.link.closed:
                self._ended()

        loop.add_reader(self.link.socket.fileno(), readable)
        loop.call_soon(readable)  # what came with Configure
        try:
            process = os.pidfd_open(self.configure.training_pid)
        except ProcessLookupError:
            loop.call_soon(self._ended)
        else:
            loop.add_reader(process, self._process_died, process)

    def send(self, command: Command) -> None:
        """Send one command; never waits. What the socket does not take leaves when it can."""
        self.link.send(command)
        if self.link.closed:
            self._ended()
        elif self.link.unsent and self.loop is not None:
            self.loop.add_writer(self.link.socket.fileno(), self._writable)

    def _writable(self) -> None:
        self.link.flush()
        if self.loop is not None and (self.link.closed or not self.link.unsent):
            self.loop.remove_writer(self.link.socket.fileno())

    def _process_died(self, process: int) -> None:
        if self.loop is not None:
            self.loop.remove_reader(process)
        os.close(process)
        self._ended()

    def _ended(self) -> None:
        """Report the end, but only the first time."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None and self.loop is not None:
            self.loop.remove_reader(self.link.socket.fileno())
            self.loop.remove_writer(self.link.socket.fileno())
            on_end()


def outlive_signals() -> None:
    """Ignore SIGINT and SIGTERM; the transport calls this before anything else.

    Some senders signal all processes of a job at once, but the training process decides when to
    leave, and its Leaving must still get through.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def open_transport_end(link_fd: int, memory_fd: int) -> TransportEnd:
    """Take over the inherited file descriptors and wait for Configure.

    Raises EOFError when the training process is gone before it has sent one.
    """
    link = Link(socket.socket(fileno=link_fd))
    configure = first_message(link)
    run_file = RunFile.from_json(configure.run_file)
    layout = run_file.layout(configure.tensors)
    assert layout.digest == configure.layout_digest, "the two processes derived different layouts"
    plan = memory_plan(layout, run_file.sync, observer=configure.observer, share=configure.share)
    return TransportEnd(
        link=link,
        configure=configure,
        run_file=run_file,
        layout=layout,
        memory=memory.attach(plan, memory_fd),
        memory_fd=memory_fd,
    )


def first_message(link: Link) -> Configure:
    """Wait for Configure; messages behind it stay in the link for `attach`.

    Raises EOFError when the training process is gone: its link is closed, or, where a process that
    it has forked still holds the socket, it runs no more.
    """
    try:
        training = os.pidfd_open(creator_pid(link.socket))
    except ProcessLookupError as error:
        raise EOFError("the training process is gone") from error
    try:
        while (message := link.next()) is None:
            if link.closed or select.select([training], [], [], 0)[0]:
                raise EOFError("the training process is gone")
            link.wait(CONFIGURE_WAIT_SECONDS)
            link.fill()
    finally:
        os.close(training)
    assert isinstance(message, Configure), f"{message} came before Configure"
    return message


def creator_pid(pair: socket.socket) -> int:
    """The process that made a pair of sockets, as the kernel has noted it."""
    credentials = pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(credentials)[0])
