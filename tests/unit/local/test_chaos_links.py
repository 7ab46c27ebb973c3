"""A link between a learner and a shard: it carries every byte, and what a plan does to it."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from atoll_operator.local.chaos import links
from atoll_operator.local.chaos.links import Direction, FaultyLink, Links
from atoll_operator.local.chaos.plan import DrawnFault, FaultWord
from atoll_operator.local.planning.process_plan import Planned
from atoll_protos.network.addresses import split

SECONDS_MAX = 60.0
HERE = ["127.0.0.1:7", "127.0.0.1:8|127.0.0.1:9"]
CUT = DrawnFault(at=0.0, word=FaultWord.CUT, target="a-0", shard="shard-1", seconds=1.0)
KILL = DrawnFault(at=0.0, word=FaultWord.KILL, target="shard-1")
DATA = random.Random(1).randbytes(1 << 20)


@contextmanager
def echo() -> Iterator[int]:
    """A server in place of a shard that sends everything back; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        def answer(peer: socket.socket) -> None:
            with peer, suppress(ConnectionResetError):  # of a connection that was cut to its end
                while data := peer.recv(1 << 16):
                    peer.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def ports_of(link: FaultyLink) -> list[int]:
    """Of the proxy: for the process of the shard that does not listen, and for the other."""
    return [split(each)[1] for each in link.proxied.split("|")]


def sent(port: int, data: bytes) -> bytes:
    """What comes back of these bytes."""
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as peer:
        threading.Thread(target=peer.sendall, args=(data,), daemon=True).start()
        return received(peer, len(data))


def received(peer: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count and (data := peer.recv(1 << 16)):
        found += data
    return bytes(found)


@pytest.fixture
def link() -> Iterator[FaultyLink]:
    """Of learner a-0 to shard 1, which answers."""
    with (
        echo() as port,
        Links([KILL, CUT], ["127.0.0.1:1", f"127.0.0.1:1|127.0.0.1:{port}"]).open() as opened,
    ):
        yield opened.of("a-0", "shard-1")


def test_a_link_carries_every_byte_and_ends_with_its_shard(link: FaultyLink) -> None:
    nobody, somebody = ports_of(link)
    assert sent(somebody, DATA) == DATA
    place = "127.0.0.1", nobody
    with suppress(ConnectionResetError), socket.create_connection(place, SECONDS_MAX) as peer:
        assert peer.recv(1) == b""


def test_while_a_link_is_cut_its_connections_stay_and_what_was_sent_waits(link: FaultyLink) -> None:
    with socket.create_connection(("127.0.0.1", ports_of(link)[1]), SECONDS_MAX) as peer:
        peer.sendall(b"before")
        assert received(peer, 6) == b"before"
        with link.fault(FaultWord.CUT, 0.0):
            peer.sendall(b"meanwhile")
            peer.settimeout(10 * links.LOOK_SECONDS)
            with pytest.raises(TimeoutError):
                peer.recv(1)
        peer.settimeout(SECONDS_MAX)
        assert received(peer, 9) == b"meanwhile"


def test_a_cut_may_meet_one_process_of_a_shard() -> None:
    with echo() as one, echo() as other:
        shard = f"127.0.0.1:{one}|127.0.0.1:{other}"
        with Links([CUT], ["127.0.0.1:1", shard]).open() as opened:
            link = opened.of("a-0", "shard-1")
            cut, goes_on = ports_of(link)
            with link.fault(FaultWord.CUT, 0.0, one):
                assert sent(goes_on, b"other") == b"other"
                with socket.create_connection(("127.0.0.1", cut), SECONDS_MAX) as peer:
                    peer.sendall(b"one")
                    peer.settimeout(10 * links.LOOK_SECONDS)
                    with pytest.raises(TimeoutError):
                        peer.recv(1)
            assert sent(cut, b"one") == b"one"


@pytest.mark.parametrize(
    ("word", "amount"), [(FaultWord.DELAY, 0.2), (FaultWord.RATE, 4 * len(DATA))]
)
def test_delay_and_rate_hold_bytes_back_in_each_direction_and_change_none(
    link: FaultyLink, word: FaultWord, amount: float
) -> None:
    with link.fault(word, amount):
        begun = time.monotonic()
        assert sent(ports_of(link)[1], DATA) == DATA
        seconds = time.monotonic() - begun
    assert seconds >= (2 * amount if word is FaultWord.DELAY else len(DATA) / amount)
    assert link.faults == {}


def test_of_so_many_packets_about_one_is_corrupted_and_then_none(link: FaultyLink) -> None:
    packets = len(DATA) / links.PACKET_BYTES
    with link.fault(FaultWord.CORRUPT, 10.0):
        direction = Direction()
        changed = link.altered(DATA, direction)
        again = sent(ports_of(link)[1], DATA)
    wrong = [a ^ b for a, b in zip(DATA, changed, strict=True) if a != b]
    assert packets / 20 < len(wrong) < packets / 5
    assert all(each.bit_count() == 1 for each in wrong)
    assert direction.good_bytes > 0
    assert again != DATA
    assert sent(ports_of(link)[1], DATA) == DATA


def test_a_run_that_ends_with_open_connections_reports_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with echo() as port:
        with Links([CUT], ["127.0.0.1:1", f"127.0.0.1:{port}"]).open() as opened:
            (proxied,) = ports_of(opened.of("a-0", "shard-1"))
            peer = socket.create_connection(("127.0.0.1", proxied), SECONDS_MAX)
            peer.sendall(b"x")
            assert received(peer, 1) == b"x"
        peer.close()
    assert [each for each in caplog.records if each.name == "asyncio"] == []


def test_only_the_learners_of_a_plans_links_dial_a_proxy() -> None:
    def planned(name: str, slot: str = "") -> Planned:
        env = {"ATOLL_ENDPOINTS": ",".join(HERE), "OTHER": "1"}
        return Planned(role="learner", name=name, slot=slot, command=(), env=env)

    processes = [planned("a-0-0", "a-0"), planned("a-0-1", "a-0"), planned("b-0")]
    with Links([KILL, CUT], HERE).open() as opened:
        proxied = opened.of("a-0", "shard-1").proxied
        found = [each.env for each in opened.through(processes)]
    assert len(proxied.split("|")) == 2  # each process of the shard has a port of its own
    one, other, direct = (each["ATOLL_ENDPOINTS"] for each in found)
    assert one == other == f"127.0.0.1:7,{proxied}"
    assert direct == ",".join(HERE)
    assert {each["OTHER"] for each in found} == {"1"}
    before = threading.active_count()
    with Links([KILL], HERE).open() as opened:
        assert threading.active_count() == before
        assert opened.through(processes) == processes
