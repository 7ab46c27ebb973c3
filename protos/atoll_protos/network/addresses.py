"""Addresses as text: host and port in one word, with an IPv6 address in brackets."""


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Raises ValueError, also for an IPv6 address without brackets: its end may be no port."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{address!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"{address!r} has an IPv6 address without brackets")
    return host, int(port)
