"""Ports on which the processes of a run can listen."""

import atexit
import contextlib
import random
import socket
import sys

PORTS = range(20_000, 29_000)  # below those of outgoing connections and of Kubernetes' services
_HELD: list[socket.socket] = []  # as long as this process lives


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of the loopback interface that are free at the moment, and no other run's.

    None is one that an outgoing connection may take before (on Linux those from 32768 on). A run's
    shard listens only seconds later, and not while it is started again, so a port that is free may
    be another run's. On Linux a run holds the name of each of its ports as a socket without a file.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            _hold(port)
            found.append(port)
        if len(found) >= count:
            return tuple(found)
    raise OSError(f"only {len(found)} of the ports from {PORTS[0]} to {PORTS[-1]} are free")


def _hold(port: int) -> None:
    """Raises OSError if another run has this port."""
    if sys.platform == "linux":
        held = socket.socket(socket.AF_UNIX)
        atexit.register(held.close)
        try:
            held.bind(f"\0atoll-run-port-{port}")
        except OSError:
            held.close()
            raise
        _HELD.append(held)
