"""Listening sockets, plain HTTP on them, open files for them, and the address of this machine.

A pod has an IPv4 address, an IPv6 address, or both: one socket for both families listens on all
addresses, of IPv4 alone where the kernel has no IPv6.

Whoever reaches a port can hold connections that say nothing. So HTTP has few at once, each with a
time-out; one more ends the oldest, since closing the new one would shut out probes and scrapes.
"""

import resource
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

EVERYWHERE: Final = ("", "0.0.0.0", "::")  # any of these words means all addresses
FILES_MAX: Final = 65_536  # what a process asks for: some programs walk through all that they may
HTTP_CONNECTIONS_MAX: Final = 8  # each a thread
HTTP_SECONDS_MAX: Final = 10.0  # of a connection on which nothing comes


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


def raise_file_limit() -> int:
    """How many files this process, and those that it starts, may have open: as many as it can get.

    The usual soft limit is 1024, and each connection is one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS has a lower one of the whole system
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return FILES_MAX if soft == resource.RLIM_INFINITY else soft


class _Server(ThreadingMixIn, TCPServer):
    """As http.server's own, which would ask DNS for this host's name first."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._open: list[socket.socket] = []  # oldest first

    def verify_request(self, request: Any, client_address: Any) -> bool:
        del client_address
        request.settimeout(HTTP_SECONDS_MAX)
        self._open.append(request)
        if len(self._open) > HTTP_CONNECTIONS_MAX:
            with suppress(OSError):  # it has just ended
                self._open.pop(0).shutdown(socket.SHUT_RDWR)
        return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with suppress(ValueError):  # a newer one has ended it
                self._open.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing into the log for a peer that hangs up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def serve_http(
    listening: socket.socket, handler: type[BaseHTTPRequestHandler], thread_name: str
) -> None:
    server = _Server(listening, handler)
    threading.Thread(target=server.serve_forever, name=thread_name, daemon=True).start()
