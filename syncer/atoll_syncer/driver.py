"""Performs a shard's effects: a thread appends to the log, one merges, the loop does the rest."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs
from atoll_protos.layout import Layout, from_model
from atoll_protos.names import ExitCode
from atoll_syncer.background import RETRY_SECONDS, Background, Thread
from atoll_syncer.metrics import Metrics
from atoll_syncer.model.effects import (
    Accept,
    Append,
    Ask,
    Drop,
    Effect,
    EndSession,
    Exit,
    Merge,
    PublishHead,
    Reply,
    Send,
    SetModel,
    Stage,
    StoreHeld,
    StoreSeed,
    Tape,
    WriteIndex,
    WritePart,
)
from atoll_syncer.model.log import Committed, Entry, Reign, Seeded
from atoll_syncer.numbers.arrivals import Arrived, TransferError
from atoll_syncer.numbers.values import Making, Outcome, Values
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import export
from atoll_syncer.storage.journal import DeposedError, Journal
from atoll_syncer.storage.store import Store, StoreError
from atoll_syncer.storage.takeover import Heartbeat
from atoll_syncer.storage.tape import Tape as TapeFile
from atoll_syncer.storage.turn import HEARTBEAT_SECONDS
from atoll_syncer.storage.versions import Collector

log = structlog.get_logger()


class Port(Protocol):
    """One session's way out."""

    def send(self, message: pb.ToLearner) -> None:
        """Queue a control message."""

    def publish(self, fragment: int) -> None:
        """The session lacks this slice's head."""

    def end(self, end: pb.End) -> None:
        """Say why and close both streams."""


Asker = Callable[[Any], Awaitable[Any]]


class Driver:
    """Owns one shard: feeds it what happens and performs what it answers, in order."""

    def __init__(
        self,
        *,
        shard: Shard,
        journal: Journal,
        store: Store,
        tape: TapeFile,
        export_folder: Path,
        ask: Asker | None,
        metrics: Metrics,
    ) -> None:
        self.shard, self.journal, self.store = shard, journal, store
        self.tape, self.export_folder, self.ask = tape, export_folder, ask
        self.metrics = metrics
        self.values: Values | None = None
        self.ports: dict[int, Port] = {}
        self.accepted: dict[int, int] = {}  # session: bytes of the transfer that may come
        self.judged: Arrived | None = None  # verified; the rules are being asked
        self.replies: dict[int, asyncio.Future[Any]] = {}
        self.bytes_received = 0  # of bulk frames, in this process
        self.bytes_sent = 0
        self.exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._entries: asyncio.Queue[Entry | Reply] = asyncio.Queue()
        self.background = Background(metrics, self._failed)
        self._timer = asyncio.Event()
        self._token = 0
        self._collector = Collector(store)

    @staticmethod
    def now() -> float:
        """Monotonic seconds, as the shard's rules count them."""
        return time.monotonic()

    async def start(self) -> None:
        """Restore the tensors, begin the reign, and go on until `stop`."""
        if self.shard.history.tensors:
            effects = self.shard.start(self.now())
            self._allocate(self.shard.layout)
            assert self.values is not None
            lost = await self.background.run(
                Thread.MERGE,
                lambda: self.values.restore(self.shard.history, self.store),  # type: ignore[union-attr]
            )
            for fragment, trouble in lost.items():
                log.error("committed data is lost", slice=fragment, trouble=str(trouble))
                self.metrics.store_troubles.labels(trouble.kind).inc()
            effects += self.shard.lost(set(lost), self.now())
        else:
            effects = self.shard.start(self.now())
        self.background.spawn(self._append_entries())
        self.background.spawn(self._keep_time())
        self.background.spawn(self._keep_beating())
        self.feed(effects)

    async def stop(self) -> None:
        """Finish the log's queue, at most for two seconds, and end."""
        try:
            await asyncio.wait_for(self._entries.join(), 2.0)
        except TimeoutError:
            log.warning("stopped with unwritten entries", count=self._entries.qsize())
        self.background.stop()
        self._write_tape({"event": "end", "epoch": self.shard.state.epoch})
        self.tape.close()

    def received(self, byte_count: int) -> None:
        """Count bulk bytes from a learner."""
        self.bytes_received += byte_count
        self.metrics.received_bytes.inc(byte_count)

    def sent(self, byte_count: int) -> None:
        """Count bulk bytes to a learner or observer."""
        self.bytes_sent += byte_count
        self.metrics.sent_bytes.inc(byte_count)

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order."""
        for effect in effects:
            self.metrics.count(effect)
            self._perform(effect)
        self._timer.set()

    async def call(self, request: Any) -> Any:
        """A registrar call: answered when what it changed is durable."""
        self._token += 1
        future = asyncio.get_running_loop().create_future()
        self.replies[self._token] = future
        self.feed(self.shard.registrar_request(self._token, request, self.now()))
        return await future

    async def transferred(self, session: int, head: pb.Transfer, payload: bytearray) -> None:
        """A whole transfer: examine its values, then let the rules count it."""
        values = self.values
        assert values is not None, "a transfer was accepted without a layout"
        try:
            arrived = await self.background.run(
                Thread.EXAMINE, lambda: values.examine(head, payload)
            )
        except TransferError as error:
            self.feed(self.shard.transfer_rejected(session, str(error), self.now()))
            return
        if head.HasField("seed"):
            values.keep(session, head.seed.slice, arrived)
        if head.HasField("held"):
            values.keep(session, head.held.version.slice, arrived)
        self.judged = arrived
        effects = self.shard.transfer_verified(session, head, self.now())
        if head.HasField("held") and not effects:
            values.forget(session)  # it is not needed any more
        self.feed(effects)
        self.judged = None

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(session, message) if session in self.ports:
                self.ports[session].send(message)
            case PublishHead(session, fragment) if session in self.ports:
                self.ports[session].publish(fragment)
            case EndSession(session, end) if session in self.ports:
                self.ports[session].end(end)
            case Accept(session, element_count, encoding):
                self.accepted[session] = codecs.encoded_size(element_count, encoding)
            case Append(entry):
                self._entries.put_nowait(entry)
            case Reply():
                self._entries.put_nowait(effect)
            case Tape(record):
                self._write_tape(record)
            case Ask(request):
                self.background.spawn(self._ask(request))
            case Exit() if not self.exit.done():
                self.exit.set_result(effect)
            case SetModel(model):
                sync = self.shard.sync
                self._allocate(from_model(model, sync.fragments, self.shard.run_file.shards))
            case WritePart():
                self.background.spawn(self._write_part())
            case WriteIndex(parts):
                self.background.spawn(self._write_index(parts))
            case Stage() | Drop() | Merge() | StoreSeed() | StoreHeld():
                self._perform_on_values(effect)

    def _write_tape(self, record: dict[str, Any]) -> None:
        """Every line also says what this process has received and sent so far."""
        bytes_moved = {"bytes_up": self.bytes_received, "bytes_down": self.bytes_sent}
        trouble = self.tape.write(self.shard.history.run, {**record, **bytes_moved})
        if trouble is not None:
            log.warning("the tape waits", trouble=str(trouble))

    def _perform_on_values(self, effect: Stage | Drop | Merge | StoreSeed | StoreHeld) -> None:
        values, history = self.values, self.shard.history
        assert values is not None, "values before a layout"
        match effect:
            case Stage():
                assert self.judged is not None, "an offer is staged as it is judged"
                values.stage(effect, self.judged)
            case Drop():
                values.drop(effect)
            case Merge():
                making = values.begin_merge(effect, history.run, history.epoch)
                self.background.spawn(self._merge(making))
            case StoreSeed():
                makings = values.begin_seed(effect, history.run, history.epoch)
                self.background.spawn(self._seed(makings, effect.session))
            case StoreHeld():
                making = values.begin_held(effect, history.run, history.epoch)
                self.background.spawn(self._merge(making))

    def _allocate(self, layout: Layout | None) -> None:
        assert layout is not None, "a layout was announced"
        if self.values is None:
            self.values = Values.allocate(layout, self.shard.number, self.shard.sync)

    async def _merge(self, making: Making) -> None:
        outcome = await self._make(making)
        self.feed(self.shard.merged(outcome.slice, outcome.digest, outcome.object, self.now()))

    async def _seed(self, makings: list[Making], session: int) -> None:
        outcomes = [await self._make(making) for making in makings]
        assert self.values is not None
        self.values.forget(session)
        self.feed(
            self.shard.seeded(
                tuple(each.digest for each in outcomes), tuple(each.object for each in outcomes)
            )
        )

    async def _make(self, making: Making) -> Outcome:
        with self.metrics.merge_seconds.time():
            await self.background.run(Thread.MERGE, making.compute)
        with self.metrics.store_seconds.time():
            return await self.background.until_stored(
                Thread.MERGE, lambda: making.write(self.store)
            )

    async def _append_entries(self) -> None:
        while True:
            entry = await self._entries.get()
            if isinstance(entry, Reply):
                future = self.replies.pop(entry.token, None)
                if future is not None and not future.done():
                    future.set_result(entry.message)
            else:
                try:
                    await self._append(entry)
                except DeposedError:
                    self.feed(self.shard.deposed(self.now()))
                    return
            self._entries.task_done()

    async def _append(self, entry: Entry) -> None:
        await self.background.until_stored(Thread.LOG, lambda: self.journal.append(entry))
        if self.values is not None:
            match entry:
                case Seeded():
                    for fragment in range(self.shard.sync.fragments):
                        self.values.committed(fragment)
                case Committed():
                    self.values.committed(entry.slice)
        self.feed(self.shard.appended(entry, self.now()))
        if isinstance(entry, Reign | Committed):
            live = self.shard.history.live_objects()
            epoch = self.shard.history.epoch
            sweep = isinstance(entry, Reign)
            collect = self._collector.sweep if sweep else self._collector.advance
            arguments = (live, epoch) if sweep else (live,)
            await self.background.until_stored(Thread.MERGE, lambda: collect(*arguments))

    async def _write_part(self) -> None:
        values, run = self.values, self.shard.history.run
        assert values is not None, "final without values"
        part = await self.background.until_stored(
            Thread.MERGE,
            lambda: export.write_part(self.export_folder, run, values.shard, values.bases()),
        )
        self.feed(self.shard.part_written(part.file, part.digest))

    async def _write_index(self, parts: tuple[tuple[int, str, str], ...]) -> None:
        values, run = self.values, self.shard.history.run
        assert values is not None, "final without values"
        files = [export.Part(file=file, digest=digest) for _, file, digest in parts]
        await self.background.until_stored(
            Thread.MERGE,
            lambda: export.assemble(self.export_folder, run, values.layout, files),
        )
        self.feed(self.shard.exported())

    async def _ask(self, request: Any) -> None:
        assert self.ask is not None, "the registrar asks nobody"
        while True:
            reply = await self.ask(request)
            if reply is not None:
                self.feed(self.shard.answered(reply, self.now()))
                return
            if isinstance(request, pb.HelloRequest):
                return  # it comes again by itself
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep_time(self) -> None:
        while True:
            self._timer.clear()
            wait = self.shard.deadline() - self.now()
            if wait > 0:
                try:
                    await asyncio.wait_for(self._timer.wait(), wait)
                    continue
                except TimeoutError:
                    pass
            self.feed(self.shard.tick_time(self.now()))
            staged_bytes = self.values.staged_bytes if self.values else 0
            self.metrics.refresh(
                self.shard.state, staged_bytes, self.tape.dropped_lines, self.now()
            )

    async def _keep_beating(self) -> None:
        """Rule 20: renew the heartbeat, and look each time whether another process reigns."""
        count = 0
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            count += 1
            beat = Heartbeat(
                pod=self.shard.pod,
                instance=self.shard.instance,
                epoch=self.shard.history.epoch,
                count=count,
                learners=tuple(each.join.instance for each in self.shard.sessions.values()),
            )
            try:
                if await self.background.run(Thread.LOG, partial(self._beat, beat)):
                    self.feed(self.shard.deposed(self.now()))
                    return
            except StoreError as error:
                log.warning("no heartbeat", trouble=str(error))

    def _beat(self, beat: Heartbeat) -> bool:
        if self.journal.is_deposed():
            return True
        self.journal.beat(beat)
        return False

    def _failed(self, error: BaseException) -> None:
        if not self.exit.done():
            self.exit.set_result(Exit(ExitCode.BUG, f"{error!r}"))
