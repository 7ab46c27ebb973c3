"""The owner of a shard says that it lives, and ends when it has the shard no more (rule 20).

In a thread of its own: an entry waits for no heartbeat. Each beat names the time to the next one,
which is longer than the period where the store takes longer, so that a newcomer waits longer too.

Where another process waits, the owner looks four times a second for how long it has heard nothing:

- of its store. The other process takes the shard over T after the newest beat. So an owner to whom
  the store has not answered for T listens no more, and learners find the other one. It keeps its
  term, and listens again when the store answers, unless another process has followed.
- of its learners (rule 46). It beats on, so nobody would take the shard over. It says goodbye.

A look that comes late counts like any other. So only time in which this process ran itself counts:
after a pause, or on a machine that is busy, what has come meanwhile is read first.
"""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Final

import structlog

from atoll_protos.exits import ExitCode
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules import answers
from atoll_syncer.storage import takeover
from atoll_syncer.storage.journal import Heartbeat
from atoll_syncer.storage.store import StoreEmptied, StoreError, StoreFull

STANDBY_PERIOD_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 0.25
ALONE_SECONDS_MIN: Final = 60.0  # of a term in which no learner has joined
GOODBYE_SECONDS: Final = 2.0

log = structlog.get_logger()


class Silence:
    """For how long nothing has come, in seconds in which this process ran."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._heard: object = None

    def look(self, heard: object) -> float:
        """Call every WATCH_SECONDS; `heard` is another one when something has come."""
        self.seconds = 0.0 if heard != self._heard else self.seconds + WATCH_SECONDS
        self._heard = heard
        return self.seconds


class Beating:
    """`end` ends the process; `deposed` is called when another one has followed.

    `received` is how many bytes have come from learners in bulk.
    """

    def __init__(
        self,
        state: ShardState,
        machine: Machine,
        background: Background,
        end: Callable[[ExitCode, str], None],
        deposed: Callable[[], None],
        received: Callable[[], int],
    ) -> None:
        self._state, self._machine, self._background = state, machine, background
        self._end, self._deposed, self._received = end, deposed, received
        self._beats = itertools.count(1)
        self._period = period_of(machine)
        self._promised = self._period, 0.0  # by the newest beat: its period, and its time
        self._answers = 0
        self.store_away, self.store_back = asyncio.Event(), asyncio.Event()  # one of them is set
        self.store_back.set()
        self._ended = False
        self.unheard = False  # it ends because it hears no learner

    def reached(self) -> None:
        """The store has answered; in any thread."""
        self._answers += 1

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
                if isinstance(error, StoreFull):
                    self.reached()
            await asyncio.sleep(self._period)
            now = self._machine.clock()
            period, began_at = max(self._period, now - began_at), now

    async def watch(self) -> None:
        """Where another process waits, one that is cut off leaves it the learners, or the shard."""
        store, learners, alone = Silence(), Silence(), self._alone_seconds()
        while self._machine.standby:
            await asyncio.sleep(WATCH_SECONDS)
            self._note_store(store.look(self._answers))
            heard = answers.last_heard(self._state), self._received()
            is_away, due = self.store_away.is_set(), self._learners_due(alone)
            if learners.look(object() if is_away else heard) >= due:  # away, nobody reaches it
                self.unheard = True
                reason = f"no learner was heard for {due:g} s, and another process waits"
                self._end(ExitCode.TRY_AGAIN, reason)
                return

    def _note_store(self, silent_seconds: float) -> None:
        is_away, patience = self.store_away.is_set(), self._patience(self._promised[0])
        if is_away and not silent_seconds:
            log.info("the store answers again")
            self.store_away.clear()
            self.store_back.set()
        elif not is_away and silent_seconds >= patience:
            log.warning("the store is out of reach: listens no more", seconds=patience)
            self.store_back.clear()
            self.store_away.set()

    def _learners_due(self, alone: float) -> float:
        """In how many seconds of silence the learners count as cut off; infinite: they never do."""
        if answers.last_heard(self._state) is None:
            return math.inf if self._state.history.ended else alone
        period = answers.word_seconds(self._state)
        return math.inf if period is None else self._patience(period)

    def _patience(self, period: float) -> float:
        """T of what comes in such periods, as who waits reckons it."""
        journal, (_, time) = self._machine.journal, self._promised
        return takeover.patience(period, journal.takeovers, max(time, journal.time))

    def _alone_seconds(self) -> float:
        """After which a term that no learner has joined ends: the other process may be in reach.

        It is as long as the shard had been without a commit before, so it doubles each time.
        """
        journal = self._machine.journal
        if not journal.commits:
            return math.inf  # nobody was here lately
        return max(ALONE_SECONDS_MIN, journal.time - journal.commits[-1].time)

    async def goodbye(self) -> None:
        """The last beat: who waits takes over at once. No entry may follow."""
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
            self.reached()
            journal.beat(beat)
            self._promised = period, beat.time
            if not self.store_away.is_set():  # else it was asked before, and may have been followed
                self.reached()
            return False

        return await self._background.run(Thread.BEAT, work)


def period_of(machine: Machine) -> float:
    """Of a bucket's heartbeats each is paid for; one a second is worth it where somebody waits."""
    return STANDBY_PERIOD_SECONDS if machine.standby else machine.store.heartbeat_seconds
