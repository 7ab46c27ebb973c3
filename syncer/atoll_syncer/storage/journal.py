"""One shard's log in the store: read in order, appended conditionally (rules 19, 20).

Entry number s is the file `log/<s>.json`, and it is created only if no file has that name. It holds
all records that waited for it, in their order; they count together, or none does. A process creates
entry s+1 only after it has read or created entry s. These two facts order all processes of a shard:
only one of them creates entry s+1, and that one knew every entry before it. The other finds the
name taken, learns that it is deposed, and can never write again.

Each file is a line of JSON with the xxh3_64 of all that follows it, so damage to any byte is
noticed:

    {"check": "89b2c1d0a4f3e657", "seq": 12, "run": ...}

An entry also names the checksum of the one before it, and must fit into the log (rule 22). `read`
goes on after an entry that is damaged, or gone while a later one is there, and informs the history
(`History.lose`), which knows then which slices to take back from learners. A reader goes on to the
end of the log, so nobody appends at the position of such an entry.

A create may fail without an answer: the store took the entry, and the reply was lost. So `append`
keeps the bytes that it tries. The very same bytes under the name are those of an earlier try, since
they name the process.

A snapshot, `snapshots/<s>.json`, is the history that entries 1 to s add up to. A start reads the
newest one and the entries after it. The owner writes one after every SNAPSHOT_ENTRIES entries, and
at once after a start that found damage, in the thread TIDY, for which no entry waits. The newest
two and all entries after the older one are kept: if the newest is damaged, these give the same
history. In an object store, where entries cost little and a look much, no entry is removed.

Why a removed entry does not break the fence (rule 20): its name is free again, and a process that
was deposed long ago, or a newcomer that slept, may create it. So a create is only half of an
append. The other half lists the snapshots: if one of position s+1 or above is there, the process is
deposed.

    snapshot of position t durable  -->  entries up to an older snapshot removed
                                              |
    entry s+1 created where one was removed --+-->  the list shows a snapshot, s+1 <= t

A create on a position that was never taken finds no such snapshot: only who has read the entry can
write one. (If another process reads it, follows, and writes a snapshot between create and look, the
entry counts and its process is deposed all the same, as after a lost answer.) A reader that listed
the log before may take what a deposed process left below a snapshot for history; the true entry
behind it names another checksum, so the reader begins again with the newest snapshot. Any process
may remove entries at any time: it removes only what two durable snapshots hold.

The heartbeat is one more file, replaced once a second: a sign of life that a newcomer waits for
(storage/takeover). No safety rests on it. It and `is_deposed` may be used beside the thread that
appends.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog
import xxhash

from atoll_protos import documents
from atoll_syncer.model.history import History
from atoll_syncer.model.log import (
    KINDS,
    Committed,
    Entry,
    RunStarted,
    TermBegun,
    from_document,
    to_document,
)
from atoll_syncer.storage.files import LOG, SNAPSHOTS, Store, StoreCorrupt, StoreMissing

_BEFORE = b'{"check": "'
_CHECK_BYTES = 16
_BODY = len(_BEFORE) + _CHECK_BYTES


class DamagedError(Exception):
    """These bytes are not what was written."""


def with_checksum(document: Mapping[str, Any]) -> bytes:
    """One line of JSON with its checksum. A float must be finite."""
    body = b'", ' + json.dumps(document, allow_nan=False).encode()[1:] + b"\n"
    return _BEFORE + xxhash.xxh3_64_hexdigest(body).encode() + body


def checksum_of(data: bytes | bytearray) -> str:
    """Return the checksum that a document carries; not compared with its bytes."""
    return data[len(_BEFORE) : _BODY].decode()


def without_checksum(data: bytes | bytearray) -> dict[str, Any]:
    """Return the document, without its checksum. Raises DamagedError."""
    if not data.startswith(_BEFORE):
        raise DamagedError("it does not begin as it was written")
    found = xxhash.xxh3_64_hexdigest(data[_BODY:]).encode()
    if found != data[len(_BEFORE) : _BODY]:
        raise DamagedError("its checksum is wrong")
    try:
        fields = documents.mapping(data)
    except ValueError as error:
        raise DamagedError(f"it is no JSON document: {error}") from error
    fields.pop("check", None)
    return fields


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
    """Return the name of the log's entry number `position`; the first is 1."""
    return f"{LOG}{position:016d}.json"


def snapshot_name(position: int) -> str:
    return f"{SNAPSHOTS}{position:016d}.json"


def positions(store: Store, folder: str, after: int = 0) -> list[int]:
    """Return the positions of entries or snapshots behind `after`, ascending."""
    listed = store.names(folder, f"{folder}{after:016d}.json")
    names = [name.removeprefix(folder).removesuffix(".json") for name in listed]
    return sorted(int(name) for name in names if name.isdecimal())


def newest_position(store: Store) -> int:
    """Return the position of the newest snapshot; 0 without one."""
    return max(positions(store, SNAPSHOTS), default=0)


def read_newest(store: Store) -> LogSnapshot | None:
    """Return the newest snapshot that is whole. Raises StoreUnavailable."""
    for position in reversed(positions(store, SNAPSHOTS)):
        try:
            taken = read_snapshot(store, snapshot_name(position))
            if taken.position != position:
                raise DamagedError(f"it says seq {taken.position}")
            return taken
        except StoreMissing:
            continue  # removed meanwhile: a newer one is there
        except DamagedError as error:
            log.error("a snapshot is damaged", name=snapshot_name(position), reason=repr(error))
    return None


def read_snapshot(store: Store, name: str) -> LogSnapshot:
    """Return a name's snapshot. Raises StoreMissing, DamagedError and StoreUnavailable."""
    document = without_checksum(store.read(name))
    try:
        return LogSnapshot(
            position=documents.from_document(int, document["seq"]),
            checksum=str(document["checksum"]),
            history=documents.from_document(History, document["history"]),
            takeovers=tuple(map(float, document["takeovers"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(repr(error)) from error


def write(store: Store, taken: LogSnapshot, time: float, name: str = "") -> None:
    """Again is the same. `time`: Unix seconds, for people. Raises StoreFull, StoreUnavailable."""
    document = {
        "seq": taken.position,
        "checksum": taken.checksum,
        "run": taken.history.run,
        "time": time,
        "takeovers": taken.takeovers,
        "history": documents.to_document(taken.history),
    }
    store.create(name or snapshot_name(taken.position), with_checksum(document))


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


HEARTBEAT = "heartbeat.json"
COMMITS_MAX = 4096  # more lines than that no tape holds back (storage/tape)
TAKEOVERS_MAX = 8  # more than make a newcomer as patient as it gets


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life of the process that owns the shard; the next one comes after `period` s.

    `time` is in Unix seconds. The last one of a process that ends in order is `released`.
    """

    pod: str
    instance: str
    epoch: int
    count: int  # grows with each
    period: float
    time: float
    released: bool = False


class DeposedError(Exception):
    """The position of the next entry is taken: another process has the shard (exit 77)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEntry:
    """One file's records and what stands beside them: Unix seconds, run and epoch of their writer.

    `previous` is the checksum of the entry before it as its writer knew it, `checksum` its own.
    """

    records: Sequence[Entry]
    time: float
    run: str
    epoch: int
    previous: str
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCommit:
    """A commit that was read, and when it was made, in Unix seconds."""

    entry: Committed
    time: float


class Journal:
    """Reads and appends one log; `append` goes to the position after the last one known here.

    `clock` gives Unix seconds, for people who read the log and for peace (storage/takeover). For
    one thread at a time, but for `is_deposed` and the heartbeat.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self.clock = clock
        self._run = ""
        self._epoch = 0
        self._owner = ""  # the process of the last term that is known
        self._instance = ""  # likewise; oneself as soon as the record of one's term is tried
        self._trying: tuple[tuple[Entry, ...], bytes, float] | None = None
        self._lost_at = 0  # the first position read whose entry is lost; 0: none
        self.history = History()  # of what was read; afterwards it is the reader's
        self.position = 0  # of the last entry known
        self.checksum = ""  # of the last entry known; empty for none, and where it is lost
        self.snapshot_position = 0  # of the snapshot that reading began with
        self.lost_entries = 0  # damaged or gone, as far as they were read
        self.commits: deque[LoggedCommit] = deque(maxlen=COMMITS_MAX)  # read since the snapshot
        self.time = 0.0  # of the last entry known
        self.takeovers: deque[float] = deque(
            maxlen=TAKEOVERS_MAX
        )  # when a process followed another

    def read(self) -> History:
        """Read on to the log's end; returns `history`.

        A newer snapshot takes its place where that is shorter, or holds what was found damaged.
        Raises StoreUnavailable (call again: it goes on after the last entry read), and StoreCorrupt
        for an entry of a newer version of Atoll.
        """
        newest = newest_position(self._store)
        healed = 0 < self._lost_at <= newest and newest > self.snapshot_position
        if newest > self.position or healed:
            self._begin_with_snapshot()
        listed = positions(self._store, LOG, after=self.position)
        while True:
            position = self.position + 1
            try:
                self._take(self._read(position))
            except DamagedError as error:
                if not self._begin_with_snapshot():
                    self._lose(position, position, str(error))
            except StoreMissing:
                # The list is older than this look: what it shows was created after `position`.
                later = [each for each in listed if each > position]
                if not later:
                    return self.history
                if not self._begin_with_snapshot():  # else it was collected meanwhile
                    self._lose(position, later[0] - 1, "it is gone")

    def _begin_with_snapshot(self) -> bool:
        """Go on from the newest snapshot that is whole; False: that is no better than before."""
        newest = read_newest(self._store)
        if newest is None or newest.position <= max(self.snapshot_position, self._lost_at - 1):
            return False
        if newest.position <= self.position and not self._lost_at:
            return False
        self.history = newest.history
        self.position = self.snapshot_position = newest.position
        self.checksum = newest.checksum
        self._run, self._epoch, self._lost_at = self.history.run, self.history.epoch, 0
        self._owner = self.history.instance
        self.takeovers = deque(newest.takeovers, TAKEOVERS_MAX)
        self.commits.clear()
        return True

    def _take(self, logged: LoggedEntry) -> None:
        """Take the next entry. Raises DamagedError when it cannot follow what was read."""
        if self.checksum and logged.previous != self.checksum:
            raise DamagedError("it does not follow the entry before it")
        history = self.history if len(logged.records) == 1 else self.history.copy()
        for entry in logged.records:
            if self._lost_at == 0:
                objection = history.objection(entry)
                if not objection:
                    history.apply(entry)
            else:
                objection = history.apply_after_loss(entry, logged.run, logged.epoch)
            if objection:
                raise DamagedError(f"it contradicts the log: {objection}")
        self.history = history
        self._note(logged.records, logged.checksum, logged.time)
        self._run, self._epoch = history.run, history.epoch
        commits = [each for each in logged.records if isinstance(each, Committed)]
        self.commits.extend(LoggedCommit(entry=each, time=logged.time) for each in commits)

    def _lose(self, first: int, last: int, reason: str) -> None:
        """Note that the entries of these positions are damaged or gone."""
        count = last - first + 1
        log.error("entries of the log are lost", name=entry_name(first), count=count, reason=reason)
        self.history.lose(count)
        self._lost_at = self._lost_at or first
        self.lost_entries += count
        self.position, self.checksum = last, ""

    def append(self, *records: Entry) -> None:
        """Create the next entry, durably. The beginning of a term or a run is an entry of its own.

        Raises DeposedError when another process was there first; StoreFull and StoreUnavailable:
        call again with the same records, which never get in twice.
        """
        assert len(records) == 1 or not any(map(stands_alone, records)), records
        if self._trying is None or self._trying[0] != records:
            now = self.clock()
            self._trying = records, self._encode(records, now), now
        _, data, time = self._trying
        position = self.position + 1
        name = entry_name(position)
        if isinstance(records[0], TermBegun):
            self._instance = records[0].instance
        if not self._store.create(name, data) and self._read_or_none(name) != data:
            self._trying = None
            raise DeposedError(f"{name} is another process's")
        if not self._store.keeps_entries and newest_position(self._store) >= position:
            self._trying = None
            raise DeposedError(f"{name} was another process's, and is in a snapshot")
        self._trying = None
        self._note(records, checksum_of(data), time)

    def snapshot_of(self, history: History) -> LogSnapshot:
        """Of `history`, which all entries known here add up to; a copy of it."""
        return LogSnapshot(
            position=self.position,
            checksum=self.checksum,
            history=history.copy(),
            takeovers=tuple(self.takeovers),
        )

    def is_deposed(self) -> bool:
        """Whether another process has appended. Meanwhile this one may append."""
        taken = self._read_or_none(entry_name(self.position + 1))
        if taken is not None and _instance_of(taken) != self._instance:
            return True
        if self._store.keeps_entries:
            return False
        newest = newest_position(self._store)  # this process's own are behind `position`
        return newest > self.position

    def beat(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat. Raises StoreFull and StoreUnavailable."""
        self._store.replace(HEARTBEAT, json.dumps(asdict(heartbeat)).encode())

    def last_beat(self) -> Heartbeat | None:
        """Return the newest heartbeat, of whatever process. Raises StoreUnavailable."""
        try:
            document = documents.mapping(self._store.read(HEARTBEAT))
            found: Heartbeat = documents.from_document(Heartbeat, document)
            return found if math.isfinite(found.period) and math.isfinite(found.time) else None
        except (StoreMissing, ValueError, KeyError, TypeError, AttributeError):
            return None  # it is not synced: a power cut may leave it empty

    def _read_or_none(self, name: str) -> bytes | None:
        try:
            return bytes(self._store.read(name))
        except StoreMissing:
            return None  # not there yet, or collected

    def _read(self, position: int) -> LoggedEntry:
        """Return the entry at a position. Raises StoreMissing, DamagedError and StoreCorrupt."""
        name = entry_name(position)
        data = self._store.read(name)
        document = without_checksum(data)
        try:
            kinds = {each["kind"] for each in document["records"]}
            if unknown := kinds - KINDS.keys():
                remedy = "use the version of Atoll that wrote it"
                raise StoreCorrupt(name, f"a record of the unknown kind {min(unknown)}", remedy)
            if document["seq"] != position:
                raise DamagedError(f"it says seq {document['seq']}")
            return LoggedEntry(
                records=[from_document(each) for each in document["records"]],
                time=documents.from_document(float, document["time"]),
                run=documents.from_document(str, document["run"]),
                epoch=documents.from_document(int, document["epoch"]),
                previous=documents.from_document(str, document["previous"]),
                checksum=checksum_of(data),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"not an entry of this log: {error!r}") from error

    def _encode(self, records: Sequence[Entry], now: float) -> bytes:
        """One line of JSON: place in the log, run, epoch, process and time, then the records."""
        first = records[0]
        document: dict[str, Any] = {
            "seq": self.position + 1,
            "previous": self.checksum,
            "run": first.run if isinstance(first, RunStarted) else self._run,
            "epoch": first.epoch if isinstance(first, TermBegun) else self._epoch,
            "instance": first.instance if isinstance(first, TermBegun) else self._instance,
            "time": now,
            "records": [to_document(each) for each in records],
        }
        return with_checksum(document)

    def _note(self, records: Sequence[Entry], checksum: str, time: float) -> None:
        self.position, self.checksum, self.time = self.position + 1, checksum, time
        for entry in records:
            if isinstance(entry, RunStarted):
                self._run = entry.run
            if isinstance(entry, TermBegun):
                if self._owner not in ("", entry.instance):
                    self.takeovers.append(time)
                self._epoch, self._owner = entry.epoch, entry.instance
                self._instance = entry.instance


def _instance_of(entry: bytes) -> str | None:
    """Return the process that wrote it; None for one that is damaged."""
    try:
        return str(without_checksum(entry)["instance"])
    except (DamagedError, KeyError):
        return None


def stands_alone(entry: Entry) -> bool:
    """Whether an entry names what the entries beside it are written with."""
    return isinstance(entry, TermBegun | RunStarted)
