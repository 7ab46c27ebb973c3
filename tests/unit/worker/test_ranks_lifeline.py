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
from atoll_worker.ranks import lifeline, peers
from atoll_worker.ranks.group import silence_seconds
from atoll_worker.ranks.lifeline import Lifeline, open_lifeline
from atoll_worker.ranks.peers import BEAT, LEFT, LEFT_EARLY

SECONDS_MAX = 60.0
LONG = 1000.0
SELECT_MAX = 1024  # the number of a file


@pytest.fixture
def pair() -> Iterator[tuple[Lifeline, socket.socket, threading.Event]]:
    """The head's side; the other rank is the test."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ended = threading.Event()
    line = Lifeline(streams={1: ours}, silence_seconds_max=LONG, end=ended.set, end_seconds=LONG)
    yield line, theirs, ended
    line.close(in_order=True)
    theirs.close()


def test_a_rank_that_has_ended_is_named(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, other, ended = pair
    line.start()
    assert line.words(0.0) == ""
    other.close()
    assert line.words(SECONDS_MAX) == "rank 1 has ended"
    assert not ended.is_set(), "the training thread has time to see it by itself"


def test_a_loss_is_seen_in_a_process_that_has_many_files_open() -> None:
    """Of a training process that may be more than `select` can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, SELECT_MAX + 1))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stream.setblocking(False)
        theirs.close()
        line = Lifeline(
            streams={1: stream}, silence_seconds_max=LONG, end=lambda: None, end_seconds=0.0
        )
        line._run()
    assert line.lost == "rank 1 has ended"


def test_a_process_whose_training_thread_does_not_end_is_ended(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, other, ended = pair
    line.end_seconds = 0.0
    line.start()
    other.close()
    assert ended.wait(SECONDS_MAX)


def test_a_process_that_leaves_by_itself_is_not_ended(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, other, ended = pair
    other.close()
    line.close(in_order=False)
    line._run()
    assert not ended.is_set()


def test_a_rank_that_says_nothing_is_lost_though_its_stream_is_open(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, other, _ = pair
    line.silence_seconds_max = 0.0
    line.start()
    assert line.words(SECONDS_MAX).startswith("rank 1 has said nothing for 0 s: it is stopped")
    assert other.recv(1) == BEAT


def test_a_rank_that_leaves_early_says_so(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, other, ended = pair
    line.close(in_order=True, early=True)
    assert other.recv(1) == LEFT_EARLY
    line.closing.clear()
    other.send(LEFT_EARLY)
    line._run()
    assert (line.left, line.lost, ended.is_set()) == ([1], "", False)


def test_that_a_rank_waits_for_long_is_said_once(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, _, _ = pair
    with capture_logs() as said:
        line._look(LONG)
        line.waits_since = 0.0
        line._look(lifeline.HINT_SECONDS)
        assert not said
        line._look(lifeline.HINT_SECONDS + 1.0)
        line._look(LONG)
    assert len(said) == 1
    assert "every rank calls step()" in said[0]["event"]
    line.close(in_order=True)
    line._run()


def test_a_process_whose_peer_stands_still_is_ended_at_once(
    pair: tuple[Lifeline, socket.socket, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "END_SECONDS", LONG)
    line, _, ended = pair
    line.silence_seconds_max, line.end_seconds = 0.0, None
    line.start()
    assert ended.wait(SECONDS_MAX)


def test_a_rank_that_has_left_in_order_may_end(
    pair: tuple[Lifeline, socket.socket, threading.Event],
) -> None:
    line, other, ended = pair
    line.end_seconds = 0.0
    other.sendall(BEAT + LEFT)
    other.close()
    line._run()
    assert line.lost == ""
    assert not ended.is_set()


def opened(ranks: int) -> list[Lifeline]:
    """Of all ranks, each in a thread."""
    barrier = threading.Barrier(ranks)
    said: list[list[object]] = [[None] * ranks for _ in range(3)]
    calls = [0] * ranks

    def of_rank(rank: int) -> Lifeline:
        def share(value: object) -> list[object]:
            row = said[calls[rank]]
            calls[rank] += 1
            row[rank] = value
            barrier.wait(SECONDS_MAX)
            return list(row)

        try:
            return open_lifeline(rank, share, LONG)
        except OSError:
            barrier.abort()  # the others wait for this one
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))


def test_all_ranks_are_connected_to_the_head_and_see_each_other_leave() -> None:
    lines = opened(3)
    assert [sorted(line.streams) for line in lines] == [[1, 2], [0], [0]]
    for line in lines:
        line.end = lambda: None
    lines[1].close(in_order=False)
    assert lines[0].words(SECONDS_MAX) == "rank 1 has ended"
    assert not lines[0].told_to_end
    lines[0].close(in_order=False)
    assert lines[2].words(SECONDS_MAX) == "rank 0 has ended"
    lines[2].close(in_order=False)


def test_a_rank_that_is_told_to_end_tells_the_head() -> None:
    lines = opened(2)
    for line in lines:
        line.end = lambda: None
    lines[1].close(in_order=False, told=True)
    assert lines[0].words(SECONDS_MAX) == "rank 1 was told to end"
    assert lines[0].told_to_end
    lines[0].close(in_order=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_ranks_of_several_hosts_reach_the_head_at_the_address_of_its_name(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's name has an IPv6 address alone where its cluster has no IPv4."""
    hosts = iter(range(2))
    monkeypatch.setattr(lifeline, "_host", lambda: next(hosts))
    monkeypatch.setattr(socket, "gethostname", lambda: address)
    lines = opened(2)
    assert [line.head for line in lines] == [address] * 2
    assert [sorted(line.streams) for line in lines] == [[1], [0]]
    for line in lines:
        line.end = lambda: None
        line.close(in_order=True)


@pytest.mark.parametrize("given", ["soon", "0", "1", "-5", "inf", "nan"])
def test_a_silence_that_is_no_number_of_seconds_is_refused(given: str) -> None:
    assert silence_seconds({}) == 120.0
    with pytest.raises(SpecError, match=r"ATOLL_RANKS_SILENCE_SECONDS: is .* above 1"):
        silence_seconds({"ATOLL_RANKS_SILENCE_SECONDS": given})
