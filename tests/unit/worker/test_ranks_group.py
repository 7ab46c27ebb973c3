"""What the ranks of a learner do together; their data states as one."""

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_worker.errors import LearnerError, ToldToEndError
from atoll_worker.ranks import group as groups
from atoll_worker.ranks.control import HEAD, Control, Word
from atoll_worker.ranks.group import NONE, Group, join_states, share
from atoll_worker.ranks.lifeline import Lifeline, Peers

RESET = "Connection reset by peer"


def no_word(said: bytes | None) -> Word:
    raise AssertionError(said)


@pytest.fixture
def group() -> Group:
    """The head of a learner of two ranks."""
    return Group(
        rank=HEAD,
        size=2,
        values=None,
        words=dist.GroupMember.NON_GROUP_MEMBER,  # type: ignore[arg-type]
        control=Control(begin=no_word, rank=HEAD),
        lifeline=Lifeline(streams={}, peers=Peers(silence_seconds_max=1.0)),
    )


def test_an_error_of_a_collective_is_the_loss_of_another_rank(group: Group) -> None:
    words = f"another rank .* is lost .{RESET}"
    with pytest.raises(LearnerError, match=words) as raised, group.guarded():
        raise RuntimeError(RESET)
    assert raised.value.exit_code == ExitCode.TRY_AGAIN
    assert group.loss(RuntimeError(RESET)) is None  # it may be of the user's own making
    group.lifeline.peers.lost = "rank 1 has ended"
    lost = group.loss(RuntimeError(RESET))
    assert "rank 1 has ended" in str(lost)
    assert not isinstance(lost, ToldToEndError)
    group.lifeline.peers.told = True
    assert isinstance(group.loss(RuntimeError(RESET)), ToldToEndError)
    assert group.loss(ValueError("of the user")) is None


def test_ranks_of_different_things_are_named(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "together", lambda words, make: [make(), 2])
    group.same("lanes", 2)
    with pytest.raises(SpecError, match="rank 1 has lanes 2, rank 0 has 4"):
        group.same("lanes", 4)


def test_an_error_after_another_rank_has_left_early_stays_and_names_it(group: Group) -> None:
    """Another start would end in the same way, so it is none of a loss."""
    group.lifeline.peers.left.append(1)
    error = RuntimeError(RESET)
    with pytest.raises(RuntimeError, match=RESET), group.guarded():
        raise error
    assert group.loss(error) is None
    (note,) = error.__notes__
    assert note.startswith("atoll: rank 1 left the Learner")


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
