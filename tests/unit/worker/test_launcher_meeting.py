"""How the hosts of a learner meet: host 0 comes first, and who is gone is known."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from signal import Signals

import pytest
from structlog.testing import capture_logs
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
)

from atoll_operator.local.startable import free_ports
from atoll_worker.launcher import meeting
from atoll_worker.launcher.launch import configuration
from atoll_worker.launcher.meeting import LocalRanks, Meeting, OneHost, RoundOverError

HOSTS = 2
FIRST = "127.0.0.1"
BESIDE = "127.0.0.2"  # another address of this machine
SECONDS_MAX = 60.0
LOOK_SECONDS = 0.01
BOTH, ONE = "2", "1:2"  # the hosts that a learner needs


class Stopped(LocalRanks):
    """Ranks that are none, and the signals that they get."""

    def __init__(self) -> None:
        super().__init__()
        self.signals: list[Signals] = []

    def stop(self, number: Signals, seconds: float) -> None:
        """Keep the signal."""
        self.signals.append(number)


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where the hosts meet; a second goes by only where a test says so."""
    monkeypatch.setattr(meeting, "LOOK_SECONDS", LOOK_SECONDS)
    before = dict(os.environ)
    (number,) = free_ports(1)
    yield number
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def host(port: int) -> Iterator[Callable[..., Meeting]]:
    """Make a host of two."""
    made: list[Meeting] = []

    def make(number: int, nodes: str = BOTH, conf: str = "", join: str = "600") -> Meeting:
        options = (f"--nnodes={nodes}", f"--node-rank={number}", "--rdzv-id=us-0")
        address = f"--rdzv-endpoint={FIRST}:{port}"
        conf = f"--rdzv-conf=join_timeout={join},keep_alive_interval=0.05{conf}"
        config, _ = configuration([*options, address, conf])
        made.append(Meeting(config, number, (FIRST, port), Stopped()))
        return made[-1]

    yield make
    for each in reversed(made):
        each.leave()


def met(*hosts: Meeting) -> list[RendezvousInfo]:
    """What they get from the next round; host 0 comes last."""
    infos: dict[int, RendezvousInfo] = {}

    def meet(index: int) -> None:
        infos[index] = hosts[index].next_rendezvous()

    threads = [threading.Thread(target=meet, args=(index,)) for index in range(len(hosts))]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    return [infos[index] for index in range(len(hosts))]


def until_over(host: Meeting) -> None:
    """Wait until its round is over."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            assert host.num_nodes_waiting() == 0
        except RoundOverError:
            return
        time.sleep(LOOK_SECONDS)
    raise AssertionError("the round goes on")


def answers(address: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), SECONDS_MAX).close()
    except ConnectionRefusedError:
        return False
    return True


def address_of_ranks(info: RendezvousInfo) -> tuple[str, int]:
    """Where the ranks of this round find their store."""
    assert info.bootstrap_store_info is not None
    return info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port


def test_the_store_of_one_host_is_on_the_loopback_interface_alone_and_new_for_each_start() -> None:
    opened = OneHost("us-0", LocalRanks())
    assert opened.use_agent_store
    first, again = opened.next_rendezvous(), opened.next_rendezvous()
    (address, port), (_, next_port) = address_of_ranks(first), address_of_ranks(again)
    assert port != next_port
    assert answers(address, next_port)
    assert not answers(BESIDE, next_port)


def test_the_stores_of_several_hosts_are_on_the_address_of_host_0_alone(
    host: Callable[..., Meeting], port: int
) -> None:
    hosts = host(0), host(1)
    first = [address_of_ranks(info) for info in met(*hosts)]
    again = [address_of_ranks(info) for info in met(*hosts)]
    assert first[0] == first[1] != again[0] == again[1]
    for number in (port, again[0][1]):
        assert answers(FIRST, number)
        assert not answers(BESIDE, number)


@pytest.mark.parametrize("resolved", ["127.0.1.1", "203.0.113.1"])  # the second is another's
def test_a_store_whose_name_others_resolve_in_another_way_is_on_all_addresses(
    resolved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, 0))]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        listener = meeting.store_listener("this-machine", 0)
    with listener:
        number = listener.getsockname()[1]
        assert answers(FIRST, number)
        assert answers(BESIDE, number)


def test_rank_0_is_on_host_0_and_a_host_that_meets_again_ends_the_round_of_the_others(
    host: Callable[..., Meeting],
) -> None:
    hosts = host(0), host(1)
    for _ in range(2):
        infos = met(*hosts)
        assert [info.rank for info in infos] == [0, 1]
        assert {info.world_size for info in infos} == {HOSTS}
        assert [each.num_nodes_waiting() for each in hosts] == [0, 0]
    again = threading.Thread(target=hosts[1].next_rendezvous)
    again.start()
    until_over(hosts[0])
    assert isinstance(hosts[0].ranks, Stopped)
    assert hosts[0].ranks.signals == [Signals.SIGTERM]
    hosts[0].next_rendezvous()
    again.join(SECONDS_MAX)
    assert not again.is_alive()


def test_a_host_that_starts_again_is_waited_for_by_all_others(host: Callable[..., Meeting]) -> None:
    hosts = host(0), host(1)
    met(*hosts)
    hosts[1].leave()
    assert hosts[0].num_nodes_waiting() == 0
    new = threading.Thread(target=(second := host(1)).next_rendezvous)
    new.start()
    until_over(hosts[0])
    assert hosts[0].next_rendezvous().world_size == HOSTS
    new.join(SECONDS_MAX)
    assert second.round.hosts[1].startswith(second.me)


@pytest.mark.parametrize("left", [True, False])
def test_where_fewer_are_enough_the_others_go_on_without_one_that_is_silent(
    host: Callable[..., Meeting], left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one = host(0, ONE, ",last_call_timeout=60"), host(1, ONE)
    assert {info.world_size for info in met(zero, one)} == {HOSTS}
    zero.last_call = 0.0
    if left:
        one.leave()
    else:
        one.gone.set()  # it is stopped
    with capture_logs() as logs:
        until_over(zero)
    assert [line["event"] for line in logs] == [
        "nothing comes from host 1 of this learner: the others continue without it"
    ]
    assert met(zero)[0].world_size == 1
    assert zero.num_nodes_waiting() == 0
    came = threading.Thread(target=host(1, ONE).next_rendezvous)
    came.start()
    until_over(zero)
    zero.last_call = SECONDS_MAX
    assert zero.next_rendezvous().world_size == HOSTS
    came.join(SECONDS_MAX)


def test_hosts_that_have_finished_are_not_silent_and_meet_nobody(
    host: Callable[..., Meeting],
) -> None:
    zero, one = host(0, ONE), host(1, ONE)
    met(zero, one)
    one.close()
    one.leave()
    assert zero.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError):
        host(1, ONE).next_rendezvous()


def test_a_failure_began_on_the_host_that_marks_it_first_unless_another_is_gone(
    host: Callable[..., Meeting],
) -> None:
    zero, one = host(0), host(1)
    met(zero, one)
    assert one.began_here(wait=True)
    assert not zero.began_here(wait=True)
    met(zero, one)
    one.gone.set()
    assert not zero.began_here(wait=True)


def test_a_host_waits_for_host_0_in_place(
    host: Callable[..., Meeting], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[Meeting] = []

    def pause(_: Meeting) -> None:
        first.append(host(0))
        assert first[0].store.port == port

    monkeypatch.setattr(Meeting, "pause", pause)
    with capture_logs() as logs:
        assert host(1).read("round") == ""
    words = f"waiting for host 0 of this learner at {FIRST}:{port}"
    assert [(line["event"], line["host"]) for line in logs] == [(words, 1)]
    assert len(first) == 1


def test_a_host_that_host_0_does_not_join_in_time_ends(host: Callable[..., Meeting]) -> None:
    with pytest.raises(RendezvousConnectionError, match="Connection refused"):
        host(1, join="-1").next_rendezvous()


def test_a_signal_ends_a_host_that_waits(host: Callable[..., Meeting]) -> None:
    waiting = host(0)
    waiting.ranks.signal = Signals.SIGTERM
    with pytest.raises(SignalException):
        waiting.next_rendezvous()
