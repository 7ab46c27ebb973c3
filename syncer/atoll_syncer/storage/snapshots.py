"""Snapshots of a shard's log, and the removal of the entries that they make unneeded (rule 19).

Without them a start reads every entry since the job's first minute. A snapshot is the file
`snapshots/<s>.json`: the history (model/history) that entries 1 to s add up to, with a checksum.
A start reads the newest one and the entries after it. Where entries cost little and a look much, in
an object store, no entry is removed, and all that is said here of removal is of files alone.

When. The owner of the shard takes one after every SNAPSHOT_ENTRIES entries, and at once after a
start that found an entry damaged or gone, so that no later start has to look at the damage. It
copies the history at entry s in its event loop, which takes microseconds, and writes the copy in
the thread TIDY. No entry waits for that, and a kill in between leaves the log as it was.

What is kept. The newest two snapshots and all entries after the older one: when the newest
snapshot is damaged, the one before it and the entries after it give the same history. All other
entries are removed.

Why a removed entry does not break the fence (rule 20). The fence is that entry s+1 can be created
once, by a process that has read entry s. When entry s+1 is removed, its name is free again, and a
process that was deposed long ago, or a newcomer that slept, may create it with success. So a
create is only the first half of an append. The second half (`Journal.append`) lists the snapshots:
if one of position s+1 or above is there, the process is deposed, whatever the create said. That
is enough, because of the order of things:

    snapshot of position t durable  -->  entries up to an older snapshot removed
                                              |
    entry s+1 created where one was removed --+-->  the list shows a snapshot, s+1 <= t

An entry is removed only below a durable snapshot. A create that succeeds because of the removal
comes after it, and so does the look at the list. On the other hand, a create on a position that
was never taken finds no snapshot at or above it: only who has read the entry can write one. (If
another process reads it, follows, and writes a snapshot between create and look, the entry counts
and its process is deposed all the same; it exits as after a lost answer.) What a deposed process
left below a snapshot goes with the next removal. A reader that listed the log before may take it
for history; the true entry behind it names another checksum, so the reader begins again with the
newest snapshot.

Any process may remove what is described above at any time, also a deposed one that wakes up late:
it sees two snapshots that are durable, and removes only what both of them hold.
"""

from dataclasses import dataclass

import structlog

from atoll_syncer.model import documents
from atoll_syncer.model.history import History
from atoll_syncer.storage.checksums import DamagedError, with_checksum, without_checksum
from atoll_syncer.storage.store import LOG, SNAPSHOTS, Store, StoreMissing

SNAPSHOT_ENTRIES = 1000
KEPT = 2  # snapshots
COLLECTED_MAX = 5000  # at once

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """What the log's entries up to `position` add up to, and the checksum of the last of them.

    `takeovers` are for peace (storage/takeover): when a process followed another, in Unix seconds.
    """

    position: int
    checksum: str
    history: History
    takeovers: tuple[float, ...] = ()


def entry_name(position: int) -> str:
    """The name of the log's entry number `position`; the first is 1."""
    return f"{LOG}{position:016d}.json"


def snapshot_name(position: int) -> str:
    return f"{SNAPSHOTS}{position:016d}.json"


def positions(store: Store, folder: str, after: int = 0) -> list[int]:
    """The positions of entries or snapshots behind `after`, ascending; no other file counts."""
    listed = store.names(folder, f"{folder}{after:016d}.json")
    names = [name.removeprefix(folder).removesuffix(".json") for name in listed]
    return sorted(int(name) for name in names if name.isdecimal())


def newest_position(store: Store) -> int:
    """The position of the newest snapshot; 0 without one."""
    return max(positions(store, SNAPSHOTS), default=0)


def read_newest(store: Store) -> LogSnapshot | None:
    """The newest snapshot that is whole. Raises StoreUnavailable."""
    for position in reversed(positions(store, SNAPSHOTS)):
        try:
            document = without_checksum(store.read(snapshot_name(position)))
            if document["seq"] != position:
                raise DamagedError(f"it says seq {document['seq']}")
            history = documents.from_document(History, document["history"])
            return LogSnapshot(
                position=position,
                checksum=str(document["checksum"]),
                history=history,
                takeovers=tuple(map(float, document["takeovers"])),
            )
        except StoreMissing:
            continue  # removed meanwhile: a newer one is there
        except (DamagedError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("a snapshot is damaged", name=snapshot_name(position), reason=repr(error))
    return None


def write(store: Store, taken: LogSnapshot, time: float) -> None:
    """Again is the same. `time`: Unix seconds, for people. Raises StoreFull, StoreUnavailable."""
    history = documents.to_document(taken.history)
    document = {
        "seq": taken.position,
        "checksum": taken.checksum,
        "run": taken.history.run,
        "time": time,
        "takeovers": taken.takeovers,
        "history": history,
    }
    store.create(snapshot_name(taken.position), with_checksum(document))


def collect(store: Store, most: int = COLLECTED_MAX) -> int:
    """Remove what the newest two snapshots make unneeded; returns how many entries went.

    At most so many entries, oldest first: call again until none goes. Raises StoreFull and
    StoreUnavailable.
    """
    known = positions(store, SNAPSHOTS)
    if len(known) < KEPT:
        return 0
    listed = [] if store.keeps_entries else positions(store, LOG)
    entries = [each for each in listed if each <= known[-KEPT]]
    for position in entries[:most]:
        store.delete(entry_name(position))
    for position in known[:-KEPT]:
        store.delete(snapshot_name(position))
    return min(len(entries), most)
