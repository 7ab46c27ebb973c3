"""The owner's heartbeat: what it says, and when it ends the process (rule 20)."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.duties.background import Thread
from atoll_syncer.duties.beating import WATCH_SECONDS, Beating, period_of
from atoll_syncer.model.log import Begun, TermBegun
from atoll_syncer.model.roster import Slot
from atoll_syncer.storage.journal import Journal, LoggedCommit
from atoll_syncer.storage.store import MARK, FileStore, StoreFull, StoreUnavailable
from atoll_syncer.storage.takeover import HeartbeatWatch


class Owner:
    """Its journal, and a clock that only its sleeps and its store move on."""

    def __init__(self, store: FileStore, *, standby: bool = False) -> None:
        self.store, self.now, self.requests = store, 0.0, 0.0
        self.journal = Journal(store, lambda: self.now)
        self.journal.append(TermBegun(epoch=1, pod="p", instance="p-1"))
        self.ended: list[tuple[ExitCode, str]] = []
        self.deposed = False
        self.beats: list[Any] = []
        self.trouble: Exception | None = None
        machine: Any = SimpleNamespace(
            journal=self.journal, store=store, standby=standby, clock=lambda: self.now
        )
        self.slots: dict[str, Slot] = {}  # of learners that have joined in this term
        self.history = SimpleNamespace(epoch=1, ended=False)
        state: Any = SimpleNamespace(
            pod="p",
            instance="p-1",
            history=self.history,
            sessions=SimpleNamespace(slots=self.slots),
            sync=SimpleNamespace(lockstep=False),
        )
        background: Any = SimpleNamespace(run=self.run)
        self.bytes_received = 0
        self.duty = Beating(
            state, machine, background, self.end, self.depose, lambda: self.bytes_received
        )

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


def test_in_a_bucket_a_heartbeat_comes_every_second_where_another_process_waits() -> None:
    store: Any = SimpleNamespace(heartbeat_seconds=2.0)
    alone: Any = SimpleNamespace(store=store, standby=False)
    followed: Any = SimpleNamespace(store=store, standby=True)
    assert (period_of(alone), period_of(followed)) == (2.0, 1.0)


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


async def watch_until(owner: Owner) -> None:
    with pytest.raises(asyncio.CancelledError):
        await owner.duty.watch()


async def test_an_owner_that_cannot_reach_its_store_leaves_its_learners_to_who_waits(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When that one may take the shard over: T after the last answer."""
    owner, away = Owner(store, standby=True), list[float]()
    joins(owner)
    owner.slots["a-0"].left = "it is not about learners"

    def happens(count: int) -> None:
        if count in (8, 40):
            owner.duty.reached()  # an entry was appended
        if owner.duty.store_away.is_set():
            away.append(owner.now)
        assert owner.duty.store_away.is_set() is not owner.duty.store_back.is_set()
        until(46)(count)

    sleeps(monkeypatch, owner, happens)
    await watch_until(owner)
    since, again = 2.0 + 2.5, 10.0
    looks = int((again - since) / WATCH_SECONDS)
    assert away == [since + WATCH_SECONDS * n for n in range(1, looks + 1)]
    assert owner.ended == []


@pytest.mark.parametrize(("away", "answers"), [(False, 2), (True, 1)])
async def test_an_owner_whose_store_is_back_first_hears_that_nobody_has_followed(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, away: bool, answers: int
) -> None:
    """A heartbeat that was under way says nothing about that."""
    owner = Owner(store, standby=True)
    if away:
        owner.duty.store_away.set()
    sleeps(monkeypatch, owner, until(1))
    await beat_until(owner)
    assert owner.duty._answers == answers


@pytest.mark.parametrize("terms", [0, 1, 2])
async def test_an_owner_waits_for_its_store_as_long_as_another_process_waits_for_its_heartbeat(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, terms: int
) -> None:
    """As its newest heartbeat says, and the terms of the last minute."""
    owner, seconds = Owner(store, standby=True), 2.0 * 2.5 * 2**terms
    owner.journal.takeovers.extend([0.0] * terms)
    sleeps(monkeypatch, owner, until(4))
    owner.requests = 1.0  # with which a heartbeat comes every two seconds
    await beat_until(owner)
    begun, away = owner.now, list[float]()

    def happens(count: int) -> None:
        if owner.duty.store_away.is_set():
            away.append(owner.now - begun)
        until(200)(count)

    sleeps(monkeypatch, owner, happens)
    await watch_until(owner)
    assert away[0] == seconds + 2 * WATCH_SECONDS  # after a first look, and before the next one
    journal = Journal(store, lambda: 0.0)
    newcomer = HeartbeatWatch(journal, "q", lambda: owner.now, period=1.0, standby=True)
    newcomer.look()
    journal.takeovers.extend([0.0] * terms)
    assert newcomer._patience == seconds


async def test_an_owner_that_did_not_run_itself_asks_its_store_first(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(store, standby=True)

    def happens(count: int) -> None:
        owner.now += 60.0  # it was stopped, or the machine is busy
        until(9)(count)

    sleeps(monkeypatch, owner, happens)
    await watch_until(owner)
    assert not owner.duty.store_away.is_set()


async def test_while_the_store_is_away_no_learner_is_missed(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None can be heard. Afterwards they have as long to come back."""
    owner = Owner(store, standby=True)
    joins(owner)
    back = 100

    def happens(count: int) -> None:
        if count == 4:
            owner.bytes_received += 1
        if count >= back:
            owner.duty.reached()
        until(2 * back)(count)

    sleeps(monkeypatch, owner, happens)
    await owner.duty.watch()
    assert owner.now == back * WATCH_SECONDS + 3.0


# ------------------------------------------------------------ learners (rule 46)


def joins(owner: Owner, name: str = "a-0", *, step_seconds: float = 0.2) -> Slot:
    slot = owner.slots[name] = Slot(name=name)
    slot.open(1, owner.now)
    slot.take(pb.Report(step_seconds=step_seconds), owner.now)
    return slot


async def silent(
    owner: Owner,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[int], None] = lambda _: None,
    *,
    looks: int = 1000,
) -> float:
    """How long it watches, while its store answers; the looks are limited."""

    def look(count: int) -> None:
        owner.duty.reached()
        happens(count)
        until(looks)(count)

    began = owner.now
    sleeps(monkeypatch, owner, look)
    with suppress(asyncio.CancelledError):
        await owner.duty.watch()
    return owner.now - began


@pytest.mark.parametrize(
    ("step_seconds", "lockstep", "seconds"),
    [(0.2, False, 3.0), (1.6, False, 4.0), (60.0, False, 5.0), (0.0, False, 5.0), (0.2, True, 5.0)],
)
async def test_an_owner_that_hears_no_learner_leaves_the_shard_to_who_waits_rule_46(
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    step_seconds: float,
    lockstep: bool,
    seconds: float,
) -> None:
    owner = Owner(store, standby=True)
    owner.duty._state.sync.lockstep = lockstep  # type: ignore[misc]
    joins(owner, step_seconds=step_seconds)
    assert await silent(owner, monkeypatch) == seconds + WATCH_SECONDS
    ((code, reason),) = owner.ended
    assert code is ExitCode.TRY_AGAIN
    assert reason == f"no learner was heard for {seconds:g} s, and another process waits"
    assert owner.duty.unheard


async def test_a_report_of_one_learner_and_bytes_of_a_transfer_are_words_rule_46(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(store, standby=True)
    slots = [joins(owner, f"a-{n}") for n in range(3)]

    def speaks(count: int) -> None:
        if count == 8:
            slots[1].take(pb.Report(step_seconds=0.2), owner.now)
        if count == 16:
            owner.bytes_received += 1

    assert await silent(owner, monkeypatch, speaks) == 16 * WATCH_SECONDS + 3.0
    assert owner.ended


@pytest.mark.parametrize("ended", [False, True])
async def test_nobody_is_missed_who_has_left_or_was_lost_before_or_when_the_job_is_over_rule_46(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    owner = Owner(store, standby=True)
    joins(owner, "lost-0")
    owner.now += 60.0
    last = joins(owner)
    owner.history.ended = ended
    last.left = "" if ended else "the script has ended"
    await silent(owner, monkeypatch)
    assert owner.ended == []


@pytest.mark.parametrize(
    ("commit_at", "seconds"), [(990.0, 60.0), (900.0, 100.0), (1.0, 999.0), (None, None)]
)
async def test_a_term_that_no_learner_joins_lasts_as_long_as_its_shard_had_no_commit_rule_46(
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    commit_at: float | None,
    seconds: float | None,
) -> None:
    """So two processes that are both cut off take ever longer turns."""
    owner = Owner(store, standby=True)
    owner.journal.time = 1000.0
    if commit_at is not None:
        entry: Any = None
        owner.journal.commits.append(LoggedCommit(entry=entry, time=commit_at))
    watched = await silent(owner, monkeypatch, looks=8000)
    assert (watched - WATCH_SECONDS if owner.ended else None) == seconds


async def test_an_owner_alone_goes_on_without_its_store(store: FileStore) -> None:
    owner = Owner(store)
    await owner.duty.watch()
    assert owner.ended == []


@pytest.mark.parametrize("trouble", [None, StoreFull("s", "the disk is full", "make room")])
async def test_a_store_that_answers_is_reached_also_where_it_is_full(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None
) -> None:
    owner = Owner(store, standby=True)
    owner.trouble = trouble
    answers = owner.duty._answers
    sleeps(monkeypatch, owner, until(1))
    await beat_until(owner)
    assert owner.duty._answers > answers


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
