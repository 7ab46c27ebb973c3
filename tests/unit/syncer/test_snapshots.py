"""Snapshots of a log: a start does not depend on its length, and the fence still holds."""

import json

import pytest

from atoll_syncer.model.history import History
from atoll_syncer.model.log import Begun, Entry, RunStarted, Taken, TermBegun
from atoll_syncer.storage.files import LOG, SNAPSHOTS, FileStore
from atoll_syncer.storage.journal import (
    DeposedError,
    Journal,
    collect,
    entry_name,
    positions,
    snapshot_name,
    write,
)


class Owner:
    """A process with the shard: its journal, and the history that its entries add up to."""

    def __init__(self, store: FileStore, name: str) -> None:
        self.store, self.journal = store, Journal(store, lambda: 7.0)
        self.history = self.journal.read()
        self.append(TermBegun(epoch=self.history.epoch + 1, pod=name, instance=name))

    def append(self, entry: Entry) -> None:
        self.journal.append(entry)
        self.history.apply(entry)

    def take_slots(self, count: int) -> None:
        """So many more entries."""
        for _ in range(count):
            taken = self.history.taken.get("a-0")
            incarnation = taken.incarnation + 1 if taken else 1
            name = f"i{incarnation}"
            self.append(Taken(slot="a-0", incarnation=incarnation, uid=name, instance=name))

    def snapshot(self) -> None:
        write(self.store, self.journal.snapshot_of(self.history), 7.0)


def read(store: FileStore) -> tuple[History, int]:
    """What the next process finds, and the position after which it would append."""
    journal = Journal(store, lambda: 8.0)
    return journal.read(), journal.position


def test_a_start_reads_the_newest_snapshot_and_the_entries_after_it(store: FileStore) -> None:
    owner = Owner(store, "p")
    owner.append(RunStarted(run="r"))
    owner.take_slots(8)
    owner.snapshot()
    owner.take_slots(3)
    for position in range(1, 11):  # not looked at
        (store.root / entry_name(position)).unlink()
    assert read(store) == (owner.history, 13)
    Owner(store, "q")
    document = json.loads(store.read(entry_name(14)))
    assert (document["run"], document["epoch"], document["seq"]) == ("r", 2, 14)


def test_entries_that_two_snapshots_hold_are_removed(store: FileStore) -> None:
    owner = Owner(store, "p")
    for known, left in (([5], 5), ([5, 9], 4), ([9, 13], 4)):  # one lets no entry go
        owner.take_slots(4)
        owner.snapshot()
        collect(store)
        assert positions(store, SNAPSHOTS) == known
        assert positions(store, LOG) == [*range(known[-1] + 1 - left, known[-1] + 1)]
    assert read(store) == (owner.history, 13)
    assert collect(store) == 0


def test_an_entry_behind_a_snapshot_follows_the_last_one_in_it(store: FileStore) -> None:
    """Rule 19: else files of two stores that somebody mixed would be one history."""
    owner, another = Owner(store, "p"), FileStore(store.root.with_name("another"))
    another.open()
    other = Owner(another, "another")
    for each in (owner, other):
        each.take_slots(3)
        each.snapshot()
        each.take_slots(1)
    store.replace(entry_name(5), bytes(another.read(entry_name(5))))
    history, position = read(store)
    assert (history.incomplete, position) == (True, 5)
    assert history.taken["a-0"].incarnation == 3


@pytest.mark.parametrize("damage", [b"", b"garbage", b'{"seq": 9}\n'])
def test_a_damaged_snapshot_costs_nothing(store: FileStore, damage: bytes) -> None:
    owner = Owner(store, "p")
    for _ in range(2):
        owner.take_slots(4)
        owner.snapshot()
    collect(store)
    owner.take_slots(1)
    store.replace(snapshot_name(9), damage)
    assert read(store) == (owner.history, 10)
    store.replace(snapshot_name(5), damage)  # now the entries up to 5 are lost
    history, position = read(store)
    assert position == 10
    assert history.incomplete
    assert history.taken["a-0"] == owner.history.taken["a-0"]


def test_a_deposed_process_does_not_append_where_an_entry_was_removed(store: FileStore) -> None:
    """Rule 20, at every position that the sleeper may have had."""
    for asleep in range(4):
        old = Owner(store, f"old{asleep}")
        old.take_slots(asleep)
        new = Owner(store, f"new{asleep}")
        for _ in range(2):
            new.take_slots(5)
            new.snapshot()
        collect(store)
        gone = old.journal.position + 1
        assert gone not in positions(store, LOG)
        assert old.journal.is_deposed()
        with pytest.raises(DeposedError, match="is in a snapshot"):
            old.append(Begun(shard=0))
        assert old.journal.is_deposed()
        assert read(store) == (new.history, new.journal.position)
        new.take_slots(1)
        collect(store)
        assert gone not in positions(store, LOG)


def test_a_newcomer_that_slept_does_not_begin_a_term_where_an_entry_was_removed(
    store: FileStore,
) -> None:
    owner = Owner(store, "p")
    newcomer = Journal(store, lambda: 9.0)
    assert newcomer.read().epoch == 1
    for _ in range(2):
        owner.take_slots(5)
        owner.snapshot()
    collect(store)
    with pytest.raises(DeposedError):
        newcomer.append(TermBegun(epoch=2, pod="q", instance="q"))
    assert newcomer.read() == owner.history
    newcomer.append(TermBegun(epoch=2, pod="q", instance="q"))
    with pytest.raises(DeposedError):
        owner.take_slots(1)


def test_an_answer_that_was_lost_before_a_removal_is_no_success(store: FileStore) -> None:
    """The next try finds neither its own entry nor another one."""
    old = Owner(store, "p")
    tried = Journal(store, lambda: 9.0)
    tried.read()
    Owner(store, "q")
    new = Owner(store, "q")
    for _ in range(2):
        new.take_slots(2)
        new.snapshot()

    class Collecting(FileStore):
        def create(self, name: str, data: bytes) -> bool:
            made = super().create(name, data)
            collect(store)  # between the create and the look at what is there
            return made

    for journal in (old.journal, tried):
        journal._store = Collecting(store.root)
        with pytest.raises(DeposedError):
            journal.append(Begun(shard=0))
    assert read(store) == (new.history, new.journal.position)


def test_where_entries_are_kept_only_older_snapshots_go(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileStore, "keeps_entries", True)
    owner = Owner(store, "p")
    for _ in range(3):
        owner.take_slots(3)
        owner.snapshot()
    before = positions(store, LOG)
    assert collect(store) == 0
    assert positions(store, LOG) == before
    assert len(positions(store, SNAPSHOTS)) == 2


def test_a_reader_goes_on_while_entries_are_removed(store: FileStore) -> None:
    owner = Owner(store, "p")

    class Removing(FileStore):
        armed = True

        def names(self, prefix: str, after: str = "") -> list[str]:
            found = super().names(prefix, after)
            if prefix == LOG and self.armed:
                self.armed = False
                for _ in range(2):
                    owner.take_slots(3)
                    owner.snapshot()
                collect(store)
            return found

    owner.take_slots(5)
    reader = Journal(Removing(store.root), lambda: 9.0)
    assert reader.read() == owner.history
    assert reader.lost_entries == 0


def test_a_reader_that_slept_does_not_take_a_sleepers_entry_for_history(
    store: FileStore,
) -> None:
    """Rule 19: it would miss a term, and begin one with an epoch that was given before."""
    owner = Owner(store, "p")
    sleeper = Journal(store, lambda: 9.0)
    sleeper.read()
    position = sleeper.position + 1

    class Sleeping(FileStore):
        slept = False

        def read(self, name: str) -> bytearray:
            if name == entry_name(position) and not self.slept:
                self.slept = True
                owner.append(TermBegun(epoch=2, pod="q", instance="q"))
                for _ in range(2):
                    owner.take_slots(2)
                    owner.snapshot()
                collect(store, position)  # up to the entry at hand, and it is not done
                with pytest.raises(DeposedError, match="is in a snapshot"):
                    sleeper.append(Taken(slot="b-0", incarnation=1, uid="u", instance="i"))
            return super().read(name)

    reader = Journal(Sleeping(store.root), lambda: 9.0)
    assert reader.read() == owner.history
    assert "b-0" not in reader.history.taken
    assert reader.lost_entries == 0
    reader.append(TermBegun(epoch=3, pod="r", instance="r"))


def test_a_snapshot_of_a_deposed_process_changes_nothing(store: FileStore) -> None:
    old = Owner(store, "p")
    old.take_slots(3)
    late = old.journal.snapshot_of(old.history)
    new = Owner(store, "q")
    for _ in range(2):
        new.take_slots(3)
        new.snapshot()
        collect(store)
    write(store, late, 9.0)
    collect(store)
    assert read(store) == (new.history, new.journal.position)
    assert late.position not in positions(store, SNAPSHOTS)
