"""Which other rank is lost, from what its stream has brought and when (rule 30)."""

import pytest

from atoll_protos.exits import TERMINATED, ExitCode
from atoll_worker.errors import reason_of
from atoll_worker.ranks.lifeline import (
    BEAT,
    END_SECONDS,
    LEFT,
    LEFT_EARLY,
    TOLD,
    Peers,
    left_words,
    lost_error,
)

ENDED = "rank 2 has ended"


def of_three(*said: tuple[int, bytes]) -> Peers:
    """What ranks 1 and 2 have said, at second 1, 2, ..."""
    peers = Peers(silence_seconds_max=5.0, heard={1: 0.0, 2: 0.0})
    for second, (rank, data) in enumerate(said, 1):
        peers.hear(rank, data, float(second))
    return peers


@pytest.mark.parametrize(
    ("said", "now", "lost", "seconds"),
    [
        ([(1, BEAT), (2, BEAT)] * 9, 22.0, "", END_SECONDS),
        ([(1, BEAT)], 5.0, "", END_SECONDS),
        ([(1, BEAT)], 5.1, "rank 2 has said nothing for 5 s", 0.0),  # no collective with it ends
        ([(2, b"")], 1.0, ENDED, END_SECONDS),
        ([(2, b"")], 100.0, ENDED, END_SECONDS),
        ([(2, b""), (1, b"")], 2.0, ENDED, END_SECONDS),  # the first loss is the cause
        ([(1, BEAT + LEFT), (1, b""), (2, LEFT)], 100.0, "", END_SECONDS),
    ],
)
def test_who_ends_or_is_silent_for_too_long_is_lost_unless_it_has_left_in_order(
    said: list[tuple[int, bytes]], now: float, lost: str, seconds: float
) -> None:
    peers = of_three(*said)
    peers.look(now)
    assert (peers.lost[: len(lost) or None], peers.end_seconds) == (lost, seconds)


def test_who_has_left_early_is_not_lost_but_named() -> None:
    assert left_words(of_three((1, LEFT)).left) == ""
    peers = of_three((1, LEFT), (2, BEAT + LEFT_EARLY), (2, b""))
    assert (peers.lost, peers.heard, peers.left) == ("", {}, [2])
    assert left_words(peers.left).startswith("atoll: rank 2 left the Learner while")
    assert left_words([3, 1, 2]).startswith("atoll: rank 1 and 2 more left the Learner while")


@pytest.mark.parametrize(
    ("said", "lost", "told"),
    [
        ([(1, BEAT + TOLD), (1, b"")], "rank 1 was told to end", True),
        ([(2, b""), (1, TOLD)], ENDED, False),  # because another one has failed
    ],
)
def test_the_learner_of_a_rank_that_was_told_to_end_was_told_and_starts_again(
    said: list[tuple[int, bytes]], lost: str, told: bool
) -> None:
    peers = of_three(*said)
    assert (peers.lost, peers.told) == (lost, told)
    error = lost_error(peers.lost, told=peers.told)
    assert f"{lost}; start all ranks" in str(error)
    assert (error.exit_code, reason_of(error) == TERMINATED) == (ExitCode.TRY_AGAIN, told)
