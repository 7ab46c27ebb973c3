"""Ports on which the processes of a run can listen."""

import contextlib
import random
import socket

PORTS = range(20_000, 29_000)  # below those of outgoing connections and of Kubernetes' services


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of the loopback interface that are free at the moment.

    None is one that an outgoing connection may take before (on Linux those from 32768 on).
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) >= count:
            return tuple(found)
    raise OSError(f"only {len(found)} of the ports from {PORTS[0]} to {PORTS[-1]} are free")
