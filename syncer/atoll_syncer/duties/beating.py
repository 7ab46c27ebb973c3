"""The owner of a shard says that it lives, and ends when it has the shard no more (rule 20).

In a thread of its own: an entry waits for no heartbeat. Each beat names the time to the next one,
which is longer than the period where the store takes longer, so that a newcomer waits longer too.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

import structlog

from atoll_protos.exits import ExitCode
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.port import Machine
from atoll_syncer.model.state import ShardState
from atoll_syncer.storage.files import StoreEmptied, StoreError
from atoll_syncer.storage.journal import Heartbeat

GOODBYE_SECONDS: Final = 2.0

log = structlog.get_logger()


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
        """A beat that fails is left out.

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
        """The last beat: who follows takes over at once. No entry may follow."""
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
