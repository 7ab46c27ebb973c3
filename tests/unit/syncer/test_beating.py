"""The owner's heartbeat: what it says, and when it ends the process (rule 20)."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from atoll_protos.exits import ExitCode
from atoll_syncer.duties.background import Thread
from atoll_syncer.duties.storing import Beating
from atoll_syncer.model.log import Begun, TermBegun
from atoll_syncer.storage.files import MARK, FileStore, StoreUnavailable
from atoll_syncer.storage.journal import Journal


class Owner:
    """Its journal, and a clock that only its sleeps and its store move on."""

    def __init__(self, store: FileStore) -> None:
        self.store, self.now, self.requests = store, 0.0, 0.0
        self.journal = Journal(store, lambda: self.now)
        self.journal.append(TermBegun(epoch=1, pod="p", instance="p-1"))
        self.ended: list[tuple[ExitCode, str]] = []
        self.deposed = False
        self.beats: list[Any] = []
        self.trouble: Exception | None = None
        machine: Any = SimpleNamespace(journal=self.journal, store=store, clock=lambda: self.now)
        history = SimpleNamespace(epoch=1)
        state: Any = SimpleNamespace(pod="p", instance="p-1", history=history)
        background: Any = SimpleNamespace(run=self.run)
        self.duty = Beating(state, machine, background, self.end, self.depose)

    def end(self, code: ExitCode, reason: str) -> None:
        self.ended.append((code, reason))

    def depose(self) -> None:
        self.deposed = True

    async def run(self, thread: Thread, work: Callable[[], bool]) -> bool:
        assert thread is Thread.BEAT
        self.now += self.requests
        if self.trouble is not None:
            raise self.trouble
        done = work()
        self.beats.append(self.journal.last_beat())
        return done


def sleeps(monkeypatch: pytest.MonkeyPatch, owner: Owner, happens: Callable[[int], None]) -> None:
    """Each sleep passes at once; `happens` hears how many there were, and may cancel."""
    count = 0

    async def sleep(seconds: float) -> None:
        nonlocal count
        owner.now += seconds
        count += 1
        happens(count)

    monkeypatch.setattr("asyncio.sleep", sleep)


def until(last: int) -> Callable[[int], None]:
    def happens(count: int) -> None:
        if count == last:
            raise asyncio.CancelledError

    return happens


async def beat_until(owner: Owner) -> None:
    with pytest.raises(asyncio.CancelledError):
        await owner.duty.work()


async def test_a_heartbeat_names_the_time_to_the_next_one_also_on_a_slow_store(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(store)

    def happens(count: int) -> None:
        owner.requests = 6.0 if count == 2 else 0.0
        until(5)(count)

    sleeps(monkeypatch, owner, happens)
    await beat_until(owner)
    assert [each.period for each in owner.beats] == [1.0, 1.0, 1.0, 7.0, 1.0]
    assert [each.count for each in owner.beats] == [1, 2, 3, 4, 5]


async def test_an_owner_that_was_followed_is_told_at_its_next_heartbeat_and_beats_no_more(
    store: FileStore,
) -> None:
    owner = Owner(store)
    other = Journal(store, lambda: 1.0)
    other.read()
    other.append(TermBegun(epoch=2, pod="q", instance="q-1"))
    await owner.duty.work()
    assert owner.deposed
    await owner.duty.goodbye()
    assert owner.beats == [None, None]


async def test_the_last_heartbeat_says_that_the_process_ends_and_no_other_follows(
    store: FileStore,
) -> None:
    owner = Owner(store)
    await owner.duty.goodbye()
    await owner.duty.work()
    assert [each.released for each in owner.beats] == [True]


async def test_a_goodbye_to_a_store_that_is_away_ends_nothing(store: FileStore) -> None:
    owner = Owner(store)
    owner.trouble = StoreUnavailable("s", "away", "try again")
    await owner.duty.goodbye()
    assert owner.beats == []


async def test_a_shard_whose_store_was_emptied_ends_and_is_started_again_rule_22(
    store: FileStore,
) -> None:
    """It would go on with what nobody can read when it is gone, perhaps when no learner lives."""
    owner = Owner(store)
    shutil.rmtree(store.root / "log")
    (store.root / MARK).unlink()
    (store.root / "log").mkdir()
    await owner.duty.work()
    ((code, reason),) = owner.ended
    assert code is ExitCode.TRY_AGAIN
    assert "atoll.json is not there" in reason
    follower = FileStore(store.root)
    follower.open()
    assert Journal(follower, lambda: 2.0).read().epoch == 0


async def test_a_shard_that_slept_while_its_store_was_emptied_and_begun_anew_ends_rule_22(
    store: FileStore,
) -> None:
    """Its place in the log is beyond the new one's, where nobody would be in its way."""
    owner = Owner(store)
    shutil.rmtree(store.root)
    FileStore(store.root).open()
    await owner.duty.work()
    ((code, reason),) = owner.ended
    assert code is ExitCode.TRY_AGAIN
    assert "atoll.json is that of a store which was emptied and begun anew" in reason


def test_a_process_that_appends_meanwhile_is_not_deposed_by_its_own_entry(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat's thread looks while the log's thread has made the name, and no more."""
    owner, looked = Owner(store), list[bool]()
    create = FileStore.create

    def create_and_look(self: FileStore, name: str, data: bytes) -> bool:
        made = create(self, name, data)
        other = threading.Thread(target=lambda: looked.append(owner.journal.is_deposed()))
        other.start()
        other.join()
        return made

    monkeypatch.setattr(FileStore, "create", create_and_look)
    owner.journal.append(Begun(shard=0))
    assert looked == [False]
