"""How the hosts of a learner meet: host 0 comes first, and who is gone is known."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousInfo

from atoll_operator.local.supervision.ports import free_ports
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.torchrun import of_hosts
from atoll_worker.launcher import rendezvous
from atoll_worker.launcher.command import configuration
from atoll_worker.launcher.rendezvous import Host, Meeting, not_needed, number_of, open_meeting

HOSTS = 2
FIRST, BEFORE_IT = "127.0.0.1", "0.0.0.0"
SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1
HASTY, PATIENT = 1, 60  # seconds that a host which begins a round waits for the others


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rendezvous, "LEAVE_SECONDS_MAX", SECONDS_MAX)
    before = dict(os.environ)
    given = of_hosts(
        slot="us-0",
        hosts=HOSTS,
        hosts_min=HOSTS,
        processes=1,
        first_host=f"{FIRST}:{free_ports(1)[0]}",
        host=None,
    )
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    yield
    os.environ.clear()
    os.environ.update(before)


def host(number: int, *options: str) -> Meeting:
    """One host of two, connected to the store of host 0."""
    opened = open_meeting(configuration(options), {Env.HOST: str(number)})
    assert isinstance(opened, Meeting)
    return opened


def few(number: int, patience: int, nodes: str = "1:2") -> Meeting:
    """One host of a learner that needs fewer."""
    return host(number, "--nnodes", nodes, "--rdzv-conf", f"last_call_timeout={patience}")


def met(hosts: list[Meeting]) -> list[RendezvousInfo]:
    """What each of them gets from the next round, which the last of them begins."""
    found: dict[int, RendezvousInfo] = {}

    def meet(index: int) -> None:
        found[index] = hosts[index].next_rendezvous()

    threads = [threading.Thread(target=meet, args=(index,)) for index in range(len(hosts))]
    for index, thread in reversed([*enumerate(threads)]):
        thread.start()
        until(lambda index=index: hosts[index]._state_holder.state.participants)  # type: ignore[misc]
    for thread in threads:
        thread.join(SECONDS_MAX)
    return [found[index] for index in range(len(hosts))]


def until(look: Callable[[], object]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + SECONDS_MAX
    while not look():
        assert time.monotonic() < deadline
        time.sleep(LOOK_SECONDS)


def missed(hosts: list[Meeting]) -> None:
    """The second host goes, and the first has heard of it."""
    hosts[1].leave()
    until(lambda: hosts[0].present == 1)


def test_host_0_comes_first_whatever_its_address_and_one_that_leaves_is_missed_at_once() -> None:
    hosts = [host(0), host(1, "--local-addr", BEFORE_IT)]
    found = met(hosts)
    assert [each.rank for each in found] == [0, 1]
    stores = [each.bootstrap_store_info for each in found]
    assert [store.master_addr for store in stores if store] == [FIRST, FIRST]
    assert hosts[0].present == HOSTS
    missed(hosts)
    assert hosts[0].num_nodes_waiting() == 0
    hosts[0].leave()


def test_where_one_host_is_enough_it_is_host_0(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [few(0, PATIENT), few(1, HASTY)]
    alone = threading.Event()
    monkeypatch.setattr(rendezvous, "pause", alone.set)
    found: list[RendezvousInfo] = []
    second = threading.Thread(target=lambda: found.append(hosts[1].next_rendezvous()))
    second.start()
    assert alone.wait(SECONDS_MAX)
    assert not found
    found += met(hosts[:1])
    second.join(SECONDS_MAX)
    first = [each for each in found if each.rank == 0]
    assert len(first) == 1
    assert {each.world_size for each in found} == {HOSTS}
    for each in hosts:
        each.leave()


@pytest.mark.parametrize("nodes", ["1:2", "2"])
def test_where_fewer_are_enough_others_meet(nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [few(0, HASTY, nodes), few(1, PATIENT, nodes)]
    assert {each.world_size for each in met(hosts)} == {HOSTS}
    assert hosts[0].num_nodes_waiting() == 0
    clock = 0.0
    monkeypatch.setattr(rendezvous, "now", lambda: clock)
    missed(hosts)
    assert hosts[0].num_nodes_waiting() == 0  # it may come back in a moment
    clock = hosts[0].seconds_to_notice
    assert hosts[0].num_nodes_waiting() == (1 if nodes == "1:2" else 0)
    if nodes == "1:2":
        assert [each.world_size for each in met(hosts[:1])] == [1]
        assert hosts[0].num_nodes_waiting() == 0
    hosts[0].leave()


def test_hosts_are_left_behind_only_where_those_that_are_heard_are_enough() -> None:
    zero, one, two = (Host(number, "a", number, 0) for number in range(3))
    met = {zero, one, two}
    assert not_needed(met, met, 1) == set()
    assert not_needed(met, {zero, two}, 2) == {one}
    assert not_needed(met, {zero}, 2) == set()
    assert not_needed({zero}, {zero, one}, 1) == set()  # it waits to join


def test_hosts_that_have_finished_are_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [few(0, HASTY), few(1, PATIENT)]
    met(hosts)
    clock = 0.0
    monkeypatch.setattr(rendezvous, "now", lambda: clock)
    hosts[1].shutdown()
    missed(hosts)
    assert hosts[0].num_nodes_waiting() == 0
    clock = hosts[0].seconds_to_notice
    assert hosts[0].num_nodes_waiting() == 0
    hosts[0].leave()


def test_hosts_sort_by_their_numbers_alone() -> None:
    assert Host(2, "b", 2, 0) < Host(10, "a", 1, 0)


def test_a_host_waits_for_host_0_in_place_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Meeting] = []
    monkeypatch.setattr(rendezvous, "pause", lambda: first.append(host(0)))
    with capture_logs() as said:
        assert host(1).get_run_id() == "us-0"
    words = f"waiting for host 0 of this learner at {os.environ['PET_RDZV_ENDPOINT']}"
    assert [(each["event"], each["host"]) for each in said] == [(words, 1)]
    assert len(first) == 1


def test_a_host_that_host_0_does_not_join_in_time_ends() -> None:
    with pytest.raises(RendezvousConnectionError, match="Connection refused"):
        host(1, "--rdzv-conf", "join_timeout=-1")


def test_a_number_that_is_no_hosts_is_refused() -> None:
    assert number_of({Env.HOST: "1"}, HOSTS) == 1
    assert number_of({}, HOSTS) is None
    assert number_of({Env.HOST: "0"}, 1) is None
    for given in ("2", "-1", "first"):
        with pytest.raises(SpecError, match="from 0 to 1"):
            number_of({Env.HOST: given}, HOSTS)
