"""A relay in front of a shard, which may hold up what a learner sends on its control stream."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True)
class Relay:
    """The control stream's connection is the first that a learner opens."""

    shard: tuple[str, int]
    listener: socket.socket
    hold_seconds: float = 0.0  # of what comes for the shard on that connection, also of its end
    connections: list[socket.socket] = field(default_factory=list)  # of the learner
    _others: list[socket.socket] = field(default_factory=list)  # to the shard
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        """What the learner dials."""
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def begin(self) -> None:
        """Serve, in a thread."""
        self._begin(self._serve)

    def end(self) -> None:
        """Nothing is left of it."""
        for each in (self.listener, *self.connections, *self._others):
            with suppress(OSError):  # it has ended already
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (*self.connections, *self._others):
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self.listener.accept()
                theirs = socket.create_connection(self.shard)
                is_control = not self.connections
                self.connections.append(ours)
                self._others.append(theirs)
                self._begin(self._pass_on, ours, theirs, is_control)
                self._begin(self._pass_on, theirs, ours, False)

    def _begin(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_control: bool) -> None:
        """All bytes of one way, and then its end."""
        with suppress(OSError):
            data = b" "
            while data:
                data = source.recv(READ_BYTES)
                if is_control:
                    time.sleep(self.hold_seconds)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(endpoint: str) -> Iterator[Relay]:
    """One before the shard at `endpoint`, for one learner."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Relay(shard=(host, int(port)), listener=listener)
        made.begin()
        try:
            yield made
        finally:
            made.end()
