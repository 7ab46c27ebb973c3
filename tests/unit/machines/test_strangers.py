"""Who has nothing to show holds up nobody at the join port, and writes into no log."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import make_key, request_for
from atoll_operator.machines.bundle import SERVER_NAME, Bundle, hash_of, locked
from atoll_operator.machines.joined import server_link
from atoll_operator.machines.joined.server_link import ServerLink, proved
from atoll_operator.machines.joined.watching import Server
from atoll_operator.machines.server import join_port
from atoll_operator.machines.server.join_port import (
    WITHIN_SECONDS,
    WRONG_MAX,
    Attempts,
    TooManyError,
    network_of,
)
from atoll_operator.machines.server.register import OpenSlots
from atoll_operator.machines.server.serving import MachineServer
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.network import channels
from atoll_protos.v1.atoll_pb2_grpc import MachinesStub
from unit.machines.served import Served, enter

SECONDS_MAX = 20.0
ENTER = "/atoll_protos.v1.Machines/Enter"
FORGED = "1\nmachine eu has entered\x1b]0;owned\x07" + "x" * 1000


def link_to(served: Served) -> ServerLink:
    return proved(served.place, served.token().digest)


def entered(served: Served, state: Path) -> Callable[[], Bundle]:
    """What a machine that has entered asks again and again."""
    folder, machine, _ = enter(served.options(state, served.token()))
    return partial(Server(ServerLink(served.place, machine.anchor)).enter, folder, machine)


def request(**more: Any) -> pb.EnterRequest:
    """Of a key that nobody knows."""
    return pb.EnterRequest(request=request_for(make_key()), **more)


@contextmanager
def hanging(served: Served, count: int) -> Iterator[Sequence[Any]]:
    """Calls of one stranger whose message never comes, as many on a connection as may be."""
    anchor, over = link_to(served).anchor.encode(), threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    opened, calls = list[grpc.Channel](), list[Any]()
    for number in range(count):
        if number % join_port.CALLS_MAX == 0:
            options = [*channels.control_options(), (channels.TARGET_NAME, SERVER_NAME)]
            credentials = grpc.ssl_channel_credentials(anchor)
            opened.append(grpc.secure_channel(served.place, credentials, options))
            grpc.channel_ready_future(opened[-1]).result(SECONDS_MAX)
        calls.append(opened[-1].stream_unary(ENTER, bytes).future(nothing()))
    try:
        yield calls
    finally:
        over.set()
        for channel in opened:
            channel.close()


def test_calls_whose_message_never_comes_hold_up_nobody(served: Served, tmp_path: Path) -> None:
    with hanging(served, 100):
        entered(served, tmp_path / "a")()


def test_a_machine_that_waits_for_the_register_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entering, signed = threading.Event(), MachineServer.offered

    def offered(server: MachineServer) -> OpenSlots:
        """What an entry asks for before it waits for the register."""
        entering.set()
        return signed(server)

    monkeypatch.setattr(MachineServer, "offered", offered)
    served = Served(tmp_path / "served")
    with served.server.open(served.said.append):
        options, link = served.options(tmp_path / "b", served.token(), name="b"), link_to(served)
        other = threading.Thread(target=enter, args=(options,))
        entering.clear()
        with locked(served.out / "machines"):
            other.start()
            assert entering.wait(SECONDS_MAX)
            monkeypatch.setattr(server_link, "PROTOCOL", 1)
            with pytest.raises(SpecError, match="protocol 1"):
                link.enter(request())
            assert other.is_alive()
        other.join()


def closed(silent: socket.socket) -> bool:
    try:
        while silent.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_who_says_nothing_or_half_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_port, "HANDSHAKE_SECONDS_MAX", 1.0)
    monkeypatch.setattr(join_port, "AGE_SECONDS_MAX", 1.0)
    monkeypatch.setattr(channels, "AGE_GRACE_SECONDS", 0.5)
    served = Served(tmp_path / "served")
    with served.server.open(served.said.append), hanging(served, 1) as (call,):
        host, port = served.place.split(":")
        with socket.create_connection((host, int(port)), SECONDS_MAX) as silent:
            assert closed(silent)
        assert isinstance(call.exception(SECONDS_MAX), grpc.RpcError)
        ask = entered(served, tmp_path / "a")
        for _ in range(3):
            ask()


def test_of_many_connections_some_are_closed_and_an_older_one_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_port, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(join_port, "HANDSHAKE_SECONDS_MAX", 10 * SECONDS_MAX)
    served = Served(tmp_path / "served")
    with served.server.open(served.said.append):
        options = [*channels.control_options(), (channels.TARGET_NAME, SERVER_NAME)]
        credentials = grpc.ssl_channel_credentials(link_to(served).anchor.encode())
        older = grpc.secure_channel(served.place, credentials, options)
        ask = MachinesStub(older).Enter
        assert ask(request(), timeout=SECONDS_MAX).HasField("refusal")
        host, port = served.place.split(":")
        silent = [socket.create_connection((host, int(port)), SECONDS_MAX) for _ in range(4)]
        assert closed(silent[-1])
        assert ask(request(), timeout=SECONDS_MAX).HasField("refusal")
        for connection in silent:
            connection.close()
        older.close()


def test_a_message_of_a_megabyte_is_refused_unread(served: Served) -> None:
    with pytest.raises(AwayError):
        link_to(served).enter(pb.EnterRequest(token="abcdef", region="x" * (1 << 20)))
    assert not served.said


def test_a_stranger_is_answered_some_times_and_a_right_secret_always(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, link, token = entered(served, tmp_path / "a"), link_to(served), served.token()
    guesses: tuple[Callable[[], object], ...] = (
        lambda: link.enter(request(name="house")),
        lambda: link.enter(pb.EnterRequest(token=token.name, secret=token.secret)),
        lambda: link.enter(request(token="abcdef", secret="wrong")),
        lambda: link.enter(request(token=token.name, secret="wrong")),
    )
    for number in range(WRONG_MAX):
        with pytest.raises(SpecError, match=r"is not one of|is not a token|cannot be signed"):
            guesses[number % len(guesses)]()
    for guess in guesses:
        with pytest.raises(AwayError, match="too many wrong tokens from here"):
            guess()
    ask()
    enter(served.options(tmp_path / "b", token, name="other"))
    lines = [line for line in served.said if "was refused" in line]
    assert len(lines) == len({*lines}) == 4
    assert link.place.split(":")[0] in lines[0]
    monkeypatch.setattr(server_link, "PROTOCOL", 1)
    with pytest.raises(AwayError, match="too many"):  # another version is as little
        link.enter(request())


def test_what_a_caller_sends_is_one_short_line_wherever_it_is_shown_or_kept(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, token = link_to(served), served.token()
    right = request(token=token.name, secret=token.secret, hosts=1)
    with monkeypatch.context() as patched:
        patched.setattr(server_link, "version", lambda _: FORGED)
        patched.setattr(server_link, "PROTOCOL", 1)
        with pytest.raises(SpecError):
            link.enter(request())
    for field in ("token", "region", "slot"):
        asked = pb.EnterRequest()
        asked.CopyFrom(right)
        setattr(asked, field, FORGED)
        with pytest.raises(SpecError):
            link.enter(asked)
    with pytest.raises(SpecError):
        link.enter(request(name=FORGED))
    assert len(served.said) == 5
    more: dict[str, Any] = {"token": str(token), "name": FORGED[:60], "hosts": 2}
    folder, first, _ = enter(replace(served.options(tmp_path / "0"), **more, host=0))
    refused = dict.fromkeys(first.slots, FORGED)
    Server(link).enter(folder, first, FORGED, refused)
    second = enter(replace(served.options(tmp_path / "1"), **more, host=1))[1]
    (kept, _) = served.server.book.read().machines
    for text in (*served.said, kept.wanted, kept.refused[0].why, second.rendezvous):
        assert text.isprintable()
        assert len(text) < 600


def test_what_a_server_answers_is_one_line_too() -> None:
    refusal = pb.MachineRefusal(field=FORGED, problem=FORGED, remedy=FORGED)
    assert str(server_link._refused(refusal)).isprintable()


def test_the_printed_token_is_for_free_slots_and_the_next_start_prints_it_again(
    served: Served,
) -> None:
    line = served.server.invitation()
    (granted,) = served.server.book.read().tokens
    assert granted.uses == 3
    assert granted.secret_hash == hash_of(line.split(".")[1])
    again = Served(served.out).server
    assert again.invitation().split("=")[1].split()[0] == line.split("=")[1].split()[0]
    assert served.server.book.read().tokens == (granted,)


def wrong(address: str, *, now: float = 0.0) -> Attempts:
    """As often as it may be."""
    counted = Attempts()
    for _ in range(WRONG_MAX):
        counted.failed(address, now)
    return counted


def test_after_so_many_an_address_is_answered_no_more_for_a_while() -> None:
    counted = wrong("192.0.2.1:4000", now=100.0)
    for port in (4000, 5000):
        with pytest.raises(TooManyError):
            counted.failed(f"192.0.2.1:{port}", 100.0 + WITHIN_SECONDS - 1)
    counted.failed("192.0.2.2:4000", 100.0)
    counted.failed("192.0.2.1:4000", 100.0 + WITHIN_SECONDS)


def test_a_host_of_ipv6_has_its_network() -> None:
    counted = wrong("[2001:db8:0:1::5]:4000")
    with pytest.raises(TooManyError):
        counted.failed("[2001:db8:0:1:ffff::6]:9", 1.0)
    counted.failed("[2001:db8:0:2::5]:4000", 1.0)
    assert network_of("[::ffff:192.0.2.1]:7") == network_of("192.0.2.1:8") == "192.0.2.1"
    assert network_of("unix:/tmp/x") == "unix:/tmp/x"


def test_it_remembers_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_port, "ADDRESSES_MAX", 3)
    counted = Attempts()
    for number in range(5):
        counted.failed(f"192.0.2.{number}:1", float(number))
    assert [*counted._wrong] == ["192.0.2.2", "192.0.2.3", "192.0.2.4"]
