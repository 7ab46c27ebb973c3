import errno
import json
import os
from itertools import count
from pathlib import Path

import pytest

from atoll_syncer.model.history import History
from atoll_syncer.model.log import (
    Begun,
    Closed,
    Ended,
    Entry,
    Owned,
    RunStarted,
    ShardFinal,
    Taken,
    TermBegun,
    from_document,
)
from atoll_syncer.storage.files import FileStore, StoreFull, StoreUnavailable
from atoll_syncer.storage.journal import DeposedError, Heartbeat, Journal
from unit.syncer.log_side import a_commit, a_participant, a_seed

ENTRIES: list[Entry] = [
    TermBegun(epoch=1, pod="p", instance="p-1"),
    RunStarted(run="r1"),
    Taken(slot="a-0", incarnation=1, uid="u", instance="u-1"),
    Owned(slot="a-0", uid="u", generation=1),
    Begun(shard=0),
    a_seed(("x",), ("o0",)),
    a_commit(1, participants=(a_participant("a-0", 3, cursor=7, weight=27.0),)),
    Ended(tick=9),
    ShardFinal(shard=0, file="f", digest="z"),
    Closed(result="Complete", reason=""),
]


class BrokenStore(FileStore):
    """A store whose next create fails after the name has been made."""

    broken = False

    def create(self, name: str, data: bytes) -> bool:
        made = super().create(name, data)
        if self.broken:
            self.broken = False
            raise StoreUnavailable(name, os.strerror(errno.EIO), "check the disk")
        return made


@pytest.fixture
def store(tmp_path: Path) -> BrokenStore:  # its create may lose the answer
    store = BrokenStore(tmp_path)
    store.open()
    return store


def entries(store: FileStore) -> list[Entry]:
    """What the files of the log say, in order."""
    documents = [json.loads(store.read(name)) for name in store.names("log/")]
    return [from_document(record) for each in documents for record in each["records"]]


def journal(store: FileStore) -> Journal:
    return Journal(store, map(float, count(101)).__next__)


def test_what_was_appended_is_read_back_in_order(store: BrokenStore) -> None:
    writer = journal(store)
    for entry in ENTRIES:
        writer.append(entry)
    assert entries(store) == ENTRIES
    reader = journal(store)
    assert reader.read() == History.of(entries(store))
    assert reader.position == writer.position == len(ENTRIES)
    assert reader.read() == History.of(entries(store))


def test_every_entry_says_its_position_run_epoch_and_time(store: BrokenStore) -> None:
    writer = journal(store)
    for entry in ENTRIES[:3]:
        writer.append(entry)
    documents = [json.loads(store.read(name)) for name in store.names("log/")]
    names = ("seq", "run", "epoch", "instance", "time")
    fields = [[*(d[name] for name in names), d["records"][0]["kind"]] for d in documents]
    assert fields == [
        [1, "", 1, "p-1", 101.0, "TermBegun"],
        [2, "r1", 1, "p-1", 102.0, "RunStarted"],
        [3, "r1", 1, "p-1", 103.0, "Taken"],
    ]


def test_records_of_one_entry_count_together_or_not_at_all(store: BrokenStore) -> None:
    writer = journal(store)
    for entry in ENTRIES[:2]:
        writer.append(entry)
    writer.append(*ENTRIES[2:6])
    assert writer.position == 3
    reader = journal(store)
    assert reader.read() == History.of(ENTRIES[:6])
    assert reader.position == 3
    untrue = a_commit(3, participants=(a_participant("a-0", 3, cursor=7, weight=27.0),))
    writer.append(ENTRIES[6], untrue)  # version 3 cannot follow version 1
    assert journal(store).read().heads == History.of(ENTRIES[:6]).heads


def test_where_entries_are_kept_an_append_is_one_create(store: BrokenStore) -> None:
    class Kept(FileStore):
        keeps_entries = True  # type: ignore[misc]  # as an object store does

        def names(self, prefix: str, after: str = "") -> list[str]:
            raise AssertionError(prefix)

    writer = journal(Kept(store.root))
    for entry in ENTRIES:
        writer.append(entry)
    assert not writer.is_deposed()
    assert journal(store).read() == History.of(ENTRIES)


def test_a_process_that_finds_its_position_taken_is_deposed(store: BrokenStore) -> None:
    """Rule 20: an old term's entry cannot be created after the new term's record."""
    old, new = journal(store), journal(store)
    old.append(ENTRIES[0])
    assert new.read() == History.of(ENTRIES[:1])
    assert not old.is_deposed()
    new.append(TermBegun(epoch=2, pod="q", instance="q-1"))
    assert old.is_deposed()
    for _ in range(2):
        with pytest.raises(DeposedError, match=r"log/0000000000000002\.json"):
            old.append(ENTRIES[1])
    assert not new.is_deposed()
    assert len(store.names("log/")) == 2


def test_an_entry_before_the_new_terms_record_counts(store: BrokenStore) -> None:
    """Rule 20: either it precedes the record, and counts, or it cannot be created."""
    old, new = journal(store), journal(store)
    old.append(ENTRIES[0])
    new.read()
    old.append(ENTRIES[1])
    with pytest.raises(DeposedError):
        new.append(TermBegun(epoch=2, pod="q", instance="q-1"))
    assert new.read() == History.of(ENTRIES[:2])
    new.append(TermBegun(epoch=2, pod="q", instance="q-1"))


def test_trying_again_after_trouble_appends_once(store: BrokenStore) -> None:
    writer = journal(store)
    store.broken = True
    with pytest.raises(StoreUnavailable):
        writer.append(ENTRIES[0])
    assert not writer.is_deposed()
    writer.append(ENTRIES[0])
    writer.append(ENTRIES[1])
    assert entries(store) == ENTRIES[:2]


def test_another_processs_equal_entry_is_not_ours(store: BrokenStore) -> None:
    one, two = journal(store), Journal(store, lambda: 5.0)
    one.append(ENTRIES[1])
    with pytest.raises(DeposedError):
        two.append(ENTRIES[1])


def test_a_full_disk_delays_an_entry(small_disk: Path) -> None:
    store = FileStore(small_disk)
    store.open()
    writer = journal(store)
    writer.append(ENTRIES[0])
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)) == 1 << 20:
            pass
    for _ in range(3):
        with pytest.raises(StoreFull, match=str(small_disk)):
            writer.append(ENTRIES[1])
    assert not writer.is_deposed()
    filler.unlink()
    writer.append(ENTRIES[1])
    assert entries(store) == ENTRIES[:2]


def test_the_newest_heartbeat_is_seen_by_others(store: BrokenStore) -> None:
    assert journal(store).last_beat() is None
    first = Heartbeat(pod="p", instance="p-1", epoch=1, count=1, period=2.0, time=7.0)
    journal(store).beat(first)
    assert journal(store).last_beat() == first
    said = store.read("heartbeat.json").replace(b"2.0", b'"soon"')
    store.replace("heartbeat.json", bytes(said))
    assert journal(store).last_beat() is None
    store.replace("heartbeat.json", b"")
    assert journal(store).last_beat() is None
