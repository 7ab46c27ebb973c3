"""A newcomer waits until it may take a shard over (rule 20): the decision, and the wait."""

import asyncio
import time
from pathlib import Path

import pytest

from atoll_syncer.model.history import History
from atoll_syncer.model.log import TermBegun
from atoll_syncer.storage.journal import Heartbeat, Journal
from atoll_syncer.storage.store import FileStore
from atoll_syncer.storage.takeover import (
    PATIENCE_SECONDS,
    Action,
    SupersededError,
    View,
    Watch,
    decide,
    wait_for_turn,
)

BEAT = Heartbeat(pod="old", instance="old-1", epoch=3, count=7)
T = 10.0


def view(*pods: str, beat: Heartbeat | None = BEAT) -> View:
    terms = [TermBegun(epoch=n + 1, pod=pod, instance=pod) for n, pod in enumerate(pods)]
    history = History.of(terms)
    return View(
        pod="new", owner=history.pod, followed=history.followed, beat=beat, beat_seen_at=100.0
    )


def action(seen: View, now: float) -> Action:
    return decide(seen, patience_seconds=T, now=now).action


def test_a_first_process_takes_over_at_once() -> None:
    assert action(view(beat=None), 0.0) is Action.TAKE_OVER


def test_a_restarted_pod_takes_over_from_itself_at_once() -> None:
    assert action(view("old", "new"), 100.0) is Action.TAKE_OVER


def test_a_pod_that_was_followed_never_owns_the_shard_again() -> None:
    decision = decide(view("new", "old"), patience_seconds=T, now=1e9)
    assert decision.action is Action.LEAVE
    assert decision.reason == "pod old has followed this pod"


def test_a_newcomer_waits_until_the_heartbeat_has_stood_still() -> None:
    waiting = decide(view("old"), patience_seconds=T, now=109.9)
    assert waiting.action is Action.WAIT
    decision = decide(view("old"), patience_seconds=T, now=110.0)
    assert decision.action is Action.TAKE_OVER
    assert decision.reason == "no heartbeat of pod old for 10 s"


def test_without_any_heartbeat_it_waits_from_its_first_look() -> None:
    assert action(view("old", beat=None), 105.0) is Action.WAIT
    assert action(view("old", beat=None), 110.0) is Action.TAKE_OVER


# ------------------------------------------------------------ the wait


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    one = FileStore(tmp_path)
    one.open()
    return one


def journal(store: FileStore) -> Journal:
    return Journal(store, lambda: 0.0)


def take_over(store: FileStore, epoch: int, pod: str) -> Journal:
    """The journal of the process that begins it."""
    one = journal(store)
    one.read()
    one.append(TermBegun(epoch=epoch, pod=pod, instance=pod))
    return one


def a_beat(count: int, pod: str = "a") -> Heartbeat:
    return Heartbeat(pod=pod, instance=pod, epoch=1, count=count)


def wait(store: FileStore, pod: str) -> History:
    return asyncio.run(wait_for_turn(journal(store), pod, asyncio.to_thread, time.monotonic))


def test_the_first_process_and_the_same_pod_begin_at_once(store: FileStore) -> None:
    assert wait(store, "a").epoch == 0
    take_over(store, 1, "a")
    assert wait(store, "a").epoch == 1


def test_a_newcomer_waits_while_the_heartbeat_goes_on(store: FileStore) -> None:
    holder = take_over(store, 1, "a")
    newcomer = Watch(journal(store), "b", now=0.0)
    now = 0.0
    for count in range(20):
        holder.beat(a_beat(count))
        assert newcomer.look(now).action is Action.WAIT
        now += PATIENCE_SECONDS - 1
    holder_is_silent = now
    assert newcomer.look(holder_is_silent).action is Action.WAIT
    assert newcomer.look(holder_is_silent + PATIENCE_SECONDS).action is Action.TAKE_OVER


def test_a_holder_that_was_followed_is_told_at_its_next_heartbeat(store: FileStore) -> None:
    holder = take_over(store, 1, "a")
    assert not holder.is_deposed()
    take_over(store, 2, "b")
    assert holder.is_deposed()


def test_a_pod_that_was_followed_ends_instead_of_waiting(store: FileStore) -> None:
    take_over(store, 1, "a")
    take_over(store, 2, "b")
    with pytest.raises(SupersededError, match="pod b has followed"):
        wait(store, "a")
