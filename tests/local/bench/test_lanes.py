"""Over a slow line each host and each connection of a learner carries its share, and no more."""

import pytest

from bench.lanes import measure

MORE_MAX = 1.02  # heads, checksums, flow control; pages
MEGABYTES = 2.0


@pytest.mark.parametrize(("hosts", "lanes"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.long)])
def test_bytes_of_a_connection_and_memory_of_a_host_are_their_shares(
    hosts: int, lanes: int
) -> None:
    seconds, share, memory = measure(hosts, lanes, MEGABYTES, rounds=1)
    assert len(seconds) == 1
    assert 1.0 <= share < MORE_MAX
    assert memory < MORE_MAX
