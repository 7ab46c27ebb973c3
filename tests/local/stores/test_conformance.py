"""Every store gives what the log and the objects rest on (rule 19)."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll_syncer.model.log import Taken, TermBegun
from atoll_syncer.storage.files import FileStore, object_name
from atoll_syncer.storage.journal import DeposedError, Journal
from local.stores.conftest import SERVERS
from local.stores.opened import AnyStore, object_store
from local.stores.servers import Server

RACES = 100
CREATORS = 16
LARGE_BYTES = 96 << 20  # more than one part
PIECE_BYTES = 5 << 20  # no divisor of a part


@pytest.fixture(params=["files", *SERVERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStore:
    """Each kind of store, open and empty."""
    found: AnyStore
    if request.param == "files":
        found = FileStore(tmp_path / "store")
    else:
        server = request.getfixturevalue(request.param)
        assert isinstance(server, Server)
        found = object_store(server.place())
    found.open()
    return found


def test_of_many_creators_of_a_name_one_wins_and_its_bytes_are_there(store: AnyStore) -> None:
    barrier = threading.Barrier(CREATORS)

    def one(race: int, creator: int) -> bool:
        barrier.wait()
        return store.create(f"log/{race:03d}.json", f"{creator:04d}".encode() * 64)

    with ThreadPoolExecutor(CREATORS) as threads:
        for race in range(RACES):
            won = [*threads.map(lambda creator, race=race: one(race, creator), range(CREATORS))]
            assert won.count(True) == 1, (race, won)
            found = store.read(f"log/{race:03d}.json")
            assert found == f"{won.index(True):04d}".encode() * 64, race


def test_a_large_object_goes_up_and_down_in_parts(store: AnyStore) -> None:
    seed = hashlib.sha256(b"a large object").digest()
    data = memoryview(seed * (LARGE_BYTES // len(seed)))
    digest = hashlib.sha256(data).hexdigest()
    parts = [data[at : at + PIECE_BYTES] for at in range(0, LARGE_BYTES, PIECE_BYTES)]
    for _ in range(2):  # the second time it is there
        assert store.put(parts, 3) == object_name(3, digest)
    assert hashlib.sha256(store.read(object_name(3, digest))).hexdigest() == digest
    assert store.names("objects/") == [object_name(3, digest)]


def test_names_are_sorted_and_complete_right_after_each_create(store: AnyStore) -> None:
    assert store.names("log/") == []
    made = [f"log/{number * 7 % 20:04d}.json" for number in range(20)]
    for count, name in enumerate(made, start=1):
        assert store.create(name, b"x")
        store.create(f"snapshots/{count}.json", b"x")
        assert store.names("log/") == sorted(made[:count])
    assert store.names("log/", after="log/0014.json") == sorted(made)[15:]
    assert store.names("log/", after="log/9999.json") == []
    store.delete("log/0003.json")
    assert store.names("log/") == [name for name in sorted(made) if name != "log/0003.json"]


def test_more_names_come_than_one_answer_holds(store: AnyStore) -> None:
    """S3 lists 1,000 at a time, Azure 5,000: a log has more."""
    made = [f"log/{number:016d}.json" for number in range(1100)]
    with ThreadPoolExecutor(CREATORS) as threads:
        assert all(threads.map(lambda name: store.create(name, b"x"), made))
    assert store.names("log/") == made
    assert store.names("log/", after=made[49]) == made[50:]


def test_a_journal_whose_position_is_taken_is_deposed(store: AnyStore) -> None:
    old, new = (Journal(store, lambda: 1.0) for _ in range(2))
    old.append(TermBegun(epoch=1, pod="a", instance="a-1"))
    old.append(Taken(slot="s-0", incarnation=1, uid="u", instance="i"))
    assert new.read().epoch == 1
    new.append(TermBegun(epoch=2, pod="b", instance="b-1"))
    assert old.is_deposed()
    with pytest.raises(DeposedError):
        old.append(Taken(slot="s-0", incarnation=2, uid="u", instance="i"))
    reader = Journal(store, lambda: 1.0)
    assert reader.read().epoch == 2
    assert (reader.position, reader.lost_entries) == (3, 0)
