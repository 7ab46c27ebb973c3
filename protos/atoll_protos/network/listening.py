"""Listening sockets, plain HTTP on them, and the address of this machine.

A pod has an IPv4 address, an IPv6 address, or both: one socket for both families listens on all
addresses, of IPv4 alone where the kernel has no IPv6.
"""

import socket
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Final

EVERYWHERE: Final = ("", "0.0.0.0", "::")  # any of these words means all addresses


def listening_socket(host: str, port: int = 0, backlog: int | None = None) -> socket.socket:
    """For one of EVERYWHERE on all addresses; port 0: one that is free. Raises OSError."""
    if host not in EVERYWHERE:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port), backlog=backlog)
    return socket.create_server(
        ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
    )


def own_address(host: str, port: int) -> str:
    """Of this machine, where it dials another one. Nothing is sent. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as each:
        each.connect(address)
        return str(each.getsockname()[0])


class _Server(ThreadingMixIn, TCPServer):
    """As http.server's own, which would ask DNS for this host's name first."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening


def serve_http(
    listening: socket.socket, handler: type[BaseHTTPRequestHandler], thread_name: str
) -> None:
    server = _Server(listening, handler)
    threading.Thread(target=server.serve_forever, name=thread_name, daemon=True).start()
