"""Addresses as text: host and port in one word, with an IPv6 address in brackets.

Shards of `atoll run` listen on Unix sockets: their addresses are unix:PATH.
"""

from typing import Final

UNIX: Final = "unix:"
PORT_MAX: Final = 65_535


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Raise ValueError, also for an IPv6 address without brackets: its end may be no port."""
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
    """Return the shards' endpoints, by number, in the text of ATOLL_ENDPOINTS."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
