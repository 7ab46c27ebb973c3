"""One shard's log in the store: read in order, appended conditionally (rules 19, 20).

Entry number s is the file `log/<s>.json`, and it is created only if no file has that name. A
process creates entry s+1 only after it has read or created entry s. These two facts order all
processes of a shard: whatever each of them believes, only one of them creates entry s+1, and that
one knew every entry before it. The other finds the name taken, learns that it is deposed, and can
never write again.

A create may fail without an answer: the store took the entry, and the reply was lost. So `append`
keeps the bytes of the entry that it tries. If the name is taken by the very same bytes, an earlier
try got through; the bytes hold the time, so another process cannot have written the same ones.

The heartbeat is one more file, replaced once a second. It is only a sign of life that a newcomer
waits for (storage/takeover); nothing is safe or unsafe because of it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from atoll_syncer.model.log import Entry, RunStarted, TermBegun, from_document, to_document
from atoll_syncer.storage.store import LOG, Store, StoreCorrupt, StoreMissing

HEARTBEAT = "heartbeat.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life of the process that owns the shard: `count` grows with each.

    `learners` are the instances whose sessions it has.
    """

    pod: str
    instance: str
    epoch: int
    count: int
    learners: tuple[str, ...]


class DeposedError(Exception):
    """The position of the next entry is taken: another process has the shard (exit 77)."""


def entry_name(position: int) -> str:
    """The name of the log's entry number `position`; the first is 1."""
    return f"{LOG}{position:016d}.json"


class Journal:
    """Reads and appends one log; `append` goes to the position after the last one known here.

    `clock` gives Unix seconds, for people who read the log. For one thread at a time.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._run = ""
        self._epoch = 0
        self._trying: tuple[Entry, bytes] | None = None
        self.position = 0  # of the last entry known

    def read(self) -> Iterator[Entry]:
        """The entries after `position`, up to the log's end; fold them as they come.

        Raises StoreUnavailable (call again: it goes on after the last one given) and
        StoreCorrupt.
        """
        while True:
            try:
                entry = self._read(self.position + 1)
            except StoreMissing:
                return
            self._note(entry)
            yield entry

    def append(self, entry: Entry) -> None:
        """Create the next entry, durably.

        Raises DeposedError when another process was there first; StoreFull and StoreUnavailable:
        call again with the same entry, which never gets in twice.
        """
        if self._trying is None or self._trying[0] != entry:
            self._trying = entry, self._encode(entry)
        data = self._trying[1]
        name = entry_name(self.position + 1)
        if not self._store.create(name, data) and self._store.read(name) != data:
            raise DeposedError(f"{name} is another process's")
        self._trying = None
        self._note(entry)

    def is_deposed(self) -> bool:
        """Whether another process has appended. Not to be called during `append`."""
        try:
            taken = self._store.read(entry_name(self.position + 1))
        except StoreMissing:
            return False
        return self._trying is None or taken != self._trying[1]

    def beat(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat. Raises StoreFull and StoreUnavailable."""
        document = {name: getattr(heartbeat, name) for name in Heartbeat.__slots__}
        self._store.replace(HEARTBEAT, json.dumps(document).encode())

    def last_beat(self) -> Heartbeat | None:
        """The newest heartbeat, of whatever process. Raises StoreUnavailable."""
        try:
            document = json.loads(self._store.read(HEARTBEAT))
            return Heartbeat(**{**document, "learners": tuple(document["learners"])})
        except (StoreMissing, ValueError, KeyError, TypeError):
            return None  # it is not synced: a power cut may leave it empty

    def _read(self, position: int) -> Entry:
        """The entry at a position. Raises StoreMissing at the log's end, StoreCorrupt."""
        name = entry_name(position)
        data = self._store.read(name)
        try:
            document = json.loads(data)
            if document["seq"] != position:
                raise ValueError(f"it says seq {document['seq']}")
            return from_document(document)
        except (ValueError, KeyError, TypeError) as error:
            remedy = "use the version of Atoll that wrote it, or restore a checkpoint"
            raise StoreCorrupt(name, f"not an entry of this log: {error!r}", remedy) from error

    def _encode(self, entry: Entry) -> bytes:
        """One line of JSON: position, run, epoch and time, then the entry's own fields."""
        document: dict[str, Any] = {
            "seq": self.position + 1,
            "run": entry.run if isinstance(entry, RunStarted) else self._run,
            "epoch": self._epoch,
            "time": self._clock(),
            **to_document(entry),
        }
        return json.dumps(document, allow_nan=False).encode() + b"\n"

    def _note(self, entry: Entry) -> None:
        """The entry is durable and known; the next position follows it."""
        self.position += 1
        if isinstance(entry, RunStarted):
            self._run = entry.run
        if isinstance(entry, TermBegun):
            self._epoch = entry.epoch
