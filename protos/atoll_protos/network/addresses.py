"""Addresses as text: host and port in one word, with an IPv6 address in brackets.

The *endpoint* of a shard is such an address, or those of its processes, separated by "|", of which
one listens. gRPC takes several only as IP addresses of one family; in a cluster one name leads to
all of them.
"""

from ipaddress import ip_address
from typing import Final

from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

OR: Final = "|"
PORT_MAX: Final = 65_535


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Raises ValueError, also for an IPv6 address without brackets: its end may be no port."""
    if "://" in address:
        raise ValueError(f"{address!r} is a URL, and not host:port")
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{address!r} is not host:port")
    if int(port) > PORT_MAX:
        raise ValueError(f"{address!r} has a port above {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"{address!r} has an IPv6 address without brackets")
    return host, int(port)


def endpoints_of(text: str) -> tuple[str, ...]:
    """The shards' endpoints, by number, in the text of ATOLL_ENDPOINTS. Raises SpecError."""
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in found:
        _check(each)
    return found


def processes_of(endpoint: str) -> list[str]:
    """The address of each process of a shard."""
    return endpoint.split(OR)


def target(endpoint: str) -> str:
    """An endpoint as gRPC dials it: it tries one address after the other until one answers."""
    addresses = processes_of(endpoint)
    if len(addresses) == 1:
        return endpoint
    return f"ipv{_version(addresses[0])}:{','.join(addresses)}"


def _check(endpoint: str) -> None:
    addresses = processes_of(endpoint)
    if len(addresses) == 1:
        return
    try:
        versions = {_version(each) for each in addresses}
    except ValueError as error:
        problem = f"{endpoint}: {error}"
        remedy = "give IP addresses with ports, or one name that leads to all processes"
        raise SpecError(Env.ENDPOINTS, problem, remedy) from error
    if len(versions) > 1:
        problem = f"{endpoint} has addresses of IPv4 and of IPv6"
        raise SpecError(Env.ENDPOINTS, problem, "give a shard's addresses in one family")


def _version(address: str) -> int:
    """Raises ValueError for a name."""
    return ip_address(split(address)[0]).version
