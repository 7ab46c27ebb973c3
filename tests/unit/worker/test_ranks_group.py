"""What errors of collectives become, by what is known of the other ranks."""

import pytest
import torch.distributed as dist

from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_worker.errors import LearnerError, ToldToEndError
from atoll_worker.ranks import group as groups
from atoll_worker.ranks.control import HEAD, Control, Word
from atoll_worker.ranks.group import Group
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
