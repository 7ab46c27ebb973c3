"""A shard's life on a store that dies at one of its requests, and what the next one finds.

The life is what a shard's process does without sessions (test_killed_commit): it begins a term,
restores or seeds, removes leftovers, and commits, with a snapshot and what that lets go in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll_protos.transfer.frames import Buffer
from atoll_syncer.model.history import History
from atoll_syncer.model.log import TermBegun
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.storage import snapshots
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.store import OBJECTS, Store
from atoll_syncer.storage.versions import Collector
from unit.syncer.test_killed_commit import LAYOUT, SYNC, append, begin, commit
from unit.syncer.values_side import restore

COMMITS = 5
SNAPSHOTS_AFTER = (2, 3, 4)  # commits


class Killed(BaseException):
    """The process ends here."""


@dataclass
class DyingStore:
    """Passes requests on; the one of this number kills, before or after it was done."""

    store: Any
    dies_at: int = 0  # 0: never
    after: bool = False
    requests: list[str] = field(default_factory=list)

    @property
    def keeps_entries(self) -> bool:
        return bool(self.store.keeps_entries)

    @property
    def heartbeat_seconds(self) -> float:
        return float(self.store.heartbeat_seconds)

    def create(self, name: str, data: bytes) -> bool:
        return bool(self._done("create", name, data))

    def replace(self, name: str, data: bytes) -> None:
        self._done("replace", name, data)

    def put(self, parts: Sequence[Buffer], epoch: int) -> str:
        return str(self._done("put", parts, epoch))

    def read(self, name: str) -> bytearray:
        found: bytearray = self._done("read", name)
        return found

    def names(self, prefix: str, after: str = "") -> list[str]:
        return list(self._done("names", prefix, after))

    def delete(self, name: str) -> None:
        self._done("delete", name)

    def tidy(self) -> None:
        self._done("tidy")

    def _done(self, kind: str, *arguments: Any) -> Any:
        self.requests.append(kind)
        dies = len(self.requests) == self.dies_at
        if dies and not self.after:
            raise Killed
        try:
            return getattr(self.store, kind)(*arguments)
        finally:
            if dies:
                raise Killed


def life(store: Store) -> tuple[History, TensorValues]:
    """From the start of a process to the last commit; what was there before is carried on."""
    store.tidy()
    journal = Journal(store, lambda: 7.0)
    history = journal.read()
    values = TensorValues.allocate(LAYOUT, 0, SYNC)
    append(journal, history, TermBegun(epoch=history.epoch + 1, pod="p", instance="i"))
    assert restore(values, history, store) == {}
    collector = Collector(store)
    collector.note(history.live_objects())
    collector.sweep(history.live_objects(), history.epoch)
    if not history.heads:
        begin(values, store, journal, history)
    while history.commits < COMMITS:
        commit(values, store, journal, history)
        collector.note(history.live_objects())
        collector.remove()
        if history.commits in SNAPSHOTS_AFTER:
            snapshots.write(store, journal.snapshot_of(history), 7.0)
            snapshots.collect(store)
    Collector(store).sweep(history.live_objects(), history.epoch + 1)
    assert set(store.names(OBJECTS)) == history.live_objects()
    return history, values


def found(lived: tuple[History, TensorValues]) -> list[Any]:
    """By slice: number and digest of the newest version, its merges, master and momentum."""
    history, values = lived
    return [
        (
            head.number,
            head.digest,
            head.merges,
            values.slices[fragment].master.tobytes(),
            values.slices[fragment].momentum.tobytes(),
        )
        for fragment, head in sorted(history.heads.items())
    ]
