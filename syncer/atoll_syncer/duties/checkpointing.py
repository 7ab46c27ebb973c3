"""Takes a shard's parts of checkpoints, beside its work (rule 42).

    an entry's tick has passed a multiple of `every`, or the step that somebody has asked for
                                                     --> the history is noted, its objects stay
    thread TIDY: object after object, part.json      --> they may go again
    then every few seconds: is it whole?             --> what is older is removed
    thread RENDER, of shard 0: its model

It decides nothing, and training never waits for it: between two objects the thread does other work.
What fails is logged, counted, shown in the Status, and tried again until the next one is due; a
full disk gets no second try, since what has to stay would keep it full.

The next one waits until this one is whole: where copying takes longer than `every`, shards that
each took what is newest would take no step together. A shard leaves an attempt that is not whole
only for a newer step of which another shard, started again or cut short, has a part; it takes
exactly that one. So of two steps that shards begin side by side the newer becomes whole.
"""

import asyncio
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Final, TypeVar

import structlog

from atoll_protos.job.run_file import Checkpoints
from atoll_syncer.checkpoints import copies, rendering
from atoll_syncer.checkpoints.copies import Attempt
from atoll_syncer.checkpoints.places import Place
from atoll_syncer.duties.background import RETRY_SECONDS, Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.state import ShardState
from atoll_syncer.storage.store import StoreError, StoreUnavailable

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
        """Raises OvertakenError."""
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
            render = partial(rendering.render, place, attempt, scratch, wire)
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
