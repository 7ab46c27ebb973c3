"""Which ranks own values: one of each host, the head first, each just what its lanes carry."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.division import LANES_MAX, part_edges
from atoll_worker.ranks.owners import host_of, owners_of, share_of


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        ({}, 0),
        ({"GROUP_RANK": "3"}, 3),
        ({"ATOLL_HOST": "2", "GROUP_RANK": "3"}, 2),
        ({"ATOLL_HOST": "", "GROUP_RANK": "1"}, 1),
        ({"ATOLL_HOST": "first"}, 0),
    ],
)
def test_the_pod_or_torchrun_names_the_host(environment: dict[str, str], host: int) -> None:
    assert host_of(environment) == host


@pytest.mark.parametrize(
    ("hosts", "owners"),
    [
        ((0,), (0,)),
        ((0, 0, 0), (0,)),
        ((0, 0, 1, 1), (0, 2)),
        ((0, 1, 0, 1), (0, 1)),
        ((0, 2, 1), (0, 2, 1)),
        ((4, 1, 4, 0), (0, 3, 1)),  # the head is elsewhere than on host 0
    ],
)
def test_head_and_one_of_each_host_own(hosts: tuple[int, ...], owners: tuple[int, ...]) -> None:
    assert owners_of(hosts, 1) == owners


def test_a_session_has_no_more_lanes_than_it_may_have() -> None:
    hosts = range(2 * LANES_MAX)
    assert owners_of(hosts, 1) == tuple(range(LANES_MAX))
    assert owners_of(hosts, 100) == (0, 1)
    assert owners_of(hosts, LANES_MAX) == (0,)


@given(
    st.builds(Form, st.integers(0, 2000), st.integers(0, 5000)),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_an_owner_holds_what_the_lanes_of_its_host_carry(
    form: Form, hosts: int, lanes: int
) -> None:
    """The exchange cuts a slice into as many parts as there are owners, the wire into all lanes."""
    owners = owners_of(range(hosts), lanes)
    edges = part_edges(form, hosts)
    for owner, (start, stop) in enumerate(pairwise(edges)):
        share = share_of(owner, owners, lanes)
        assert share is not None
        assert share.elements(form) == range(start, stop)
        assert share.parts == hosts * lanes
    assert share_of(hosts, owners, lanes) is None
