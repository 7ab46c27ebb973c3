"""Runs one shard: feeds the rules with what happens and performs the effects that they answer.

The rules (`rules.shard.Shard`) are a machine without I/O: an input and the time go in, a list of
effects comes out. The driver is the other half. It has ten duties:

1. `feed` performs the effects of one input in order and at once. It never waits: what takes long
   becomes a task or work for a thread, and its result is the next input.
2. Control messages go to the port of their session (`Send`, `PublishHead`, `EndSession`). A
   session without a port is over, and what is meant for it is dropped.
3. Records for the log (`Append`) and answers of the registrar (`SendReply`) stand in one queue
   (duties/storing). When records are durable, the values are told of each (a version becomes the
   head of its slice), and `Shard.appended` is fed.
4. Offers, seeds and held versions that have arrived are examined in the thread EXAMINE, because
   that reads all of their values; then the rules are asked, and `Stage` keeps what they count.
5. Versions are made (`MergeOffers`, `StoreSeed`, `StoreHeld`) and written in the thread MERGE; then
   `Shard.merged` or `Shard.seeded` is fed, which answers with the entry that names them.
6. What an entry made unneeded is removed, and snapshots of the log are written, in a thread of
   their own (`Tidying`): neither the next entry nor a Welcome waits for that.
7. Calls to the registrar (`Ask`) are repeated until it answers, calls of others are answered.
8. Time: `Shard.tick_time` is fed when `Shard.deadline` is reached, and the gauges follow.
9. Once a second the heartbeat is renewed and the end of the log is looked at (duties/storing).
10. Once the term has begun, the values are read back, slice after slice (duties/storing).

Why the effects of an entry wait for `appended` (rule 19): everything that others hear of an entry
must survive this process. So the rules answer an input that changes something durable with an
`Append` alone; only `Shard.appended` changes the history and answers with what the change means
to others: a Welcome, a Publish, a Reply. A process that is killed in between has sent none of them.

Trouble with the store delays, and stops nothing (rule 23): work that raises StoreFull or
StoreUnavailable is repeated once a second, while messages are answered. Any other exception of a
task is a bug and ends the process with ExitCode.BUG: `exit` has its reason.

Everything outside is given to the constructor: tests/sim runs this class in virtual time.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import Layout, from_model
from atoll_protos.network.channels import Deadline
from atoll_syncer.duties.background import RETRY_SECONDS, Background, Thread
from atoll_syncer.duties.checkpointing import Checkpointing, Restoring
from atoll_syncer.duties.port import Machine, SessionPort
from atoll_syncer.duties.recording import MergeRecorder, Recording
from atoll_syncer.duties.storing import Beating, Keeping, LogQueue, ReadingBack, Tidying
from atoll_syncer.model.effects import (
    Accept,
    Append,
    Ask,
    Drop,
    Effect,
    EndProcess,
    EndSession,
    MergeOffers,
    PublishHead,
    RestoreEffect,
    Send,
    SendReply,
    SetModel,
    Stage,
    StoreHeld,
    StoreSeed,
    TapeLine,
    WriteIndex,
    WritePart,
)
from atoll_syncer.model.log import Committed, Entry, Seeded, TermBegun
from atoll_syncer.numbers.commit import TransferError
from atoll_syncer.rules import recovery
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.export import ExportPart

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import StoredVersion, TensorValues, VersionInMaking

log = structlog.get_logger()


class Driver:
    """See the module. Call `start` in the event loop; `exit` is set when the shard must end."""

    def __init__(self, shard: Shard, machine: Machine) -> None:
        self.shard, self.state = shard, shard.state
        self.machine, self.now = machine, machine.clock
        self.store, self.metrics = machine.store, machine.metrics
        self.values: TensorValues | None = None
        self.ports: dict[int, SessionPort] = {}
        self.session_numbers = itertools.count(1)
        self.accepted: dict[int, int] = {}  # session: bytes of the transfer that may come
        self.judged: Any = None  # the offer, verified, of which the rules are being asked
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the term
        self.exit: asyncio.Future[EndProcess] = asyncio.get_running_loop().create_future()
        self.background = Background(
            machine.executors, machine.metrics, self._failed, machine.tape.give_way
        )
        self._log = LogQueue(machine.journal, self.background, self._appended, self._deposed)
        self._deadline = Deadline(machine.clock, shard.deadline)
        self._token = 0
        self._tidying = Tidying(machine, self.background)
        self.checkpoints = Checkpointing(self.state, machine, self.background, self._tidying.pin)
        self._keeping = Keeping(machine, self.background)
        self._merge_recorder = MergeRecorder(self.state, machine, self.background)
        self._restoring = Restoring(shard, machine, self.background, self.feed)
        self._reading = ReadingBack(shard, machine, self.background, self.feed)
        self.recording = Recording(self.state, machine, self.background)
        self.beating = Beating(self.state, machine, self.background, self._end, self._deposed)

    async def start(self) -> None:
        """Ask for the term, which has `begun` later, and go on until `stop`.

        A Welcome brings a data state, so these are read first; values come later (rule 45).
        """
        if self.state.history.tensors:
            self._allocate(self.state.layout)
            named = self.state.history.data_states
            self.shard.data_states_read(await self._keeping.read_data_states(named))
        effects = self.shard.start(self.now())
        works = [each.work for each in (self._log, self._tidying, self.checkpoints)]
        for work in (*works, self._tidying.look_for_leftovers, self._keep_time):
            self.background.spawn(work())
        self.feed(effects)

    async def stop(self) -> None:
        """Write what was trained since, finish the log's queue, say goodbye, end.

        Each takes two seconds at most; of a process that was deposed nothing is asked.
        """
        if not self.exit.done():
            self.feed(self.shard.stopping())
        if not self.was_deposed:
            await self._log.finish()
            if self.begun.done():
                await self.beating.goodbye()
        self.background.stop()
        self.recording.close()

    def abandon(self) -> None:
        """End without a term: another process was faster."""
        self.background.stop()

    @property
    def was_deposed(self) -> bool:
        return self.exit.done() and self.exit.result().code is ExitCode.SUPERSEDED

    def feed(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.metrics.count(effect)
            self._perform(effect)
        self._deadline.moved()

    async def call(self, request: Any) -> Any:
        """Make a registrar call; return its answer when what it changed is durable."""
        self._token += 1
        future = self._log.reply_to(self._token)
        self.feed(self.shard.registrar_request(self._token, request, self.now()))
        return await future

    async def transferred(self, session: int, head: pb.Transfer, payload: bytearray) -> None:
        """Examine the values of a whole transfer, then let the rules count it."""
        values = self.values
        assert values is not None, "a transfer was accepted without a layout"
        steps = recovery.steps_to(self.state, session, head)
        try:
            arrived = await self.background.run(
                Thread.EXAMINE, lambda: values.examine(head, payload, steps)
            )
        except TransferError as error:
            sender = self.state.sessions.open.get(session)
            slot = sender.slot if sender else ""
            log.warning("bad values", slot=slot, session=session, reason=str(error))
            reason, now = str(error), self.now()
            self.feed(self.shard.transfer_rejected(session, reason, now, head, final=True))
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
        if session not in self.state.sessions.open:  # it ended while its values were examined
            values.forget(session)

    async def export_pieces(self) -> AsyncIterator[pb.ExportPiece]:
        """Return what an export of a job that trains is made of (rule 36). Raises StoreError."""
        assert self.values is not None, "values before a layout"
        pieces = self._keeping.export_pieces(self.state, self.values)
        following = partial(next, pieces, None)
        while (piece := await self.background.run(Thread.TIDY, following)) is not None:
            yield piece

    def session_closed(self, session: int) -> None:
        """Both streams are gone, and with them what this session had sent of a seed."""
        self.feed(self.shard.session_closed(session, self.now()))
        if self.values is not None:
            self.values.forget(session)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(session, message) if session in self.ports:
                self.ports[session].send(message)
            case PublishHead(session, fragment) if session in self.ports:
                self.ports[session].publish(fragment)
            case EndSession(session, end) if session in self.ports:
                self.ports[session].end(end)
            case Accept(session, byte_count):
                self.accepted[session] = byte_count
            case Append(entry):
                self._log.put(entry)
            case SendReply():
                self._log.put(effect)
            case TapeLine(record):
                self.recording.write(record)
            case Ask(request):
                self.background.spawn(self._ask(request))
            case EndProcess() if not self.exit.done():
                self.exit.set_result(effect)
            case SetModel(model):
                self._set_model(model)
            case RestoreEffect():
                self.background.spawn(self._restoring.perform(effect, self.values))
            case WritePart():
                self.background.spawn(self._export_part())
            case WriteIndex(parts):
                self.background.spawn(self._export_whole(parts))
            case Stage() | Drop() | MergeOffers() | StoreSeed() | StoreHeld():
                self._perform_on_values(effect)

    def _perform_on_values(
        self, effect: Stage | Drop | MergeOffers | StoreSeed | StoreHeld
    ) -> None:
        values, history = self.values, self.state.history
        assert values is not None, "values before a layout"
        match effect:
            case Stage():
                assert self.judged is not None, "an offer is staged as it is judged"
                values.stage(effect, self.judged)
            case Drop():
                values.drop(effect)
            case MergeOffers():
                self._merge_recorder.take(values, effect)
                making = values.begin_merge(effect, history.run, history.epoch)
                self.background.spawn(self._merge(making, effect.data_states))
            case StoreSeed():
                makings = values.begin_seed(effect, history.run, history.epoch)
                self.background.spawn(self._seed(makings, effect.session))
            case StoreHeld():
                making = values.begin_held(effect, history.run, history.epoch)
                self.background.spawn(self._merge(making, {}))

    def _allocate(self, layout: Layout | None) -> "TensorValues":
        assert layout is not None, "a layout was announced"
        self.values = self.machine.make_values(layout, self.state.number, self.state.sync)
        return self.values

    def _set_model(self, model: pb.Model) -> None:
        """Memory for a model that a learner brought, instead of what an earlier one had."""
        self.values = None
        try:
            self._allocate(from_model(model, self.state.run_file.layout))
        except MemoryError as error:
            log.error("no memory for a model", trouble=str(error))
            reason = "the model does not fit into this shard's memory"
            self.feed(self.shard.does_not_fit(model.layout_digest, reason))

    def failed(self, error: BaseException) -> None:
        """End the process: the rules or this driver raised what they must not, a bug."""
        log.error("a bug ends this process", exc_info=error)
        self._failed(error)

    async def _merge(self, making: "VersionInMaking", kept: Mapping[str, bytes]) -> None:
        outcome = await self._make(making)
        await self._merge_recorder.write(outcome)
        if outcome.found.left_out:
            log.error("offers not merged", why=dict(outcome.found.left_out))
        self.metrics.merged(outcome.found)
        name = await self._keeping.write_data_states(self.state, outcome, kept)
        digest, stored, now = outcome.digest, outcome.object, self.now()
        self.feed(self.shard.merged(outcome.slice, digest, stored, now, outcome.found, name))

    async def _seed(self, makings: Sequence["VersionInMaking"], session: int) -> None:
        outcomes = [await self._make(making) for making in makings]
        assert self.values is not None
        self.values.forget(session)
        digests = tuple(each.digest for each in outcomes)
        self.feed(self.shard.seeded(digests, tuple(each.object for each in outcomes)))

    async def _make(self, making: "VersionInMaking") -> "StoredVersion":
        with self.metrics.merge_seconds.time():
            await self.background.run(Thread.MERGE, making.compute)
        with self.metrics.store_seconds.time():
            write = partial(making.write, self.store)
            return await self.background.until_stored(Thread.MERGE, write)

    async def _appended(self, records: Sequence[Entry]) -> None:
        """They are durable: now others may hear what they mean."""
        for entry in records:
            if self.values is not None:
                match entry:
                    case Seeded():
                        for fragment in self.state.fragments:
                            self.values.committed(fragment)
                    case Committed():
                        self.values.committed(entry.slice)
            if isinstance(entry, TermBegun) and not self.state.term.durable:
                await self.recording.fill()
            self.feed(self.shard.appended(entry, self.now()))
            if not self.begun.done():
                self._has_begun()
            self._tidying.appended(entry, self.state.history)
        self._tidying.snapshot(self.state.history)
        self.checkpoints.appended()

    def _has_begun(self) -> None:
        self.begun.set_result(None)
        self.background.spawn(self.beating.work())
        if self.state.reading.unread:
            assert self.values is not None, "versions without a layout"
            self.background.spawn(self._reading.work(self.values))

    async def _export_part(self) -> None:
        values, history = self.values, self.state.history
        assert values is not None, "final without values"
        part = await self.background.until_stored(
            Thread.MERGE,
            lambda: self.machine.exporter.write_part(
                history.run, self.state.number, values.exported()
            ),
        )
        self.feed(self.shard.part_written(part.file, part.digest))

    async def _export_whole(self, parts: tuple[tuple[int, str, str], ...]) -> None:
        values, run = self.values, self.state.history.run
        assert values is not None, "final without values"
        files = [ExportPart(file=file, digest=digest) for _, file, digest in parts]
        await self.background.until_stored(
            Thread.MERGE, lambda: self.machine.exporter.assemble(run, values.layout, files)
        )
        self.feed(self.shard.exported())

    async def _ask(self, request: Any) -> None:
        ask = self.machine.ask
        assert ask is not None, "the registrar has no registrar to call"
        while True:
            reply = await ask(request)
            if reply is not None:
                self.feed(self.shard.answered(reply, self.now()))
                return
            if isinstance(request, pb.HelloRequest):
                return  # it comes again by itself
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep_time(self) -> None:
        while True:
            await self._deadline.wait()
            self.feed(self.shard.tick_time(self.now()))
            staged_bytes = self.values.staged_bytes if self.values else 0
            dropped_lines, now = self.machine.tape.dropped_lines, self.now()
            self.metrics.refresh(self.shard.state, staged_bytes, dropped_lines, now)

    def _deposed(self) -> None:
        self.feed(self.shard.deposed(self.now()))

    def _failed(self, error: BaseException) -> None:
        self._end(ExitCode.BUG, f"{error!r}")

    def _end(self, code: ExitCode, reason: str) -> None:
        if not self.exit.done():
            self.exit.set_result(EndProcess(code, reason))
