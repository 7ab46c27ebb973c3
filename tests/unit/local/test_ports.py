"""Ports of a run stay its own while it lives, also while nothing listens there."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from atoll_operator.local import startable

OTHER = """
import sys
from atoll_operator.local import startable as ports
ports.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 1)
print(*ports.free_ports(1), flush=True)
sys.stdin.read()
"""


def give_back() -> None:
    """This process gives back what it holds."""
    while startable._HELD:
        startable._HELD.pop().close()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    give_back()


def test_ports_are_none_of_outgoing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's connection had a shard's port by the time that the shard listened."""
    found = startable.free_ports(100)
    give_back()
    assert len(set(found)) == 100
    assert max(found) < 32_768  # the first that Linux gives to outgoing connections
    with socket.create_server(("127.0.0.1", found[0])):
        monkeypatch.setattr(startable, "PORTS", found[:4])
        assert sorted(startable.free_ports(3)) == sorted(found[1:4])
        give_back()
        with pytest.raises(OSError, match="only 3 of the ports"):
            startable.free_ports(4)


def test_a_port_of_another_run_that_lives_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = startable.free_ports(1)
    give_back()
    words = [sys.executable, "-c", OTHER, str(port)]
    monkeypatch.setattr(startable, "PORTS", range(port, port + 1))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{port}\n"
        with pytest.raises(OSError, match="only 0 of the ports"):
            startable.free_ports(1)
        other.communicate("")
    assert startable.free_ports(1) == (port,)
