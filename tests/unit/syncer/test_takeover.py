"""A newcomer waits until it may take a shard over (rule 20): the decision, and the wait."""

import asyncio
import time

import pytest

from atoll_syncer.model.history import History
from atoll_syncer.model.log import TermBegun
from atoll_syncer.storage.journal import Heartbeat, Journal
from atoll_syncer.storage.store import FileStore
from atoll_syncer.storage.takeover import (
    PATIENCE_SECONDS,
    Action,
    HeartbeatWatch,
    SupersededError,
    takeover,
    wait_for_turn,
)


@pytest.mark.parametrize(
    ("pods", "silent_seconds", "action", "reason"),
    [
        ((), 0.0, Action.TAKE_OVER, "no process has had it yet"),
        (("old", "new"), 0.0, Action.TAKE_OVER, "this pod had it last"),
        (("new", "old"), 1e9, Action.LEAVE, "pod old has followed this pod"),
        (("old",), PATIENCE_SECONDS - 0.1, Action.WAIT, "pod old has the shard"),
        (("old",), PATIENCE_SECONDS, Action.TAKE_OVER, "no heartbeat of pod old for 5 s"),
    ],
)
def test_a_pod_takes_over_when_it_had_the_shard_last_or_the_owner_is_silent_rule_20(
    pods: tuple[str, ...], silent_seconds: float, action: Action, reason: str
) -> None:
    terms = [TermBegun(epoch=n + 1, pod=pod, instance=pod) for n, pod in enumerate(pods)]
    decided = takeover("new", History.of(terms), silent_seconds=silent_seconds)
    assert decided == (action, reason)


# ------------------------------------------------------------ the wait


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
    newcomer = HeartbeatWatch(journal(store), "b", now=0.0)
    now = 0.0
    for count in range(20):
        holder.beat(a_beat(count))
        assert newcomer.look(now)[0] is Action.WAIT
        now += PATIENCE_SECONDS - 1
    holder_is_silent = now
    assert newcomer.look(holder_is_silent)[0] is Action.WAIT
    assert newcomer.look(holder_is_silent + PATIENCE_SECONDS)[0] is Action.TAKE_OVER


def test_a_pod_that_was_followed_ends_instead_of_waiting(store: FileStore) -> None:
    holder = take_over(store, 1, "a")
    assert not holder.is_deposed()
    take_over(store, 2, "b")
    assert holder.is_deposed()  # told at its next heartbeat
    with pytest.raises(SupersededError, match="pod b has followed"):
        wait(store, "a")
