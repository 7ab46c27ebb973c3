"""What was reported as durable survives a power cut at any moment, and nothing is half there."""

import hashlib
from pathlib import Path

import pytest

from atoll_syncer.model.log import Begun, Entry, RunStarted, ShardFinal, TermBegun
from atoll_syncer.storage.files import FileStore, StoreError, object_name, whole_file
from atoll_syncer.storage.journal import DamagedError, Journal, collect, without_checksum, write
from atoll_syncer.storage.tape import Tape
from unit.syncer.power_cut import PowerCut

STORE, EXPORT, TAPE = Path("a/b/store"), Path("a/export/parts"), Path("a/tapes/0.jsonl")


class Work:
    """What a shard does with its disk; `acknowledged` has what it was told to be durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.position = 0  # of the last entry that was acknowledged
        self.snapshot = 0
        self.files: dict[Path, bytes] = {}

    def do(self) -> None:
        """Exports come first: what a missing fsync does to them is then seen after a few looks."""
        for name in ("one", "two"):
            with whole_file(self.root / EXPORT / name) as file:
                file.write(name.encode())
            self.files[EXPORT / name] = name.encode()
        store = FileStore(self.root / STORE)
        store.open()
        tape = Tape(self.root / TAPE, lambda: 1.0)
        tape.open()
        journal = Journal(store, lambda: 1.0)
        history = journal.read()
        entries: list[Entry] = [TermBegun(epoch=1, pod="p", instance="p"), RunStarted(run="r")]
        entries += [Begun(shard=n) for n in range(6)]
        for number, entry in enumerate(entries):
            data = f"object {number}".encode()
            name = store.put([data], 1)
            self.files[STORE / name] = data
            tape.write("r", {"event": "commit", "slice": number})
            named = ShardFinal(shard=number, file=name, digest="")
            for each in (entry, named):
                journal.append(each)
                history.apply(each)
                self.position = journal.position
            store.replace("heartbeat.json", b"{}")
            if number % 3 == 2:
                tape.sync()
                self.files[TAPE] = (self.root / TAPE).read_bytes()
                taken = journal.snapshot_of(history)
                write(store, taken, 1.0)
                self.snapshot = taken.position
                collect(store)
        tape.close()

    def check(self, root: Path) -> None:
        """A state that a power cut may leave holds what was acknowledged, and only whole things."""
        for path, data in self.files.items():
            assert path != TAPE or (root / path).read_bytes().startswith(data), path
            assert path == TAPE or (root / path).read_bytes() == data, path
        for path in (root / EXPORT).glob("[a-z]*"):
            assert path.read_bytes() == path.name.encode(), "half an export"
        for path in (root / STORE / "objects").glob("[0-9a-f]*"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert object_name(1, digest) == f"objects/{path.name}", "half an object"
        for folder in ("log", "snapshots"):
            for path in (root / STORE / folder).glob("[0-9]*"):
                stub = folder == "log" and int(path.stem) == 1 and self.snapshot  # never read
                assert stub or without_checksum(path.read_bytes())
        if self.position:
            self._check_log(FileStore(root / STORE))

    def _check_log(self, store: FileStore) -> None:
        journal = Journal(store, lambda: 1.0)
        history = journal.read()
        assert journal.lost_entries == 0
        assert journal.position in (self.position, self.position + 1)
        assert journal.snapshot_position >= self.snapshot
        for final in history.finals.values():
            assert store.read(final.file) == f"object {final.shard}".encode()


def run(root: Path, patch: pytest.MonkeyPatch, ignored: str = "") -> PowerCut:
    work = Work(root)
    power = PowerCut(root, work.check, ignored)
    with power.watching(patch):
        work.do()
        power.look()
    return power


def test_what_is_durable_survives_a_power_cut_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 19."""
    assert run(tmp_path, monkeypatch).looks > 100


@pytest.mark.parametrize(
    "ignored",
    [
        ".",  # where the first missing folder of the store is made
        "a",
        "a/b",
        "a/b/store",
        "a/b/store/tmp/*",  # entries, objects and snapshots before they get their name
        "a/b/store/log",
        "a/b/store/objects",
        "a/b/store/snapshots",
        "a/export",
        "a/export/parts",
        "a/export/parts/.*.tmp",
        "a/tapes",
        "a/tapes/0.jsonl",
    ],
)
def test_each_fsync_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    """A proof of the test above: without any of them something is lost, or half there."""
    with pytest.raises((AssertionError, OSError, DamagedError, StoreError)):
        run(tmp_path, monkeypatch, ignored)
