"""Takes a shard's parts of checkpoints, beside its work; begins a run with one (rules 42, 43).

    an entry's tick has passed a multiple of `every`, or the step that somebody has asked for
                                                     --> the history is noted, its objects stay
    thread TIDY: object after object, part.json      --> they may go again
    then every few seconds: is it whole?             --> what is older is removed
    thread RENDER, of shard 0: its model

Training never waits for it: between two objects the thread does other work. What fails is logged,
counted, shown in the Status, and tried again until the next one is due; a full disk gets no second
try, since what has to stay would keep it full.

The next one waits until this one is whole: where copying takes longer than `every`, shards that
each took what is newest would take no step together. A shard leaves an attempt that is not whole
only for a newer step of which another shard, started again or cut short, has a part; it takes
exactly that one. So of two steps that shards begin side by side the newer becomes whole.

Restoring reads a checkpoint's parts, or the version before a damaged one in the shard's own store
(rule 22). What is damaged ends the process for good, with the reason. A learner whose model is not
that of the checkpoint is refused, and the next one is asked.
"""

import asyncio
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.job.run_file import Checkpoints
from atoll_syncer.checkpoints import copies, restoring
from atoll_syncer.checkpoints.copies import Attempt, Place
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from atoll_syncer.duties.background import RETRY_SECONDS, Background, Thread
from atoll_syncer.duties.port import Machine
from atoll_syncer.model.effects import (
    Effect,
    EndProcess,
    FindCheckpoint,
    RestoreEffect,
    StorePrevious,
)
from atoll_syncer.model.log import FoundCheckpoint
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import versions
from atoll_syncer.storage.files import StoreCorrupt, StoreError, StoreMissing, StoreUnavailable
from atoll_syncer.storage.versions import VersionOrigin

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import TensorValues


LOOK_SECONDS: Final = 2.0

T = TypeVar("T")

log = structlog.get_logger()


class OvertakenError(Exception):
    """A part cannot be taken before the next checkpoint is due, or not at all."""


class Checkpointing:
    """`work` goes on until it is cancelled. `newest` is the URL of the newest whole one."""

    def __init__(
        self,
        state: ShardState,
        machine: Machine,
        background: Background,
        pin: Callable[[Set[str]], None],
    ) -> None:
        self._state, self._machine, self._background = state, machine, background
        self._pin = pin  # which objects of the store stay
        self._wanted: asyncio.Queue[Attempt] = asyncio.Queue()
        self._attempt: Attempt | None = None  # until it is whole, or is left
        self._tried = 0
        self._elsewhere = 0  # a newer step, of which another shard has a part: the next one
        self._late = 0  # the attempt of which was said that the next one is due
        self._trouble = ""
        self.newest = ""

    def appended(self) -> None:
        """To be called when all entries of the log are in the history: notes it if one is due."""
        history, step = self._state.history, self._elsewhere or self._due
        done = max(self._tried, history.first_tick)
        if not self.is_free or not done < step <= history.tick or not self._may_be_taken(step):
            return
        attempt = self._attempt_of(step)
        self._tried, self._attempt, self._elsewhere = step, attempt, 0
        self._pin(attempt.objects)
        self._wanted.put_nowait(attempt)

    @property
    def is_free(self) -> bool:
        """Whether no attempt is under way."""
        return self._attempt is None

    @property
    def _due(self) -> int:
        """The newest step that the tick has passed, of the plan's and the one asked for."""
        plan, tick = self._machine.run_file.checkpoint, self._state.history.tick
        if plan is None:
            return 0
        asked = self._state.expected.checkpoint
        planned = tick // plan.every * plan.every if plan.every else 0
        return max(planned, asked if asked <= tick else 0)

    def _may_be_taken(self, due: int) -> bool:
        """Not while values are lost or unread, and not at the end, where the export is."""
        state, end = self._state, self._state.ending.length.steps
        whole = state.is_whole and state.history.heads.keys() >= set(state.fragments)
        return whole and not state.over and (end is None or due < end)

    def _attempt_of(self, step: int) -> Attempt:
        state = self._state
        assert state.layout is not None, "versions without a layout"
        return Attempt(
            step=step,
            shard=state.number,
            shards=state.run_file.shards,
            layout=state.layout,
            snapshot=self._machine.journal.snapshot_of(state.history),
            restore_from=state.run_file.restore_from,
            uid=state.run_file.uid,
        )

    async def work(self) -> None:
        plan, open_place = self._machine.run_file.checkpoint, self._machine.open_place
        if plan is None or open_place is None:
            return
        place = open_place(plan.url)
        while True:
            attempt = await self._wanted.get()
            try:
                await self._take(place, plan, attempt)
            except OvertakenError:
                log.warning("a checkpoint was cut short", step=attempt.step, reason=self._trouble)
                self._release(attempt)

    async def _take(self, place: Place, plan: Checkpoints, attempt: Attempt) -> None:
        """Raise OvertakenError."""
        await self._copy(place, attempt)
        self._pin(frozenset())
        await self._finish(place, attempt)
        newest = await self._do(attempt, partial(copies.prune, place, attempt, plan.keep))
        if newest is not None:
            self.newest = f"{place.url}/{copies.step_name(newest)}"
        self._release(attempt)
        if newest != attempt.step:
            log.warning("a checkpoint was left for a newer one", step=attempt.step)
            return
        log.info("a checkpoint is whole", url=self.newest)
        if plan.model and not attempt.shard:
            scratch, wire = self._machine.scratch, self._machine.run_file.sync.wire_down
            render = partial(restoring.render, place, attempt, scratch, wire)
            await self._do(attempt, render, Thread.RENDER)

    async def _copy(self, place: Place, attempt: Attempt) -> None:
        store, clock = self._machine.store, self._machine.journal.clock
        if await self._do(attempt, partial(copies.is_taken, place, attempt)):
            return
        for each in copies.works(place, store, attempt, clock):
            self._say_if_late(attempt, [attempt.shard])
            await self._do(attempt, each)

    async def _finish(self, place: Place, attempt: Attempt) -> None:
        """Until it is whole, or another shard has a part of a newer one instead."""
        finish = partial(copies.finish, place, attempt, self._machine.journal.clock)
        while lacking := await self._do(attempt, finish, patient=True):
            newer = partial(copies.newer_elsewhere, place, attempt)
            self._elsewhere = await self._do(attempt, newer, patient=True)
            if self._elsewhere:
                return
            self._say_if_late(attempt, lacking)
            await asyncio.sleep(LOOK_SECONDS)

    def _release(self, attempt: Attempt) -> None:
        if self._attempt is attempt:  # else the next one is noted already
            self._attempt = None
            self._pin(frozenset())

    def _say_if_late(self, attempt: Attempt, lacking: Sequence[int]) -> None:
        if self._due > attempt.step > self._late:
            self._late = attempt.step
            log.warning(
                "the next checkpoint is due, and waits until this one is whole",
                step=attempt.step,
                due=self._due,
                lacks_parts_of_shards=lacking,
            )

    async def _do(
        self,
        attempt: Attempt,
        work: Callable[[], T],
        thread: Thread = Thread.TIDY,
        *,
        patient: bool = False,
    ) -> T:
        """In a thread, again while the place is away. Raises OvertakenError.

        Where objects wait for it, which is not `patient`, only as long as no later one is due.
        """
        while True:
            try:
                done = await self._background.run(thread, work)
            except StoreError as error:
                self._machine.metrics.store_troubles.labels(error.kind).inc()
                self._note(f"checkpoint of step {attempt.step}: {error}")
                final = not isinstance(error, StoreUnavailable)
                if final or (not patient and self._due > attempt.step):
                    raise OvertakenError from error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._note("")
                return done

    def _note(self, trouble: str) -> None:
        """Log it once, and show it in the Status until something of a checkpoint succeeds."""
        before, self._trouble = self._trouble, trouble
        if before:
            self._background.troubles.remove(before)
        if trouble:
            self._background.troubles.append(trouble)
        if trouble and trouble != before:
            log.error("a checkpoint is not taken", trouble=trouble)


class Restoring:
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

    async def perform(self, effect: RestoreEffect, values: "TensorValues | None") -> None:
        if isinstance(effect, StorePrevious):
            assert values is not None, "a version without values"
            await self._take_previous(effect, values)
            return
        try:
            if isinstance(effect, FindCheckpoint):
                await self._find(effect)
            elif values is not None:  # there was memory for the model
                await self._seed(values)
        except (RestoreRefusedError, SpecError) as error:
            log.error("the run cannot begin with the checkpoint", reason=str(error))
            self._feed([EndProcess(ExitCode.RESTORE_REFUSED, str(error))])

    async def _take_previous(self, effect: StorePrevious, values: "TensorValues") -> None:
        history, store = self._shard.state.history, self._machine.store
        before = history.previous[effect.slice]
        making = values.begin_previous(before, effect, store, history.run, history.epoch)
        try:
            await self._background.until_stored(Thread.MERGE, making.compute)
        except (StoreCorrupt, StoreMissing) as trouble:
            log.error(
                "the version before it is lost, too", slice=effect.slice, trouble=str(trouble)
            )
            self._machine.metrics.store_troubles.labels(trouble.kind).inc()
            self._feed(self._shard.previous_lost(effect.slice, self._machine.clock()))
            return
        write = partial(making.write, store)
        stored = await self._background.until_stored(Thread.MERGE, write)
        digest, name, now = stored.digest, stored.object, self._machine.clock()
        self._feed(self._shard.merged(effect.slice, digest, name, now))

    async def _find(self, effect: FindCheckpoint) -> None:
        found = await self._of_this_job() if effect.mine else None
        if found is None and not effect.place:
            log.warning("nobody and no checkpoint has a run of this job: a new one begins")
            self._feed(self._shard.no_checkpoint())
            return
        found = found or await self._open(effect.place)
        kept = await self._background.until_stored(Thread.MERGE, found.data_states)
        origin = VersionOrigin(
            run=effect.run,
            shard=self._machine.shard,
            slice=0,
            number=0,
            epoch=self._shard.state.term.epoch,
        )
        name = ""
        if kept:
            write = partial(versions.write_data_states, self._machine.store, origin, kept)
            name = await self._background.until_stored(Thread.MERGE, write)
        log.info("the run begins with a checkpoint", url=found.url, tick=found.tick)
        about = FoundCheckpoint(
            url=found.url,
            run=found.run,
            tick=found.tick,
            cursors=found.cursors,
            trained=found.trained,
            data_states=dict.fromkeys(kept, name),
            kept=kept,
        )
        self._feed(self._shard.checkpoint_found(about))

    async def _of_this_job(self) -> Checkpoint | None:
        """Return the newest one of its own runs of which no process or store has anything left."""
        run_file, open_place = self._machine.run_file, self._machine.open_place
        assert run_file.checkpoint is not None, "no place of its own"
        assert open_place is not None, "no place can be opened"
        place = open_place(run_file.checkpoint.url)
        find = partial(restoring.find_of_job, place, run_file)
        found = await self._background.until_stored(Thread.MERGE, find)
        if found is not None:
            log.warning(
                "a run of this job is lost: one begins with its newest checkpoint", lost=found.run
            )
        return found

    async def _open(self, place: str) -> Checkpoint:
        assert self._machine.open_place is not None, "no place can be opened"
        find = partial(restoring.find, place, self._machine.open_place)
        return await self._background.until_stored(Thread.MERGE, find)

    async def _seed(self, values: "TensorValues") -> None:
        history, shard = self._shard.state.history, self._machine.shard
        found = await self._open(history.checkpoint)
        if differs := restoring.difference(found, values.layout):
            reason = f"RestoreRefused: {found.url}: {differs}"
            log.error("a learner has another model than the checkpoint", reason=reason)
            digest, code = values.layout.digest, pb.OTHER_CHECKPOINT
            self._feed(self._shard.does_not_fit(digest, reason, code))
            return
        filled = {
            fragment: {"master": each.master, "momentum": each.momentum}
            for fragment, each in values.slices.items()
        }
        fill = partial(restoring.fill, found, values.layout, shard, filled)
        await self._background.until_stored(Thread.MERGE, fill)
        stored = []
        for making in values.begin_restored(history.run, history.epoch):
            await self._background.run(Thread.MERGE, making.compute)
            write = partial(making.write, self._machine.store)
            stored.append(await self._background.until_stored(Thread.MERGE, write))
        digests, objects = zip(*((each.digest, each.object) for each in stored), strict=True)
        merges = restoring.merges(found, values.layout, shard)
        self._feed(self._shard.seeded(digests, objects, merges))
