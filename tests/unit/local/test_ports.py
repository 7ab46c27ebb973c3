"""Ports of a run stay its own while it lives, also while nothing listens there."""

import subprocess
import sys

import pytest

from atoll_operator.local.supervision import ports

OTHER = """
import sys
from atoll_operator.local.supervision import ports
ports.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 1)
print(*ports.free_ports(1), flush=True)
sys.stdin.read()
"""


def test_a_port_of_another_run_that_lives_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = ports.free_ports(1)
    while ports._HELD:  # this process gives back what it holds
        ports._HELD.pop().close()
    words = [sys.executable, "-c", OTHER, str(port)]
    monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{port}\n"
        with pytest.raises(OSError, match="only 0 of the ports"):
            ports.free_ports(1)
        other.communicate("")
    assert ports.free_ports(1) == (port,)
