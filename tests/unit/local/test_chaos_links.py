"""A link between a learner and a shard: it carries every byte, and what a plan does to it."""

import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from atoll_operator.local.chaos import LOOK_SECONDS, Fault, FaultKind, Links, ProxiedLink
from atoll_operator.local.process_plan import Planned
from atoll_protos.network.addresses import UNIX

SECONDS_MAX = 60.0
CUT = Fault(at=0.0, kind=FaultKind.CUT, target="a-0", shard="shard-1", seconds=1.0)
KILL = Fault(at=0.0, kind=FaultKind.KILL, target="shard-1")
DATA = random.Random(1).randbytes(1 << 20)


@pytest.fixture
def here() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def echo(path: Path) -> Iterator[str]:
    """A server in place of a shard that sends everything back; its address."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        def answer(peer: socket.socket) -> None:
            with peer, suppress(ConnectionError):  # of a connection that was cut to its end
                while data := peer.recv(1 << 16):
                    peer.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"{UNIX}{path}"
        server.shutdown(socket.SHUT_RDWR)


def dialled(address: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(SECONDS_MAX)
    peer.connect(address.removeprefix(UNIX))
    return peer


def sent(address: str, data: bytes) -> bytes:
    """What comes back of these bytes."""
    with dialled(address) as peer:
        threading.Thread(target=peer.sendall, args=(data,), daemon=True).start()
        return received(peer, len(data))


def received(peer: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count and (data := peer.recv(1 << 16)):
        found += data
    return bytes(found)


@pytest.fixture
def link(here: Path) -> Iterator[ProxiedLink]:
    """Of learner a-0 to shard 1, which answers."""
    with (
        echo(here / "1") as shard,
        Links([KILL, CUT], [f"unix:{here}/0", shard]).open() as opened,
    ):
        yield opened.of("a-0", "shard-1")


def test_a_link_carries_every_byte(link: ProxiedLink) -> None:
    assert sent(link.proxied, DATA) == DATA


def test_a_link_ends_with_its_shard(here: Path) -> None:
    with Links([CUT], [f"unix:{here}/0", f"unix:{here}/1"]).open() as opened:
        proxied = opened.of("a-0", "shard-1").proxied
        with suppress(ConnectionResetError), dialled(proxied) as peer:
            assert peer.recv(1) == b""


def test_while_a_link_is_cut_its_connections_stay_and_what_was_sent_waits(
    link: ProxiedLink,
) -> None:
    with dialled(link.proxied) as peer:
        peer.sendall(b"before")
        assert received(peer, 6) == b"before"
        with link.cut():
            with link.cut():
                peer.sendall(b"meanwhile")
            peer.settimeout(10 * LOOK_SECONDS)
            with pytest.raises(TimeoutError):
                peer.recv(1)
        peer.settimeout(SECONDS_MAX)
        assert received(peer, 9) == b"meanwhile"


def test_a_run_that_ends_with_open_connections_reports_no_error(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with echo(here / "1") as shard:
        with Links([CUT], [f"unix:{here}/0", shard]).open() as opened:
            peer = dialled(opened.of("a-0", "shard-1").proxied)
            peer.sendall(b"x")
            assert received(peer, 1) == b"x"
        peer.close()
    assert [each for each in caplog.records if each.name == "asyncio"] == []


def test_only_the_learners_of_a_plans_links_dial_a_proxy(here: Path) -> None:
    shards = [f"unix:{here}/0", f"unix:{here}/1"]

    def planned(name: str, slot: str = "") -> Planned:
        env = {"ATOLL_ENDPOINTS": ",".join(shards), "OTHER": "1"}
        return Planned(role="learner", name=name, slot=slot, command=(), env=env)

    processes = [planned("a-0-0", "a-0"), planned("a-0-1", "a-0"), planned("b-0")]
    with Links([KILL, CUT], shards).open() as opened:
        proxied = opened.of("a-0", "shard-1").proxied
        found = [each.env for each in opened.through(processes)]
    one, other, direct = (each["ATOLL_ENDPOINTS"] for each in found)
    assert one == other == f"{shards[0]},{proxied}"
    assert direct == ",".join(shards)
    assert {each["OTHER"] for each in found} == {"1"}
    before = threading.active_count()
    with Links([KILL], shards).open() as opened:
        assert threading.active_count() == before
        assert opened.through(processes) == processes
