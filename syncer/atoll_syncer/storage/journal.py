"""One shard's log in the store: read in order, appended conditionally (rules 19, 20)."""

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
    """The position of the next entry is taken: another process reigns (exit 77)."""


def entry_name(position: int) -> str:
    """The name of the log's entry number `position`; the first is 1."""
    return f"{LOG}{position:016d}.json"


class Journal:
    """Reads and appends one log.

    Whoever appends entry s+1 has read entry s: `append` goes to the position after the last one
    read or appended here. For one thread at a time.
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
        """Whether somebody else has appended: look at every heartbeat, not during an append."""
        try:
            taken = self._store.read(entry_name(self.position + 1))
        except StoreMissing:
            return False
        return self._trying is None or taken != self._trying[1]

    def beat(self, heartbeat: Heartbeat) -> None:
        """Show a sign of life. Raises StoreFull and StoreUnavailable."""
        document = {name: getattr(heartbeat, name) for name in Heartbeat.__slots__}
        self._store.replace(HEARTBEAT, json.dumps(document).encode())

    def last_beat(self) -> Heartbeat | None:
        """The newest sign of life, whoever's. Raises StoreUnavailable."""
        try:
            document = json.loads(self._store.read(HEARTBEAT))
            return Heartbeat(**{**document, "learners": tuple(document["learners"])})
        except (StoreMissing, ValueError, KeyError, TypeError):
            return None  # a power cut may leave it empty; it means nothing then

    def _read(self, position: int) -> Entry:
        name = entry_name(position)
        data = self._store.read(name)
        try:
            document = json.loads(data)
            if document["seq"] != position:
                raise ValueError(f"it says seq {document['seq']}")
            return from_document(document)
        except (ValueError, KeyError, TypeError) as error:
            remedy = "use the version of Atoll that wrote it, or restore a checkpoint"
            raise StoreCorrupt(name, f"no entry of this log: {error!r}", remedy) from error

    def _encode(self, entry: Entry) -> bytes:
        document: dict[str, Any] = {
            "seq": self.position + 1,
            "run": entry.run if isinstance(entry, RunStarted) else self._run,
            "epoch": self._epoch,
            "time": self._clock(),
            **to_document(entry),
        }
        return json.dumps(document, allow_nan=False).encode() + b"\n"

    def _note(self, entry: Entry) -> None:
        self.position += 1
        if isinstance(entry, RunStarted):
            self._run = entry.run
        if isinstance(entry, TermBegun):
            self._epoch = entry.epoch
