"""How often an address may be wrong about a name."""

import pytest

from atoll_operator.machines.server import attempts
from atoll_operator.machines.server.attempts import (
    WITHIN_SECONDS,
    WRONG_MAX,
    Attempts,
    TooManyError,
    network_of,
)


def shut(address: str, name: str, *, now: float = 0.0) -> Attempts:
    found = Attempts()
    for _ in range(WRONG_MAX):
        found.failed(address, name, now)
    return found


def test_after_so_many_the_name_is_shut_for_this_address_for_a_while() -> None:
    found = shut("192.0.2.1:4000", "abc", now=100.0)
    for port in (4000, 5000):
        with pytest.raises(TooManyError):
            found.check(f"192.0.2.1:{port}", "abc", 100.0 + WITHIN_SECONDS - 1)
    found.check("192.0.2.1:4000", "abc", 100.0 + WITHIN_SECONDS)
    found.check("192.0.2.1:4000", "other", 100.0)
    found.check("192.0.2.2:4000", "abc", 100.0)


def test_a_host_of_ipv6_has_its_network() -> None:
    found = shut("[2001:db8:0:1::5]:4000", "abc")
    with pytest.raises(TooManyError):
        found.check("[2001:db8:0:1:ffff::6]:9", "abc", 1.0)
    found.check("[2001:db8:0:2::5]:4000", "abc", 1.0)
    assert network_of("[::ffff:192.0.2.1]:7") == network_of("192.0.2.1:8") == "192.0.2.1"
    assert network_of("unix:/tmp/x") == "unix:/tmp/x"


def test_it_remembers_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "PAIRS_MAX", 3)
    found = Attempts()
    for number in range(5):
        found.failed(f"192.0.2.{number}:1", "abc", float(number))
    assert [address for address, _ in found._wrong] == ["192.0.2.2", "192.0.2.3", "192.0.2.4"]
