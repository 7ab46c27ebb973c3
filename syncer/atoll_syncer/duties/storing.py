"""What a shard does with its store beside its rules.

LogQueue: records become durable, and replies may not overtake them (rule 19). All records that
wait, up to the next reply, are one entry of the log: a create takes 35 to 110 ms in an object
store, and a hundred admissions must not take a hundred of them. One queue and one thread, because
entry n+1 may be created only by a process that knows entry n. When the position is taken, another
process has followed this one: `work` ends, and nothing that still waits can become durable.

ReadingBack: values of slices come back, the one that is due next first (rule 45). A store that
cannot be reached is asked again: only what it calls gone or damaged is lost.

Keeping: data states and the export, bytes that mean nothing to the rules, written before the entry
that names them.

Tidying: snapshots of the log, and the removal of objects and files that nobody needs (rules 19,
23). Each kind is tried again for itself: a full disk takes no snapshot, and must have its old
objects removed all the same. Only the first record of a term also removes objects that no entry
names: later, one of a merge under way has no entry yet. The next process fills the event tape from
entries, so a snapshot waits while lines of the tape wait for their disk, up to PATIENCE_ENTRIES.

Beating: the owner of a shard renews its heartbeat, and ends when it has the shard no more (rule
20). In a thread of its own: an entry waits for no heartbeat. Each beat names the time to the next
one, which is longer than the period where the store takes longer, so that a newcomer waits longer
too.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.duties.background import RETRY_SECONDS, Background, Thread
from atoll_syncer.duties.port import Machine
from atoll_syncer.model.effects import Effect, SendReply
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Entry, TermBegun
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import versions
from atoll_syncer.storage.export import encode_part
from atoll_syncer.storage.files import StoreCorrupt, StoreEmptied, StoreError, StoreMissing
from atoll_syncer.storage.journal import (
    DeposedError,
    Heartbeat,
    Journal,
    LogSnapshot,
    collect,
    stands_alone,
    write,
)
from atoll_syncer.storage.versions import Collector, VersionOrigin

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import StoredVersion, TensorValues


STOP_SECONDS = 2.0

log = structlog.get_logger()


class LogQueue:
    """`durable` is called with the records of each entry, and `deposed` at the end of the term."""

    def __init__(
        self,
        journal: Journal,
        background: Background,
        durable: Callable[[Sequence[Entry]], Awaitable[None]],
        deposed: Callable[[], None],
    ) -> None:
        self._journal, self._background = journal, background
        self._durable, self._deposed = durable, deposed
        self._waiting: asyncio.Queue[Entry | SendReply] = asyncio.Queue()
        self._replies: dict[int, asyncio.Future[Any]] = {}  # by token

    def put(self, waiting: Entry | SendReply) -> None:
        self._waiting.put_nowait(waiting)

    def reply_to(self, token: int) -> asyncio.Future[Any]:
        """Has the message of the reply with this token when its turn has come."""
        return self._replies.setdefault(token, asyncio.get_running_loop().create_future())

    async def work(self) -> None:
        while True:
            taken = [await self._waiting.get()]
            while not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            for _, together in groupby(taken, _entry_of):
                try:
                    await self._handle(list(together))
                except DeposedError:
                    self._deposed()
                    return
            for _ in taken:
                self._waiting.task_done()

    async def finish(self) -> None:
        """Wait until nothing waits, at most STOP_SECONDS."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            log.warning("stopped with unwritten entries", count=self._waiting.qsize())

    async def _handle(self, together: Sequence[Entry | SendReply]) -> None:
        """Send replies, or append the records of one entry."""
        records = list[Entry]()
        for each in together:
            if isinstance(each, SendReply):
                future = self._replies.pop(each.token, None)
                if future is not None and not future.done():
                    future.set_result(each.message)
            else:
                records.append(each)
        if records:
            append = self._journal.append
            await self._background.until_stored(Thread.LOG, lambda: append(*records))
            await self._durable(records)


def _entry_of(waiting: Entry | SendReply) -> object:
    """Neighbours of one value are handled together."""
    if isinstance(waiting, SendReply):
        return SendReply
    return id(waiting) if stands_alone(waiting) else Entry


class ReadingBack:
    """`feed` takes the effects that the rules answer with."""

    def __init__(
        self,
        shard: Shard,
        machine: Machine,
        background: Background,
        feed: Callable[[list[Effect]], None],
    ) -> None:
        self._shard, self._machine, self._background = shard, machine, background
        self._feed = feed

    async def work(self, values: "TensorValues") -> None:
        """Until all slices are here, or another process has the shard."""
        shard, clock = self._shard, self._machine.clock
        began, count = clock(), len(shard.state.reading.unread)
        while (fragment := shard.next_unread()) is not None:
            head = shard.state.history.heads[fragment]
            read = partial(values.restore, fragment, head, self._machine.store)
            try:
                await self._background.until_stored(Thread.READ, read)
            except (StoreCorrupt, StoreMissing) as trouble:
                deposed = self._machine.journal.is_deposed
                if await self._background.until_stored(Thread.READ, deposed):
                    return  # who followed removes what it does not need (rule 19)
                log.error("committed data is lost", slice=fragment, trouble=str(trouble))
                self._machine.metrics.store_troubles.labels(trouble.kind).inc()
                self._feed(shard.lost({fragment}, clock()))
            else:
                self._feed(shard.read_back(fragment, clock()))
        log.info("values are read back", slices=count, seconds=round(clock() - began, 3))


PIECE_BYTES: Final = 1 << 20


class Keeping:
    """See the module."""

    def __init__(self, machine: Machine, background: Background) -> None:
        self._machine, self._background = machine, background
        self._store = machine.store

    async def read_data_states(self, named: Mapping[str, str]) -> dict[str, bytes]:
        """Those that the history names, by slot; what is damaged or gone is left out."""
        found = dict[str, bytes]()
        for name in sorted(set(named.values())):
            try:
                states = await self._background.until_stored(
                    Thread.MERGE, partial(versions.read_data_states, self._store, name)
                )
            except (StoreCorrupt, StoreMissing) as trouble:
                slots = sorted(slot for slot, each in named.items() if each == name)
                log.error("data states are lost", slots=slots, trouble=str(trouble))
                self._machine.metrics.store_troubles.labels(trouble.kind).inc()
            else:
                found |= {slot: each for slot, each in states.items() if named.get(slot) == name}
        return found

    async def write_data_states(
        self, state: ShardState, outcome: "StoredVersion", kept: Mapping[str, bytes]
    ) -> str:
        """Return the object's name; empty where no merged offer has a data state."""
        merged = {slot: each for slot, each in kept.items() if slot not in outcome.found.left_out}
        if not merged:
            return ""
        origin = VersionOrigin(
            run=state.history.run,
            shard=state.number,
            slice=outcome.slice,
            number=outcome.number,
            epoch=state.history.epoch,
        )
        return await self._background.until_stored(
            Thread.MERGE, lambda: versions.write_data_states(self._store, origin, merged)
        )

    def export_pieces(self, state: ShardState, values: "TensorValues") -> Iterator[pb.ExportPiece]:
        """Of the values as they are now; each piece may be made in a thread."""
        assert state.layout is not None, "values before a layout"
        run, shard = state.history.run, state.number
        yield pb.ExportPiece(run=run, tick=state.clock.tick, model=state.layout.to_model())
        digest = hashlib.sha256()
        for part in encode_part(run, shard, values.exported()):
            for start in range(0, len(part), PIECE_BYTES):
                data = bytes(memoryview(part)[start : start + PIECE_BYTES])
                digest.update(data)
                yield pb.ExportPiece(data=data)
        yield pb.ExportPiece(digest=digest.hexdigest())


PATIENCE_ENTRIES: Final = 4096
LEFTOVERS_SECONDS: Final = 300.0  # between two looks for temporary files


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
        """Keep these objects; those of the last call may go (rule 42)."""
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
            self._begin("entries", partial(collect, self._machine.store))

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
        write(self._machine.store, taken, self._machine.journal.clock())


GOODBYE_SECONDS: Final = 2.0


class Beating:
    """`end` ends the process; `deposed` is called when another one has followed."""

    def __init__(
        self,
        state: ShardState,
        machine: Machine,
        background: Background,
        end: Callable[[ExitCode, str], None],
        deposed: Callable[[], None],
    ) -> None:
        self._state, self._machine, self._background = state, machine, background
        self._end, self._deposed = end, deposed
        self._beats = itertools.count(1)
        self._period = machine.store.heartbeat_seconds
        self._ended = False

    async def work(self) -> None:
        """Send heartbeats; one that fails is left out.

        In a store that somebody has emptied this process would add to a log that no other can read.
        So it ends, and the next one takes back from the learners what is gone (rule 22).
        """
        period, began_at = self._period, self._machine.clock()
        while not self._ended:
            try:
                if await self._in_thread(period, released=False):
                    self._deposed()
                    return
            except StoreEmptied as error:
                self._end(ExitCode.TRY_AGAIN, str(error))
                return
            except StoreError as error:
                log.warning("no heartbeat", trouble=str(error))
            await asyncio.sleep(self._period)
            now = self._machine.clock()
            period, began_at = max(self._period, now - began_at), now

    async def goodbye(self) -> None:
        """Write the last heartbeat: who follows takes over at once. No entry may follow."""
        self._ended = True
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._in_thread(self._period, released=True)
        except (TimeoutError, StoreError) as error:
            log.warning("no goodbye: who follows waits", trouble=str(error))

    async def _in_thread(self, period: float, *, released: bool) -> bool:
        """Beat, unless another process has followed: returns whether one has."""
        journal, state = self._machine.journal, self._state
        beat = Heartbeat(
            pod=state.pod,
            instance=state.instance,
            epoch=state.history.epoch,
            count=next(self._beats),
            period=period,
            time=journal.clock(),
            released=released,
        )

        def work() -> bool:
            if journal.is_deposed():
                return True
            journal.beat(beat)
            return False

        return await self._background.run(Thread.BEAT, work)
