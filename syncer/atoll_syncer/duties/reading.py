"""Reads a shard's values back, beside its work (rule 45).

Slice after slice in the thread READ, the one that is due next first; the rules hear of each. A
store that cannot be reached is asked again: only what it says is gone or damaged is lost.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.effects import Effect
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.store import StoreCorrupt, StoreMissing

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import TensorValues

log = structlog.get_logger()


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
                if await self._is_followed():
                    return
                log.error("committed data is lost", slice=fragment, trouble=str(trouble))
                self._machine.metrics.store_troubles.labels(trouble.kind).inc()
                self._feed(shard.lost({fragment}, clock()))
            else:
                self._feed(shard.read_back(fragment, clock()))
        log.info("values are read back", slices=count, seconds=round(clock() - began, 3))

    async def _is_followed(self) -> bool:
        """Whether another process has the shard, which removes what it does not need (rule 19)."""
        journal = self._machine.journal
        return await self._background.until_stored(Thread.READ, journal.is_deposed)
