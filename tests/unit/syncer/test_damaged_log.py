"""Damage to entries of a log is noticed, never believed, and known as a loss (rules 19 and 22)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from atoll_syncer.model.history import History
from atoll_syncer.model.log import (
    Committed,
    Entry,
    Merged,
    Participant,
    RunStarted,
    Seeded,
    Taken,
    TermBegun,
    to_document,
)
from atoll_syncer.storage.files import LOG, FileStore, StoreCorrupt
from atoll_syncer.storage.journal import (
    DeposedError,
    Journal,
    checksum_of,
    entry_name,
    with_checksum,
    without_checksum,
)


def commit(fragment: int, number: int, *, capture: int = 0, recovered: bool = False) -> Committed:
    part = Participant(
        slot="a-0",
        incarnation=1,
        capture=capture or number,
        base=number - 1,
        steps=1,
        tokens=1,
        cursor=10 * number,
        weight=1.0,
    )
    kept = Merged(slot="a-0", incarnation=1, base=number - 1, capture=number, cursor=10 * number)
    return Committed(
        slice=fragment,
        number=number,
        epoch=1,
        digest=f"{fragment}.{number}",
        object=f"o{fragment}.{number}",
        base=number - 1,
        tick=number,
        due=number,
        reason="all complete",
        last=False,
        recovered=recovered,
        participants=() if recovered else (part,),
        lineage=(kept,) if recovered else (),
    )


ENTRIES: list[Entry] = [
    TermBegun(epoch=1, pod="p", instance="p-1"),
    RunStarted(run="r", run_hash="h"),
    Taken(slot="a-0", incarnation=1, uid="u", instance="u-1"),
    Seeded(
        tensors=({"name": "w", "shape": [2], "dtype": "float32", "merge": "mean"},),
        layout_digest="d",
        epoch=1,
        digests=("0.0", "1.0"),
        objects=("o0.0", "o1.0"),
    ),
    commit(0, 1),
    commit(1, 1),
    commit(0, 2),
    commit(0, 3),
    TermBegun(epoch=2, pod="q", instance="q-1"),
    commit(1, 2),
]
WHOLE = History.of(ENTRIES)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    store.open()
    writer = Journal(store, lambda: 7.0)
    for entry in ENTRIES:
        writer.append(entry)
    return store


def read(store: FileStore) -> Journal:
    journal = Journal(store, lambda: 8.0)
    journal.read()
    return journal


def flipped(data: bytes | bytearray) -> bytes:
    """One bit in the middle."""
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    return bytes(damaged)


def written(store: FileStore, entry: Entry, position: int, **fields: object) -> bytes:
    """An entry as a process would write it at this position."""
    before = entry_name(position - 1)
    previous = checksum_of(store.read(before)) if before in store.names(LOG) else ""
    envelope = {"seq": position, "previous": previous, "run": "r", "epoch": 1, "time": 7.0}
    record = to_document(entry)
    record |= {name: each for name, each in fields.items() if name in record}
    return with_checksum({**envelope, "records": [record], **fields})


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped": flipped,
    "truncated": lambda data: data[:-9],
    "empty": lambda data: b"",
    "garbage": lambda data: b"\0\xff" * 50,
    "of another position": lambda data: with_checksum({**without_checksum(data), "seq": 99}),
    "deleted": lambda data: None,
}


# Nothing shows that a deleted last entry was there, but for the learners that hold its version.
CASES = [
    (position, damage)
    for position in range(1, len(ENTRIES) + 1)
    for damage in DAMAGES
    if (position, damage) != (len(ENTRIES), "deleted")
]


@pytest.mark.parametrize(("position", "damage"), CASES)
def test_a_damaged_entry_is_a_loss_and_neither_believed_nor_a_crash(
    store: FileStore, position: int, damage: str
) -> None:
    name = entry_name(position)
    damaged = DAMAGES[damage](bytes(store.read(name)))
    store.delete(name)
    if damaged is not None:
        store.create(name, damaged)
    journal = read(store)
    history, lost = journal.history, ENTRIES[position - 1]
    assert journal.lost_entries >= 1
    assert journal.position == len(ENTRIES)
    assert history.incomplete
    assert history.run == "r"
    assert history.suspect == set(history.heads)
    if isinstance(lost, Seeded):
        assert not history.heads  # without a layout nothing can be restored: all comes back
        return
    assert history.epoch + history.lost_entries >= WHOLE.epoch
    for fragment, head in history.heads.items():
        newest = WHOLE.heads[fragment]
        is_lost = isinstance(lost, Committed) and (lost.slice, lost.number) == (
            fragment,
            newest.number,
        )
        assert head.number == newest.number - is_lost
        assert head.digest == f"{fragment}.{head.number}"


def test_a_version_whose_predecessor_is_lost_is_torn_until_a_learner_gives_it_back(
    store: FileStore,
) -> None:
    store.delete(entry_name(7))  # version 2 of slice 0; version 3 is there
    journal = read(store)
    assert journal.history.torn == {0}
    assert journal.history.suspect == {0, 1}
    journal.append(TermBegun(epoch=3, pod="r", instance="r-1"))
    journal.append(commit(0, 4, recovered=True))
    again = read(store).history
    assert again.torn == set()


def test_versions_that_the_process_adds_itself_are_not_suspect() -> None:
    history = History.of(ENTRIES)
    history.lose(1)
    history.torn.add(0)
    history.apply(commit(0, 4))
    assert history.suspect == {1}
    assert history.torn == set()


def test_the_next_entry_goes_behind_the_log_and_nobody_fills_a_hole(store: FileStore) -> None:
    store.delete(entry_name(5))
    one, two = read(store), read(store)
    one.append(TermBegun(epoch=4, pod="r", instance="r-1"))
    with pytest.raises(DeposedError):
        two.append(TermBegun(epoch=4, pod="s", instance="s-1"))
    assert read(store).history.pod == "r"


def test_each_lost_entry_may_have_been_the_record_of_a_term(store: FileStore) -> None:
    for position in (9, 10):
        store.replace(entry_name(position), b"garbage")
    history = read(store).history
    assert history.epoch == 1
    assert history.epoch + history.lost_entries >= WHOLE.epoch


def test_a_number_that_cannot_follow_is_damage_whatever_the_checksum(store: FileStore) -> None:
    store.replace(entry_name(7), written(store, ENTRIES[6], 7, number=7))
    store.replace(entry_name(9), written(store, ENTRIES[8], 9, epoch=1))
    history = read(store).history
    assert history.heads[0].number == 3
    assert history.torn == {0}
    assert history.lost_entries == 2
    assert history.epoch == 2, "the entry behind names its writer's"


def test_an_entry_that_was_exchanged_is_a_loss(store: FileStore) -> None:
    """It fits there and has a right checksum, but is not the one that the next entry names."""
    store.replace(entry_name(7), written(store, ENTRIES[6], 7, digest="another"))
    journal = read(store)
    assert journal.lost_entries == 1
    assert journal.history.suspect == {0, 1}
    journal.append(TermBegun(epoch=3, pod="r", instance="r-1"))
    assert read(store).lost_entries == 1


def test_an_entry_of_a_newer_version_is_not_taken_for_damage(store: FileStore) -> None:
    writer = read(store)
    position = writer.position + 1
    later = written(store, ENTRIES[0], position, kind="Later")
    store.create(entry_name(position), later)
    with pytest.raises(StoreCorrupt, match="use the version of Atoll that wrote it"):
        read(store)
