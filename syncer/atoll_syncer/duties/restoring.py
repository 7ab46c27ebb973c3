"""A run begins with a checkpoint: what its parts say, then the values of this shard (rule 43).

Also the version before a damaged one, which this shard's own store has (rule 22).

What is damaged ends the process for good, with the reason. A learner whose model is not that of the
checkpoint is refused, and the next one is asked.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_syncer.checkpoints import restoring
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.checkpoint import FoundCheckpoint
from atoll_syncer.model.effects import (
    Effect,
    EndProcess,
    FindCheckpoint,
    RestoreEffect,
    StorePrevious,
)
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import data_states
from atoll_syncer.storage.store import StoreCorrupt, StoreMissing
from atoll_syncer.storage.versions import VersionOrigin

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import TensorValues

log = structlog.get_logger()


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
            write = partial(data_states.write, self._machine.store, origin, kept)
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
        """The newest one of its own runs, of which no process and no store has anything left."""
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
