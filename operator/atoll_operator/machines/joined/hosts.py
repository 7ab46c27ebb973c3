"""How the machines of one learner meet: host 0 names the place, and the others hear of it.

The place is HOST:PORT of host 0. It is the address by which this machine reaches the server, unless
a person has named another one; the server passes it on, so it may change. For a job of a cluster
nobody does, so a person names it at each host but the first.
"""

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from atoll_operator.machines.joined.folder import Joined
from atoll_protos.errors import SpecError
from atoll_protos.network.addresses import joined, processes_of, split
from atoll_protos.network.listening import own_address
from atoll_protos.torchrun import MEETING_PORT

GLOO: Final = "GLOO_SOCKET_IFNAME"  # else gloo takes the address of the host's name: 127.0.1.1
SIOCGIFADDR: Final = 0x8915  # of Linux: the IPv4 address of an interface
NAME_BYTES: Final = 15
IPV6: Final = Path("/proc/net/if_inet6")


def checked(rendezvous: str) -> str:
    """HOST:PORT, or empty. Raises SpecError."""
    try:
        if rendezvous:
            split(rendezvous)
    except ValueError as error:
        remedy = "give HOST:PORT of host 0, as the other hosts reach it"
        raise SpecError("--rendezvous", str(error), remedy) from error
    return rendezvous


def place_of(machine: Joined) -> str:
    """Where the hosts meet, as far as this one knows; empty: host 0 was not heard of yet."""
    if machine.host or machine.rendezvous:
        return machine.rendezvous
    shards = machine.server or processes_of(machine.endpoints[0])[0]
    return joined(own_address(*split(shards)), MEETING_PORT)


def environment(place: str) -> dict[str, str]:
    """For ranks that meet others at a place: the interface on the way there, where it is known."""
    if GLOO in os.environ:
        return {}
    with suppress(OSError):
        name = interface_of(own_address(*split(place)))
        return {GLOO: name} if name else {}
    return {}


def interface_of(address: str) -> str:
    """The name of this machine's interface with an IP address; empty: there is none."""
    names = [name for _, name in socket.if_nameindex()]
    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        lines = map(str.split, IPV6.read_text(encoding="ascii").splitlines())
        return next((line[-1] for line in lines if line[0] == wanted), "")
    return next((name for name in names if _address_of(name) == address), "")


def _address_of(interface: str) -> str:
    wanted = struct.pack("256s", interface.encode()[:NAME_BYTES])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        return socket.inet_ntoa(fcntl.ioctl(each, SIOCGIFADDR, wanted)[20:24])
    return ""
