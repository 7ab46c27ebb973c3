"""Keeps a shard's store small, beside its work: snapshots of the log, and what nobody needs.

    after a commit     objects that no slice's newest two versions name are removed (rule 19)
    every so many      a snapshot of the log is written, and the entries before it are removed
    every few minutes  temporary files of killed writers are removed

What fails is tried again later, each thing for itself: a full disk takes no snapshot, and must have
its old objects removed all the same (rule 23). Only the first record of a term also removes objects
that no entry names: later, one of a merge under way has no entry yet.

The next process fills the event tape from entries, so a snapshot waits while lines of the tape wait
for their disk; beyond PATIENCE_ENTRIES the tape drops lines by itself (storage/tape).
"""

import asyncio
from collections.abc import Callable, Set
from functools import partial
from typing import Final

import structlog

from atoll_syncer.duties.background import RETRY_SECONDS, Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Entry, TermBegun
from atoll_syncer.storage import snapshots
from atoll_syncer.storage.snapshots import LogSnapshot
from atoll_syncer.storage.store import StoreError
from atoll_syncer.storage.versions import Collector

PATIENCE_ENTRIES: Final = 4096
LEFTOVERS_SECONDS: Final = 300.0  # between two looks for temporary files

log = structlog.get_logger()


class Tidying:
    """`work` and `look_for_leftovers` go on until they are cancelled."""

    def __init__(self, machine: Machine, background: Background) -> None:
        self._machine, self._background = machine, background
        self._collector = Collector(machine.store)
        self._jobs: dict[str, Callable[[], object]] = {}  # by kind: a newer one replaces an older
        self._wake = asyncio.Event()
        self._troubles: dict[str, str] = {}  # by kind of job
        self._swept = False
        self._snapshot_position = machine.journal.snapshot_position
        self._damaged = machine.journal.lost_entries > 0

    def appended(self, entry: Entry, history: History) -> None:
        if isinstance(entry, TermBegun | Committed):
            live = history.live_objects()
            named = entry.data_states.values() if isinstance(entry, Committed) else ()
            self._collector.note(live, frozenset(named))
            self._begin("objects", self._collector.remove)
            if not self._swept:
                self._swept = True
                self._begin("sweep", partial(self._collector.sweep, live, history.epoch))

    def pin(self, names: Set[str]) -> None:
        """These objects stay, and those of the last call may go (rule 42)."""
        self._collector.pin(names)
        self._begin("objects", self._collector.remove)

    def snapshot(self, history: History) -> None:
        """To be called when all entries of the log are in `history`: writes one if it is due."""
        if self._is_snapshot_due():
            journal = self._machine.journal
            self._snapshot_position, self._damaged = journal.position, False
            self._begin("snapshot", partial(self._write_snapshot, journal.snapshot_of(history)))

    async def work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.once()
            if self._troubles:
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def once(self) -> None:
        for kind, job in list(self._jobs.items()):
            try:
                result = await self._background.run(Thread.TIDY, job)
            except StoreError as error:
                self._machine.metrics.store_troubles.labels(error.kind).inc()
                self._note_trouble(kind, str(error))
            else:
                self._note_trouble(kind, "")
                if self._jobs[kind] is job:
                    del self._jobs[kind]
                self._follow(kind, result)

    def _follow(self, kind: str, result: object) -> None:
        """Entries go after a snapshot, some at a time: a very long log holds nothing else up."""
        if kind == "snapshot" or (kind == "entries" and result):
            self._begin("entries", partial(snapshots.collect, self._machine.store))

    async def look_for_leftovers(self) -> None:
        while True:
            await asyncio.sleep(LEFTOVERS_SECONDS)
            self._begin("leftovers", self._machine.store.tidy)

    def _begin(self, kind: str, job: Callable[[], object]) -> None:
        self._jobs[kind] = job
        self._wake.set()

    def _note_trouble(self, kind: str, trouble: str) -> None:
        """Log a trouble once, and show it in the Status until the job is done; empty: it is."""
        before = self._troubles.pop(kind, "")
        if before:
            self._background.troubles.remove(before)
        if trouble:
            self._troubles[kind] = trouble
            self._background.troubles.append(trouble)
        if trouble and trouble != before:
            log.error("the store is not tidied; trying again", trouble=trouble)

    def _is_snapshot_due(self) -> bool:
        since = self._machine.journal.position - self._snapshot_position
        if self._machine.tape.waiting_lines and since < PATIENCE_ENTRIES:
            return False
        return self._damaged or since >= self._machine.snapshot_entries

    def _write_snapshot(self, taken: LogSnapshot) -> None:
        """In the thread. The tape goes to the disk first: entries that it lacks must stay."""
        self._machine.tape.sync()
        snapshots.write(self._machine.store, taken, self._machine.journal.clock())
