"""Host and port in one word, also where the host is an IPv6 address."""

import pytest

from atoll_protos.addresses import joined, split


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.0.0.1", 7700, "10.0.0.1:7700"),
        ("tiny-syncer-0", 7700, "tiny-syncer-0:7700"),
        ("fd00::1", 7700, "[fd00::1]:7700"),
        ("::1", 0, "[::1]:0"),
        ("", 0, ":0"),
    ],
)
def test_an_address_is_joined_and_split_again(host: str, port: int, address: str) -> None:
    assert joined(host, port) == address
    assert split(address) == (host, port)


@pytest.mark.parametrize("address", ["", "7700", "shard", "shard:", "shard:http", "[::1]", "a:-1"])
def test_what_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split(address)


def test_an_ipv6_address_without_brackets_is_refused() -> None:
    with pytest.raises(ValueError, match="an IPv6 address without brackets"):
        split("fd00::1:7700")
