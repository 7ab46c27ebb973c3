"""A link between clusters is as slow as it says, each way."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_operator.local.supervisor import free_ports
from cluster.lab import links

DELAY_MILLISECONDS = 50
BITS_PER_SECOND = 100_000_000
SENT = 5_000_000  # bytes


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets from one client; its port."""

    def serve(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            while got := peer.recv(1 << 16):
                peer.sendall(got)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield int(server.getsockname()[1])
        thread.join()


@pytest.mark.long
def test_what_goes_through_a_link_is_delayed_and_limited_each_way(
    prepared: None, tmp_path: Path
) -> None:
    pid = links.serve(tmp_path)
    try:
        with echo() as port:
            (where,) = free_ports(1)
            listen = f"127.0.0.1:{where}"
            links.lay(
                links.Link(
                    name="slow",
                    listen=listen,
                    upstream=f"127.0.0.1:{port}",
                    delay_milliseconds=DELAY_MILLISECONDS,
                    bits_per_second=BITS_PER_SECOND,
                )
            )
            with socket.create_connection(("127.0.0.1", where)) as client:
                began = time.monotonic()
                client.sendall(b"x")
                client.recv(1)
                round_trip = time.monotonic() - began
                began = time.monotonic()
                sender = threading.Thread(target=client.sendall, args=(b"x" * SENT,))
                sender.start()
                left = SENT
                while left:
                    left -= len(client.recv(1 << 20))
                sender.join()
                took = time.monotonic() - began
    finally:
        links.end(pid)
    assert round_trip >= 2 * DELAY_MILLISECONDS / 1000
    assert took >= SENT * 8 / BITS_PER_SECOND
