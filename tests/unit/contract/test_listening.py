"""Whoever listens on all addresses is reached over IPv4 and over IPv6."""

import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from atoll_protos.network import listening as listening_module
from atoll_protos.network.addresses import joined
from atoll_protos.network.listening import (
    EVERYWHERE,
    HTTP_CONNECTIONS_MAX,
    listening_socket,
    serve_http,
)

NO_IPV6 = Path(__file__).resolve().parents[2] / "no_ipv6.py"
BOTH = ("127.0.0.1", "::1")
SECONDS_MAX = 20.0
WITHOUT = """
import socket
from atoll_protos.network.listening import listening_socket
try:
    socket.socket(socket.AF_INET6)
except OSError as error:
    print(error.strerror)
with listening_socket("") as listening:
    address = "127.0.0.1", listening.getsockname()[1]
    socket.create_connection(address, 20).close()
    print(listening.accept()[1][0])
"""


def reached(port: int) -> list[str]:
    """The loopback addresses at which something listens."""
    found = []
    for host in BOTH:
        try:
            socket.create_connection((host, port), SECONDS_MAX).close()
        except ConnectionRefusedError:
            continue
        found.append(host)
    return found


@pytest.mark.parametrize("host", EVERYWHERE)
def test_all_addresses_are_those_of_both_families(host: str) -> None:
    with listening_socket(host) as listening:
        assert reached(listening.getsockname()[1]) == [*BOTH]


@pytest.mark.parametrize("host", BOTH)
def test_one_address_is_that_one_alone(host: str) -> None:
    with listening_socket(host) as listening:
        assert reached(listening.getsockname()[1]) == [host]


def test_a_port_that_another_process_has_for_ipv4_is_in_use() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match="in use"):
        listening_socket("", taken.getsockname()[1])


def test_where_the_kernel_has_no_ipv6_all_addresses_are_those_of_ipv4() -> None:
    command = [sys.executable, str(NO_IPV6), sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert done.stdout.splitlines() == [
        "Address family not supported by protocol",
        "127.0.0.1",
    ], done.stderr


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.client_address[0].encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing."""


def test_http_is_answered_over_both_families() -> None:
    listening = listening_socket("")
    port = listening.getsockname()[1]
    serve_http(listening, Answers, "answers")
    for host in BOTH:
        url = f"http://{joined(host, port)}/"
        with closing(urllib.request.urlopen(url, timeout=SECONDS_MAX)) as reply:
            assert reply.read().decode().removeprefix("::ffff:") == host


def test_requests_that_never_end_keep_nobody_from_an_answer_and_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening_module, "HTTP_SECONDS_MAX", 10 * SECONDS_MAX)  # no time ends them
    listening = listening_socket("127.0.0.1")
    address = listening.getsockname()
    serve_http(listening, Answers, "answers")
    with ExitStack() as open_ones:
        hanging = [
            open_ones.enter_context(socket.create_connection(address, SECONDS_MAX))
            for _ in range(3 * HTTP_CONNECTIONS_MAX)
        ]
        for connection in hanging:
            connection.sendall(b"GET /")
        with closing(urllib.request.urlopen(f"http://{joined(*address)}/", timeout=SECONDS_MAX)):
            pass
        for connection in hanging[: 2 * HTTP_CONNECTIONS_MAX]:
            assert connection.recv(1) == b""


@pytest.mark.parametrize(("soft", "hard", "seen"), [(64, 200, 200), (64, 64, 64)])
def test_a_process_gets_as_many_open_files_as_it_may_have(soft: int, hard: int, seen: int) -> None:
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "from atoll_protos.network.listening import raise_file_limit;"
        "print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{seen} {(seen, hard)}"
