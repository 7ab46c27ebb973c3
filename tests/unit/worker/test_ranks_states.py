"""Data states of several ranks are kept as one, and each rank gets its own back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_worker.ranks.group import NONE, join_states, share

STATES = st.lists(st.none() | st.binary(max_size=4), min_size=2, max_size=6)


def kept_of(given: list[bytes | None]) -> bytes | None:
    """As `gather` numbers them."""
    different = list(dict.fromkeys(each for each in given if each is not None))
    return join_states(
        [NONE if each is None else different.index(each) for each in given], different
    )


@given(STATES)
def test_each_rank_gets_what_it_gave_or_what_the_head_gave(given: list[bytes | None]) -> None:
    kept, size = kept_of(given), len(given)
    alone = all(each in (None, given[0]) for each in given)
    for rank, state in enumerate(given):
        assert share(kept, rank, size) == (given[0] if alone else state, "")


@given(STATES, st.integers(1, 8))
def test_another_number_of_ranks_gets_what_is_common(given: list[bytes | None], size: int) -> None:
    kept = kept_of(given)
    alone = all(each in (None, given[0]) for each in given)
    for rank in range(size):
        state, missing = share(kept, rank, size)
        if alone:
            assert (state, missing) == (given[0], "")
        elif size != len(given):
            assert state is None
            assert f"given by {len(given)} ranks and this learner has {size}" in missing


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_a_state_of_one_process_is_kept_as_it_is(ranks: int) -> None:
    assert join_states([0], [b"place"]) == b"place"
    assert share(b"place", ranks - 1, ranks) == (b"place", "")
    assert share(None, ranks - 1, ranks) == (None, "")


def test_equal_states_are_kept_once() -> None:
    kept = join_states([0, 0, 1, 1], [b"a" * 1000, b"b" * 1000])
    assert kept is not None
    assert len(kept) < 2100
