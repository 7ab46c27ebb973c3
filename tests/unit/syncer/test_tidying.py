"""What keeps a store small is done beside a shard's work, each thing for itself."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from atoll_syncer.duties import storing
from atoll_syncer.duties.background import Background, start_threads
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.duties.storing import PATIENCE_ENTRIES, Tidying
from atoll_syncer.model.log import Entry, Taken, TermBegun
from atoll_syncer.storage import journal
from atoll_syncer.storage.files import LOG, OBJECTS, SNAPSHOTS, FileStore, StoreFull
from atoll_syncer.storage.journal import Journal, positions
from unit.syncer.log_side import a_commit, a_participant, a_seed


class Tape:
    waiting_lines = 0
    synced = 0

    def sync(self) -> None:
        self.synced += 1


class Side:
    """A process with the shard, without its rules."""

    def __init__(self, store: FileStore, tape: Tape | None = None, every: int = 1000) -> None:
        self.store, self.tape, self.failed = store, tape or Tape(), list[BaseException]()
        self.journal = Journal(store, lambda: 7.0)
        self.history = self.journal.read()
        metrics = ShardMetrics(CollectorRegistry())
        self.background = Background(start_threads(), metrics, self.failed.append, lambda full: 0)
        machine: Any = SimpleNamespace(
            store=store,
            journal=self.journal,
            tape=self.tape,
            metrics=metrics,
            snapshot_entries=every,
        )
        self.tidying = Tidying(machine, self.background)
        self.begin()

    def begin(self) -> None:
        self.append(TermBegun(epoch=self.history.epoch + 1, pod="p", instance="p"))

    def append(self, entry: Entry) -> None:
        self.journal.append(entry)
        self.history.apply(entry)
        self.tidying.appended(entry, self.history)
        self.tidying.snapshot(self.history)

    def seed(self) -> None:
        self.append(a_seed(("d",), (self.object(0),)))

    def object(self, number: int) -> str:
        """An object that the present term writes."""
        return self.store.put([f"object {number}".encode()], self.history.epoch)

    def commit(self, name: str = "", *, cursor: int = 0) -> None:
        """With a `cursor`, of a participant that keeps a data state with it."""
        number = self.history.heads[0].number + 1
        self.append(
            a_commit(
                number,
                epoch=self.history.epoch,
                object=name or self.object(number),
                participants=(a_participant(base=number - 1, cursor=cursor),) if cursor else (),
                data_states={"a-0": self.object(1000 + number)} if cursor else {},
            )
        )

    def take_slots(self, count: int) -> None:
        for _ in range(count):
            before = self.history.taken.get("a-0")
            number = before.incarnation + 1 if before else 1
            name = f"i{number}"
            self.append(Taken(slot="a-0", incarnation=number, uid=name, instance=name))

    def tidy(self, times: int = 1) -> None:
        """Try so often what there is to do."""

        async def tidy() -> None:
            for _ in range(times):
                await self.tidying.once()

        asyncio.run(tidy())


def objects(side: Side) -> set[str]:
    return set(side.store.names(OBJECTS))


def test_objects_go_after_the_commits_that_make_them_unneeded(store: FileStore) -> None:
    side = Side(store)
    side.seed()
    for _ in range(20):
        side.commit()
    assert len(objects(side)) == 21
    side.tidy()
    assert objects(side) == side.history.live_objects()


def test_data_states_go_with_the_cursor_to_which_they_belong(store: FileStore) -> None:
    side = Side(store)
    side.seed()
    side.commit(cursor=2)
    side.tidy()
    (first,) = side.history.data_states.values()
    assert first in objects(side)
    side.commit(cursor=2)  # a commit at the same time had the same one
    side.tidy()
    assert objects(side) == side.history.live_objects()
    side.commit(cursor=3)
    side.tidy()
    assert first not in objects(side)
    assert objects(side) == side.history.live_objects()


def test_a_second_term_of_a_process_keeps_the_object_of_a_merge_under_way(store: FileStore) -> None:
    first = Side(store)
    first.seed()
    first.object(77)  # which no entry names
    side = Side(store)
    side.tidy(times=2)
    assert objects(side) == side.history.live_objects()
    under_way = side.object(1)
    side.begin()  # a learner had seen a higher epoch
    side.tidy(times=2)
    side.commit(under_way)
    side.tidy()
    assert under_way in objects(side)
    side.commit()
    side.commit()
    side.tidy()
    assert objects(side) == side.history.live_objects()


def test_a_snapshot_is_taken_every_so_many_entries_and_old_ones_go(store: FileStore) -> None:
    side = Side(store, every=10)
    for _ in range(35):
        side.take_slots(1)
        side.tidy(times=2)
    assert positions(store, SNAPSHOTS) == [20, 30]
    assert positions(store, LOG) == [*range(21, 37)]
    assert side.tape.synced == 3
    again = Journal(store, lambda: 8.0)
    assert again.read() == side.history
    assert again.snapshot_position == 30


def test_a_very_long_log_goes_some_entries_at_a_time(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "collect", partial(journal.collect, most=10))
    side = Side(store)
    side.take_slots(50)
    side.tidying._machine.snapshot_entries = 5  # type: ignore[misc]
    side.take_slots(1)
    side.tidy()
    side.take_slots(5)
    side.tidy()
    assert len(positions(store, LOG)) == 57
    for left in (47, 37, 27, 17, 7, 5):
        side.tidy()
        assert len(positions(store, LOG)) == left
    side.tidy()
    assert side.tidying._jobs == {}


def test_a_start_that_found_damage_takes_a_snapshot_at_once(store: FileStore) -> None:
    first = Side(store)
    first.seed()
    first.commit()
    store.replace(journal.entry_name(1), b"garbage")
    second = Side(store)
    assert second.journal.lost_entries == 1
    second.tidy()
    assert positions(store, SNAPSHOTS) == [4]
    third = Journal(store, lambda: 8.0)
    assert third.read() == second.history
    assert third.lost_entries == 0
    assert third.history.suspect == {0}, "it may have been lost in the wait for learners"


def test_a_snapshot_waits_for_the_tape_but_not_for_ever(store: FileStore) -> None:
    tape = Tape()
    tape.waiting_lines = 1
    side = Side(store, tape, every=10)
    side.take_slots(20)
    assert "snapshot" not in side.tidying._jobs
    tape.waiting_lines = 0
    side.take_slots(1)
    assert "snapshot" in side.tidying._jobs
    side.tidying._snapshot_position = side.journal.position - PATIENCE_ENTRIES
    tape.waiting_lines, side.tidying._jobs = 1, {}
    side.take_slots(1)
    assert "snapshot" in side.tidying._jobs


def test_a_full_disk_takes_no_snapshot_and_objects_go_all_the_same(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[int]()  # of troubles in the Status, at each try

    def write(*arguments: object) -> None:
        seen.append(len(side.background.troubles))
        if len(seen) < 3:
            raise StoreFull("disk", "the disk is full", "make room there")

    monkeypatch.setattr(storing, "write", write)
    side = Side(store, every=5)
    side.seed()
    for _ in range(9):
        side.commit()
    side.tidy()
    assert objects(side) == side.history.live_objects()
    side.tidy(times=4)
    assert seen == [0, 1, 1]
    assert side.background.troubles == []
