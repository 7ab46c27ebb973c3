"""A second process of a shard waits for its turn (rule 20)."""

import asyncio
import time
from pathlib import Path

import pytest

from atoll_syncer.model.log import Entry, TermBegun
from atoll_syncer.storage.journal import Heartbeat, Journal
from atoll_syncer.storage.store import FileStore
from atoll_syncer.storage.takeover import (
    PATIENCE_SECONDS,
    Action,
    SupersededError,
    Watch,
    wait_for_turn,
)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    one = FileStore(tmp_path)
    one.open()
    return one


def journal(store: FileStore) -> Journal:
    return Journal(store, lambda: 0.0)


def term(store: FileStore, epoch: int, pod: str) -> Journal:
    """The journal of the process that begins it."""
    one = journal(store)
    list(one.read())
    one.append(TermBegun(epoch=epoch, pod=pod, instance=pod))
    return one


def beat(count: int, pod: str = "a") -> Heartbeat:
    return Heartbeat(pod=pod, instance=pod, epoch=1, count=count, learners=())


def wait(store: FileStore, pod: str) -> list[Entry]:
    return asyncio.run(wait_for_turn(journal(store), pod, asyncio.to_thread, time.monotonic))


def test_the_first_process_and_the_same_pod_begin_at_once(store: FileStore) -> None:
    assert wait(store, "a") == []
    term(store, 1, "a")
    assert len(wait(store, "a")) == 1


def test_a_newcomer_waits_while_the_heartbeat_goes_on(store: FileStore) -> None:
    holder = term(store, 1, "a")
    newcomer = Watch(journal(store), "b", now=0.0)
    now = 0.0
    for count in range(20):
        holder.beat(beat(count))
        assert newcomer.look(now).action is Action.WAIT
        now += PATIENCE_SECONDS - 1
    holder_is_silent = now
    assert newcomer.look(holder_is_silent).action is Action.WAIT
    assert newcomer.look(holder_is_silent + PATIENCE_SECONDS).action is Action.TAKE_OVER


def test_a_holder_that_was_followed_is_told_at_its_next_heartbeat(store: FileStore) -> None:
    holder = term(store, 1, "a")
    assert not holder.is_deposed()
    term(store, 2, "b")
    assert holder.is_deposed()


def test_a_pod_that_was_followed_never_reigns_again(store: FileStore) -> None:
    term(store, 1, "a")
    term(store, 2, "b")
    with pytest.raises(SupersededError, match="pod b has followed"):
        wait(store, "a")
