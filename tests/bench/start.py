"""What a long log costs a shard's start: with snapshots and without, as a ratio.

In tests/: python -m bench.start [--entries COUNT]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from atoll_syncer.model.history import History
from atoll_syncer.model.log import (
    Committed,
    Entry,
    Participant,
    RunStarted,
    Seeded,
    TermBegun,
    to_document,
)
from atoll_syncer.storage import snapshots
from atoll_syncer.storage.checksums import checksum_of, with_checksum
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.snapshots import SNAPSHOT_ENTRIES, LogSnapshot, entry_name
from atoll_syncer.storage.store import FileStore
from bench.table import show

SLICES, SLOTS = 24, 8  # one slice is due at every tick


def main() -> None:
    """Write a log, and start on it in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--read", type=Path, help="only read the log in this folder")
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder))
        store.open()
        kept = write(store, given.entries)
        long = measured(Path(folder))
        for taken in kept:
            snapshots.write(store, taken, 0.0)
        begun = time.perf_counter()
        removed = snapshots.collect(store, given.entries)
        collect_seconds = time.perf_counter() - begun
        short = measured(Path(folder))
    rows = [
        ("without", long["seconds"], long["mebibytes"]),
        ("with", short["seconds"], short["mebibytes"]),
        ("ratio", long["seconds"] / short["seconds"], long["mebibytes"] / short["mebibytes"]),
    ]
    title = (
        f"A start on a log of {given.entries} entries; "
        f"{removed} of them were removed in {collect_seconds:.1f} s"
    )
    show(title, ("snapshots", "seconds", "RSS in MiB"), rows)


def write(store: FileStore, count: int) -> list[LogSnapshot]:
    """A log of so many entries, unsynced; returns its newest two snapshots, not yet written."""
    history, kept, previous = History(), list[LogSnapshot](), ""
    first: list[Entry] = [
        TermBegun(epoch=1, pod="p", instance="p-1"),
        RunStarted(run="r", run_hash="h"),
        Seeded(
            tensors=({"name": "w", "shape": [2], "dtype": "float32", "merge": "mean"},),
            layout_digest="d",
            epoch=1,
            digests=("0" * 64,) * SLICES,
            objects=("objects/" + "0" * 64,) * SLICES,
        ),
    ]
    for position in range(1, count + 1):
        entry = first[position - 1] if position <= len(first) else commit(position)
        envelope = {"seq": position, "previous": previous, "run": "r", "epoch": 1, "time": 0.0}
        path = store.root / entry_name(position)
        data = with_checksum({**envelope, "records": [to_document(entry)]})
        path.write_bytes(data)
        previous = checksum_of(data)
        history.apply(entry)
        if position % SNAPSHOT_ENTRIES == 0:
            kept = [
                *kept[-1:],
                LogSnapshot(position=position, checksum=previous, history=history.copy()),
            ]
    return kept


def commit(position: int) -> Committed:
    """One of a job whose every learner takes part."""
    number, fragment = divmod(position - 4, SLICES)
    parts = tuple(
        Participant(
            slot=f"us-east-{n}",
            incarnation=1,
            capture=24 * number,
            base=number,
            steps=24,
            tokens=200_000,
            cursor=24 * number,
            weight=1e9,
        )
        for n in range(SLOTS)
    )
    return Committed(
        slice=fragment,
        number=number + 1,
        epoch=1,
        digest=f"{position:064x}",
        object=f"objects/{position:064x}.safetensors",
        base=number,
        tick=position,
        due=position,
        reason="all called are complete",
        last=False,
        recovered=False,
        participants=parts,
    )


def measured(folder: Path) -> dict[str, float]:
    """Seconds and peak memory of a process that reads the log."""
    command = [sys.executable, "-m", "bench.start", "--read", str(folder)]
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


def read(folder: Path) -> None:
    """Print what reading took."""
    begun = time.perf_counter()
    history = Journal(FileStore(folder), time.time).read()
    seconds = time.perf_counter() - begun
    assert history.commits
    mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"seconds": seconds, "mebibytes": mebibytes}))


if __name__ == "__main__":
    main()
