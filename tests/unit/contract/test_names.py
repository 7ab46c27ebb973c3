"""Slots, addresses, and the texts of states that people have always seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import SHARD_TEXTS, SLOT_TEXTS, UNKNOWN, shard_text, slot_text
from atoll_protos.names import REGION_PATTERN, slot_name, split_slot
from atoll_protos.network.addresses import endpoints_of, joined, split


@given(st.from_regex(REGION_PATTERN, fullmatch=True), st.integers(0, 10**6))
def test_a_slot_splits_into_what_it_was_made_of(region: str, ordinal: int) -> None:
    assert split_slot(slot_name(region, ordinal)) == (region, ordinal)


@pytest.mark.parametrize(
    "slot", ["", "us-east", "us-east-", "-0", "us-01", "US-0", "us_0", "us-0\n"]
)
def test_what_is_no_slot_gets_an_error_with_the_remedy(slot: str) -> None:
    with pytest.raises(SpecError, match=r"^slot: .* is no slot; name it REGION-ORDINAL"):
        split_slot(slot)


def test_the_texts_of_states_are_those_that_people_know() -> None:
    shards = ["Starting", "Seeding", "Recovering", "Serving", "Final", "Complete", "Failed"]
    assert list(SHARD_TEXTS.values()) == shards
    slots = ["Joining", "Recovering", "Training", "Stalled", "Lost", "Left"]
    assert list(SLOT_TEXTS.values()) == slots
    assert (shard_text(pb.SHARD_SERVING), slot_text(pb.SLOT_LOST)) == ("Serving", "Lost")
    for unknown in (0, 99):  # an absent one, and one of a newer version
        assert shard_text(unknown) == slot_text(unknown) == UNKNOWN


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.0.0.1", 7700, "10.0.0.1:7700"),
        ("tiny-syncer-0", 7700, "tiny-syncer-0:7700"),
        ("fd00::1", 7700, "[fd00::1]:7700"),
        ("", 0, ":0"),
    ],
)
def test_an_address_is_joined_and_split_again(host: str, port: int, address: str) -> None:
    assert joined(host, port) == address
    assert split(address) == (host, port)


@pytest.mark.parametrize(
    "address", ["", "7700", "shard", "shard:", "shard:http", "[::1]", "a:-1", "fd00::1:7700"]
)
def test_what_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not host:port|an IPv6 address without brackets"):
        split(address)


def test_endpoints_are_listed_by_shard() -> None:
    found = endpoints_of(" 10.0.0.1:1, shard-1.team.svc:7700,")
    assert found == ("10.0.0.1:1", "shard-1.team.svc:7700")
    assert endpoints_of("") == ()
