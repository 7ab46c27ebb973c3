import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll_syncer.storage.files import (
    FileStore,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreUnavailable,
    epoch_of,
    object_name,
    storage_errors,
)


def test_of_two_creates_the_first_wins_and_nothing_half_written_is_left(store: FileStore) -> None:
    assert store.create("log/1.json", b"first 56789")
    assert not store.create("log/1.json", b"second")
    assert store.read("log/1.json") == b"first 56789"
    assert store.names("log/") == ["log/1.json"]
    for content in (b"1", b"2"):
        store.replace("heartbeat.json", content)
        assert bytes(store.read("heartbeat.json")) == content
    assert store.names("tmp/") == []


def test_an_object_is_named_by_the_digest_of_its_joined_parts(store: FileStore) -> None:
    name = store.put([b"one", bytearray(b"two"), memoryview(b"three")], 7)
    assert name == object_name(7, hashlib.sha256(b"onetwothree").hexdigest())
    assert epoch_of(name) == 7
    assert store.read(name) == b"onetwothree"
    assert store.put([b"onetwo", b"three"], 7) == name
    for _ in range(2):  # deleting twice is deleting once
        store.delete(name)
    with pytest.raises(StoreMissing, match="there is no such name"):
        store.read(name)
    assert store.names("tmp/") == []


def test_a_folder_that_is_gone_is_trouble_not_an_empty_log(store: FileStore) -> None:
    (store.root / "log").rmdir()
    with pytest.raises(StoreUnavailable, match="mount the storage again"):
        store.read("log/1.json")
    with pytest.raises(StoreUnavailable, match="log"):
        store.names("log/")
    with pytest.raises(StoreUnavailable, match=r"log/1\.json"):
        store.create("log/1.json", b"")


HOLDER = """
import sys
from pathlib import Path
from atoll_syncer.storage.files import FileStore
store = FileStore(Path(sys.argv[1]))
with store._temporary([b"half a version"]) as path:
    print(path.name, flush=True)
    sys.stdin.readline()
"""


def test_a_temporary_file_goes_with_its_writer_and_not_before(store: FileStore) -> None:
    command = [sys.executable, "-c", HOLDER, str(store.root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        path = store.root / "tmp" / writer.stdout.readline().strip()
        os.utime(path, (1.0, 1.0))  # an fsync may take long
        store.tidy()
        assert path.exists(), "its writer lives"
        writer.kill()
        writer.wait()
        store.tidy()
        assert not path.exists()


@pytest.mark.parametrize("locks", [True, False])
def test_old_temporary_files_go_and_without_locks_only_very_old_ones(
    locks: bool, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh one may not be locked yet."""

    def unsupported(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if not locks:
        monkeypatch.setattr(fcntl, "flock", unsupported)
    for name, age_seconds in (("fresh", 0), ("young", 600), ("old", 7200)):
        (store.root / "tmp" / name).write_bytes(b"")
        at = time.time() - age_seconds
        os.utime(store.root / "tmp" / name, (at, at))
    store.open()
    assert store.names("tmp/") == ["tmp/fresh", *["tmp/young"] * (not locks)]


def test_a_file_system_without_hard_links_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(StoreUnavailable, match="on a file system with hard links") as caught:
        FileStore(tmp_path / "store").open()
    assert caught.value.is_permanent
    assert list(tmp_path.glob("store/*/*")) == []


@pytest.mark.parametrize(
    ("number", "kind", "permanent"),
    [
        (errno.ENOSPC, StoreFull, False),
        (errno.EDQUOT, StoreFull, False),
        (errno.EFBIG, StoreFull, False),  # of a limit, which may be raised (`fillDisk` of a plan)
        (errno.EIO, StoreUnavailable, False),
        (errno.ESTALE, StoreUnavailable, False),
        (errno.EROFS, StoreUnavailable, False),
        (errno.EACCES, StoreUnavailable, True),
    ],
)
def test_trouble_names_the_path_and_a_remedy_and_whether_time_may_heal_it(
    number: int, kind: type[StoreError], permanent: bool
) -> None:
    with pytest.raises(kind) as caught, storage_errors(Path("/data/x")):
        raise OSError(number, os.strerror(number))
    assert caught.value.path == "/data/x"
    assert caught.value.remedy in str(caught.value)
    assert caught.value.is_permanent == permanent


def test_a_full_disk_loses_nothing_and_is_usable_once_there_is_room(small_disk: Path) -> None:
    store = FileStore(small_disk)
    store.open()
    kept = store.put([bytes(700 << 10)], 1)
    with pytest.raises(StoreFull, match="the disk is full"):
        store.put([b"x" * (700 << 10)], 1)
    with pytest.raises(StoreFull):
        store.create("log/1.json", b"x" * (700 << 10))
    assert store.names("log/") == []
    assert store.names("tmp/") == []
    assert len(store.read(kept)) == 700 << 10
    store.delete(kept)
    assert store.create("log/1.json", b"x" * (700 << 10))


RACER = """
import sys
from pathlib import Path
from atoll_syncer.storage.files import FileStore
store = FileStore(Path(sys.argv[1]))
me = sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
print(*(n for n in range(200) if store.create(f"log/{n:016d}.json", me.encode() * 1000)))
"""


def test_of_processes_that_race_for_a_name_exactly_one_wins(store: FileStore) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(store.root), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    won = [racer.communicate()[0].split() for racer in racers]
    assert sorted(int(n) for wins in won for n in wins) == list(range(200))
    for number, wins in enumerate(won):
        for n in wins:
            assert store.read(f"log/{int(n):016d}.json") == str(number).encode() * 1000
