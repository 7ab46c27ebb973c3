"""Slots, and the errors that name a field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from atoll_protos.names import REGION_PATTERN, slot_name, split_slot


@given(st.from_regex(REGION_PATTERN, fullmatch=True), st.integers(0, 10**6))
def test_a_slot_splits_into_what_it_was_made_of(region: str, ordinal: int) -> None:
    assert split_slot(slot_name(region, ordinal)) == (region, ordinal)


@pytest.mark.parametrize(
    "slot", ["", "us-east", "us-east-", "-0", "us-01", "US-0", "us_0", "us-0\n"]
)
def test_what_is_no_slot_gets_an_error_with_the_remedy(slot: str) -> None:
    with pytest.raises(SpecError, match=r"^slot: .* is no slot; name it REGION-ORDINAL"):
        split_slot(slot)


def test_a_spec_error_reads_as_field_problem_remedy() -> None:
    error = SpecError("sync.quorum", "is 9", "use at most 3")
    assert str(error) == "sync.quorum: is 9; use at most 3"
    assert (error.field, error.problem, error.remedy) == ("sync.quorum", "is 9", "use at most 3")
