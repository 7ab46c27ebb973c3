"""Which other rank is lost, from what its stream has brought and when (rule 30)."""

from atoll_protos.exits import TERMINATED, ExitCode
from atoll_worker.errors import reason_of
from atoll_worker.ranks.peers import (
    BEAT,
    END_SECONDS,
    LEFT,
    LEFT_EARLY,
    TOLD,
    Peers,
    left_words,
    lost_error,
)


def of_three() -> Peers:
    return Peers(silence_seconds_max=5.0, heard={1: 0.0, 2: 0.0})


def test_who_says_something_in_time_is_there() -> None:
    peers = of_three()
    for second in range(1, 40, 4):
        for rank in (1, 2):
            peers.hear(rank, BEAT, second)
        peers.look(second + 4.0)
    assert peers.lost == ""


def test_a_stream_that_ends_is_a_rank_that_has_ended() -> None:
    peers = of_three()
    peers.hear(2, b"", 1.0)
    assert peers.lost == "rank 2 has ended"
    assert peers.end_seconds == END_SECONDS


def test_who_is_silent_for_too_long_is_lost_though_others_speak() -> None:
    peers = of_three()
    peers.hear(1, BEAT, 4.0)
    peers.look(5.0)
    assert peers.lost == ""
    peers.look(5.1)
    assert peers.lost.startswith("rank 2 has said nothing for 5 s")
    assert peers.end_seconds == 0.0, "no collective with it ends"


def test_a_rank_that_is_silent_after_another_one_has_ended_changes_nothing() -> None:
    peers = of_three()
    peers.hear(2, b"", 1.0)
    peers.look(100.0)
    assert (peers.lost, peers.end_seconds) == ("rank 2 has ended", END_SECONDS)


def test_who_has_left_in_order_is_not_lost_by_its_end_nor_by_its_silence() -> None:
    peers = of_three()
    peers.hear(1, BEAT + LEFT, 1.0)
    peers.hear(1, b"", 1.0)
    peers.hear(2, LEFT, 1.0)
    peers.look(100.0)
    assert (peers.lost, peers.heard) == ("", {})


def test_who_has_left_early_is_not_lost_but_named() -> None:
    peers = of_three()
    peers.hear(1, LEFT, 1.0)
    assert left_words(peers.left) == ""
    peers.hear(2, BEAT + LEFT_EARLY, 1.0)
    peers.hear(2, b"", 1.0)
    assert (peers.lost, peers.heard, peers.left) == ("", {}, [2])
    assert left_words(peers.left).startswith("atoll: rank 2 left the Learner while")
    assert left_words([3, 1, 2]).startswith("atoll: rank 1 and 2 more left the Learner while")


def test_a_rank_that_was_told_to_end_is_lost_and_nothing_is_wrong_with_its_learner() -> None:
    peers = of_three()
    peers.hear(1, BEAT + TOLD, 1.0)
    peers.hear(1, b"", 1.0)
    assert (peers.lost, peers.told) == ("rank 1 was told to end", True)
    error = lost_error(peers.lost, told=peers.told)
    assert (reason_of(error), error.exit_code) == (TERMINATED, ExitCode.TRY_AGAIN)


def test_a_rank_that_is_told_to_end_because_another_one_has_failed_hides_nothing() -> None:
    peers = of_three()
    peers.hear(2, b"", 1.0)
    peers.hear(1, TOLD, 1.1)
    assert (peers.lost, peers.told) == ("rank 2 has ended", False)
    assert reason_of(lost_error(peers.lost, told=peers.told)) != TERMINATED


def test_the_first_loss_is_the_one_that_is_named() -> None:
    """The others end because of it."""
    peers = of_three()
    peers.hear(2, b"", 1.0)
    peers.hear(1, b"", 1.1)
    assert peers.lost == "rank 2 has ended"


def test_who_has_lost_another_one_is_to_be_started_again() -> None:
    error = lost_error("rank 2 has ended")
    assert error.exit_code == ExitCode.TRY_AGAIN
    assert "rank 2 has ended; start all ranks" in str(error)
