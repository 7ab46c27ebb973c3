"""How often an address may try a name with a wrong secret.

Counted by address and name: others behind the same NAT go on, and so do other names. Names that
nobody has count together. A right secret is not looked at either while its name is shut for an
address, else guessing would not be slower. An IPv6 host has a whole /64.
"""

import ipaddress
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from atoll_protos.network.addresses import split

WRONG_MAX: Final = 10  # within the time below
WITHIN_SECONDS: Final = 60.0
PAIRS_MAX: Final = 1024  # of addresses and names; the oldest is forgotten
PREFIX_BITS: Final = 64


class TooManyError(Exception):
    """This address has tried this name too often. It may again in a minute."""


@dataclass(slots=True)
class Attempts:
    """Of one port; for several threads. Times are monotonic seconds."""

    _wrong: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, address: str, name: str, now: float) -> None:
        """Raises TooManyError."""
        with self._lock:
            recent = self._wrong.get((network_of(address), name), ())
            if sum(now - at < WITHIN_SECONDS for at in recent) >= WRONG_MAX:
                raise TooManyError

    def failed(self, address: str, name: str, now: float) -> None:
        """`name`: empty for one that nobody has. Raises TooManyError for one too many."""
        self.check(address, name, now)
        with self._lock:
            pair = network_of(address), name
            recent = self._wrong.pop(pair, None) or deque(maxlen=WRONG_MAX)
            recent.append(now)
            self._wrong[pair] = recent  # as the newest
            if len(self._wrong) > PAIRS_MAX:
                del self._wrong[next(iter(self._wrong))]


def network_of(address: str) -> str:
    """Of HOST:PORT: the host, of IPv6 its network."""
    try:
        host = ipaddress.ip_address(split(address)[0])
    except ValueError:
        return address
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    return str(host.ipv4_mapped or ipaddress.ip_network((host, PREFIX_BITS), strict=False))
