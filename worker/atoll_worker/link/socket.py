"""The socket between the training process and its transport process: both ends, one codec."""

import asyncio
import json
import os
import select
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from inspect import signature
from typing import Any, TypeAlias

from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.run import RunFile, Sync
from atoll_protos.tensors import base_dtype
from atoll_worker.link import memory, messages
from atoll_worker.link.memory import Memory, Plan

LENGTH = struct.Struct("=I")
MESSAGE_BYTES_MAX = 64 << 20
UNSENT_BYTES_MAX = 16 << 20  # some 100,000 steps that the other end has not read
READ_BYTES = 1 << 18


class LinkError(Exception):
    """The other end broke the link's rules or has long stopped reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """The training process' first message: who it is and what its model looks like."""

    run_file: str  # JSON
    tensors: tuple[TensorSpec, ...]
    layout_digest: str
    slot: str  # empty for an observer
    uid: str
    instance: str
    endpoints: tuple[str, ...]  # host:port by shard
    telemetry_folder: str  # empty: none
    observer: bool
    training_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """An observer's measurement on the outer parameters of `tick`."""

    tick: int
    loss: float  # nats per token
    tokens: int
    seconds: float


Message: TypeAlias = Any  # one of KINDS
KINDS: dict[str, Callable[..., Message]] = {
    kind.__name__: kind
    for kind in (
        Configure,
        Evaluated,
        messages.Adopt,
        messages.Boundary,
        messages.Capture,
        messages.Fail,
        messages.Finished,
        messages.Leaving,
        messages.Proceed,
        messages.Start,
        messages.Tick,
    )
}
FIELDS = {name: tuple(signature(kind).parameters) for name, kind in KINDS.items()}


def encode(message: Message) -> bytes:
    """A length and a JSON object that names its kind; floats may be NaN."""
    named = {name: getattr(message, name) for name in FIELDS[type(message).__name__]}
    body = json.dumps({"kind": type(message).__name__, **named}, default=asdict).encode()
    return LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray) -> Message:
    """The message in `body`, its lists as tuples; LinkError when it is none."""
    try:
        fields = json.loads(body)
        kind = fields.pop("kind")
        if kind == Configure.__name__:
            fields["tensors"] = [TensorSpec(**frozen(each)) for each in fields["tensors"]]
        return KINDS[kind](**frozen(fields))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LinkError(f"no message of the link: {error!r}") from error


def frozen(value: Any) -> Any:
    """The same with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: frozen(each) for key, each in value.items()}
    return tuple(frozen(each) for each in value) if isinstance(value, list) else value


@dataclass(slots=True)
class Link:
    """One end. `send` and `receive` never wait; what the socket does not take is kept here."""

    socket: socket.socket
    closed: bool = False  # the other end is gone; what it said before can still be received
    inbox: bytearray = field(default_factory=bytearray, repr=False)
    unsent: deque[tuple[bool, bytes]] = field(default_factory=deque, repr=False)  # (Tick?, bytes)
    unsent_bytes: int = 0
    written: int = 0  # of the first unsent message

    def __post_init__(self) -> None:
        self.socket.setblocking(False)

    def send(self, message: Message) -> None:
        """Queue a message and write what the socket takes; an unsent Tick gives way to a newer.

        Raises LinkError when the other end has not read for very long.
        """
        is_tick = isinstance(message, messages.Tick)
        last_is_begun = len(self.unsent) == 1 and self.written > 0
        if is_tick and self.unsent and self.unsent[-1][0] and not last_is_begun:
            self.unsent_bytes -= len(self.unsent.pop()[1])
        data = encode(message)
        self.unsent.append((is_tick, data))
        self.unsent_bytes += len(data)
        self.flush()
        if self.unsent_bytes > UNSENT_BYTES_MAX and not self.closed:
            raise LinkError(f"the other process has left {self.unsent_bytes} bytes unread")

    def flush(self) -> None:
        """Write what the socket takes."""
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
        """All messages that have arrived."""
        self.fill()
        found = []
        while (message := self.next()) is not None:
            found.append(message)
        return found

    def fill(self) -> None:
        """Take in what the socket holds."""
        while not self.closed:
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self.inbox += data

    def next(self) -> Message | None:
        """The first message taken in and not yet given out."""
        if len(self.inbox) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self.inbox)
        if length > MESSAGE_BYTES_MAX:
            raise LinkError(f"a message of {length} bytes")
        stop = LENGTH.size + length
        if len(self.inbox) < stop:
            return None
        message = decode(self.inbox[LENGTH.size : stop])
        del self.inbox[:stop]
        return message

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


def memory_plan(layout: Layout, sync: Sync, *, observer: bool) -> Plan:
    """The shared memory of a job's learner or observer."""
    return memory.plan(layout, adopt_dtype=base_dtype(sync.wire_down), captures=not observer)


@dataclass(slots=True, kw_only=True)
class TransportEnd:
    """The transport process' end, with all that it has been told.

    At the start every capture region holds the model as the training process made it: the seed.
    """

    link: Link
    configure: Configure
    run_file: RunFile
    layout: Layout
    memory: Memory
    loop: asyncio.AbstractEventLoop | None = None
    on_end: Callable[[], None] | None = None

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call back in the loop: every Boundary, Leaving and Evaluated, and once the end.

        The end is the training process' death, however it died, or its closing of the link; also
        when a process that it has forked still holds the socket open.
        """
        self.loop, self.on_end = loop, on_end

        def readable() -> None:
            for message in self.link.receive():
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

    def send(self, command: Message) -> None:
        """Send one command; never waits."""
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
        """Say it once."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None and self.loop is not None:
            self.loop.remove_reader(self.link.socket.fileno())
            self.loop.remove_writer(self.link.socket.fileno())
            on_end()


def outlive_signals() -> None:
    """Ignore SIGINT and SIGTERM: the transport's first act.

    Some send them to all processes of a job, but the training process decides when to leave, and
    its Leaving must still get through.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def open_transport_end(link_fd: int, memory_fd: int) -> TransportEnd:
    """Take over the inherited descriptors and wait for Configure.

    Raises EOFError when the training process is gone.
    """
    link = Link(socket.socket(fileno=link_fd))
    configure = first_message(link)
    run_file = RunFile.from_json(configure.run_file)
    layout = build_layout(configure.tensors, run_file.sync.fragments, run_file.shards)
    assert layout.digest == configure.layout_digest, "two processes derived two layouts"
    plan = memory_plan(layout, run_file.sync, observer=configure.observer)
    return TransportEnd(
        link=link,
        configure=configure,
        run_file=run_file,
        layout=layout,
        memory=memory.attach(plan, memory_fd),
    )


def first_message(link: Link) -> Configure:
    """Wait for it; what follows it stays for `attach`."""
    while (message := link.next()) is None:
        if link.closed:
            raise EOFError("the training process is gone")
        link.wait(60.0)
        link.fill()
    assert isinstance(message, Configure), f"{message} before Configure"
    return message
