"""Takes a shard's parts of checkpoints, beside its work (rule 42).

    an entry's tick has passed a multiple of `every`, or the step that somebody has asked for
                                                     --> the history is noted, its objects stay
    thread TIDY: object after object, part.json      --> they may go again
    then every few seconds: is it whole?             --> what is older is removed
    thread RENDER, of shard 0: its model

It decides nothing, and nobody waits for it: between two objects the thread does other work. What
fails is logged, counted, shown in the Status, and tried again until the next one is due; a full
disk gets no second try, since what has to stay would keep it full.
"""

import asyncio
from collections.abc import Callable, Set
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
    """The next checkpoint is due, or this one cannot be taken."""


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
        self._copying: Attempt | None = None
        self._tried = 0
        self._trouble = ""
        self.newest = ""

    def appended(self) -> None:
        """To be called when all entries of the log are in the history: notes it if one is due."""
        due, done = self._due, max(self._tried, self._state.history.first_tick)
        if not self.is_free or due <= done or not self._may_be_taken(due):
            return
        attempt = self._attempt(due)
        self._tried, self._copying = due, attempt
        self._pin(attempt.objects)
        self._wanted.put_nowait(attempt)

    @property
    def is_free(self) -> bool:
        """Whether no part is being copied."""
        return self._copying is None

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

    def _attempt(self, step: int) -> Attempt:
        state = self._state
        assert state.layout is not None, "versions without a layout"
        return Attempt(
            step=step,
            shard=state.number,
            shards=state.run_file.shards,
            layout=state.layout,
            snapshot=self._machine.journal.snapshot_of(state.history),
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
            finally:
                self._release(attempt)

    async def _take(self, place: Place, plan: Checkpoints, attempt: Attempt) -> None:
        """Raises OvertakenError."""
        store, clock = self._machine.store, self._machine.journal.clock
        if not await self._do(attempt, partial(copies.is_taken, place, attempt)):
            for each in copies.works(place, store, attempt, clock):
                await self._do(attempt, each)
        self._release(attempt)
        finish = partial(copies.finish, place, attempt, clock)
        while not await self._do(attempt, finish):
            if self._due > attempt.step:
                break
            await asyncio.sleep(LOOK_SECONDS)
        newest = await self._do(attempt, partial(copies.prune, place, attempt, plan.keep))
        if newest is not None:
            self.newest = f"{place.url}/{copies.step_name(newest)}"
        if newest != attempt.step:
            log.warning("a checkpoint lacks parts of other shards", step=attempt.step)
            return
        log.info("a checkpoint is whole", url=self.newest)
        if plan.model and not attempt.shard:
            scratch, wire = self._machine.scratch, self._machine.run_file.sync.wire_down
            render = partial(rendering.render, place, attempt, scratch, wire)
            await self._do(attempt, render, Thread.RENDER)

    def _release(self, attempt: Attempt) -> None:
        if self._copying is attempt:  # else the next one is being copied
            self._copying = None
            self._pin(frozenset())

    async def _do(self, attempt: Attempt, work: Callable[[], T], thread: Thread = Thread.TIDY) -> T:
        """In a thread, again while it fails and no later one is due. Raises OvertakenError."""
        while True:
            try:
                done = await self._background.run(thread, work)
            except StoreError as error:
                self._machine.metrics.store_troubles.labels(error.kind).inc()
                self._note(f"checkpoint of step {attempt.step}: {error}")
                final = not isinstance(error, StoreUnavailable)
                if final or self._due > attempt.step:
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
