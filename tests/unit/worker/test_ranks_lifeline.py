"""A rank notices that another one has ended or stands still, whatever it does itself."""

import fcntl
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from atoll_protos.errors import SpecError
from atoll_protos.exits import TERMINATED, ExitCode
from atoll_worker.errors import reason_of
from atoll_worker.ranks import lifeline
from atoll_worker.ranks.group import silence_seconds
from atoll_worker.ranks.lifeline import (
    BEAT,
    END_SECONDS,
    LEFT,
    LEFT_EARLY,
    TOLD,
    Lifeline,
    Peers,
    left_words,
    lost_error,
    open_lifeline,
)

SECONDS_MAX = 60.0
LONG = 1000.0
SELECT_MAX = 1024  # the number of a file

Pair = tuple[Lifeline, socket.socket, threading.Event]


def line_of(stream: socket.socket, ended: threading.Event) -> Lifeline:
    stream.setblocking(False)
    patient = Peers(silence_seconds_max=LONG)
    return Lifeline(streams={1: stream}, peers=patient, end=lambda _: ended.set())


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """The head's side; the other rank is the test."""
    monkeypatch.setattr(lifeline, "END_SECONDS", LONG)
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    line = line_of(ours, ended)
    yield line, theirs, ended
    line.close(in_order=True)
    theirs.close()


@pytest.mark.parametrize(
    ("said", "leaves", "lost"),
    [
        (b"", False, "rank 1 has ended"),
        (b"", True, ""),
        (BEAT + LEFT, False, ""),
        (LEFT_EARLY, False, ""),
    ],
)
def test_a_process_that_has_lost_a_rank_is_ended_unless_that_or_itself_leaves(
    said: bytes, leaves: bool, lost: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "END_SECONDS", 0.0)
    line, other, ended = pair
    other.sendall(said)
    other.close()
    if leaves:
        line.close(in_order=False)
    line._run()
    assert (line.peers.lost, ended.is_set()) == (lost, bool(lost))


def test_a_loss_is_seen_in_a_process_that_has_many_files_open() -> None:
    """Of a training process that may be more than `select` can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, SELECT_MAX + 1))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        theirs.close()
        line = line_of(stream, threading.Event())
        line._watch()
        stream.close()
    assert line.peers.lost == "rank 1 has ended"


def test_a_process_whose_peer_stands_still_with_an_open_stream_is_ended_at_once(pair: Pair) -> None:
    line, other, ended = pair
    line.peers.silence_seconds_max = 0.0
    line.start()
    assert line.words(SECONDS_MAX).startswith("rank 1 has said nothing for 0 s: it is stopped")
    assert other.recv(1) == BEAT
    assert ended.wait(SECONDS_MAX)


def test_a_rank_that_leaves_early_says_so(pair: Pair) -> None:
    line, other, _ = pair
    line.close(in_order=True, early=True)
    assert other.recv(1) == LEFT_EARLY
    line._run()


def test_that_a_rank_waits_for_long_is_said_once(pair: Pair) -> None:
    line, _, _ = pair
    with capture_logs() as said:
        line._look(LONG)
        line.waits_since = 0.0
        line._look(lifeline.HINT_SECONDS)
        assert not said
        line._look(lifeline.HINT_SECONDS + 1.0)
        line._look(LONG)
    assert ["every rank calls step()" in each["event"] for each in said] == [True]
    line.close(in_order=True)
    line._run()


def opened(ranks: int) -> list[Lifeline]:
    """Of all ranks, each in a thread; none ends this process."""
    barrier = threading.Barrier(ranks)
    said: list[list[object]] = [[None] * ranks for _ in range(3)]

    def of_rank(rank: int) -> Lifeline:
        rows = iter(said)

        def share(value: object) -> list[object]:
            row = next(rows)
            row[rank] = value
            barrier.wait(SECONDS_MAX)
            return list(row)

        try:
            line = open_lifeline(rank, share, LONG)
        except OSError:
            barrier.abort()  # the others wait for this one
            raise
        line.end = lambda _: None
        return line

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))


def test_all_ranks_are_connected_to_the_head_and_see_each_other_leave() -> None:
    lines = opened(4)
    assert [sorted(line.streams) for line in lines] == [[1, 2, 3], [0], [0], [0]]
    lines[3].close(in_order=True)
    lines[1].close(in_order=False, told=True)
    assert lines[0].words(SECONDS_MAX) == "rank 1 was told to end"
    assert lines[0].peers.told
    lines[0].close(in_order=False)
    assert lines[2].words(SECONDS_MAX) == "rank 0 has ended"
    assert not lines[2].peers.told
    lines[2].close(in_order=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_ranks_reach_the_head_by_its_name(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's name has an IPv6 address alone where its cluster has no IPv4."""
    hosts = iter(range(2))
    monkeypatch.setattr(lifeline, "_host", lambda: next(hosts))
    monkeypatch.setattr(socket, "gethostname", lambda: address)
    lines = opened(2)
    assert [line.head for line in lines] == [address] * 2
    assert [sorted(line.streams) for line in lines] == [[1], [0]]
    for line in lines:
        line.close(in_order=True)


@pytest.mark.parametrize("given", ["soon", "0", "1", "-5", "inf", "nan"])
def test_a_silence_that_is_no_number_of_seconds_is_refused(given: str) -> None:
    assert silence_seconds({}) == 120.0
    with pytest.raises(SpecError, match=r"ATOLL_RANKS_SILENCE_SECONDS: is .* above 1"):
        silence_seconds({"ATOLL_RANKS_SILENCE_SECONDS": given})


def test_the_head_is_where_torch_reaches_rank_0_whatever_its_name_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "203.0.113.2")
    assert lifeline._address() == "203.0.113.2"


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
