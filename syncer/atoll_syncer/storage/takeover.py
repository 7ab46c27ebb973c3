"""A process waits until it may take a shard over; the log fences, the heartbeat is for peace.

Safety comes from the log alone (rule 20). A term begins with an entry of a higher epoch, and an
entry is created only by a process that has read the one before it, at a position that can be
taken once. So whatever a newcomer believes about the owner, only one of the two gets the next
position: the other finds it taken, is deposed and exits. Pauses, wrong clocks and partitions
cannot change that. An entry of the old term either precedes the new term's record, and counts,
or it cannot be created any more.

The rest of this module only keeps a newcomer from deposing an owner that works well.

    newcomer reads the log
        |-- no term yet --------------------------------------------> TAKE_OVER
        |-- the last term is this pod's (a restart) ----------------> TAKE_OVER
        `-- the last term is another pod's
                |-- its process has said that it ends --------------> TAKE_OVER
                |-- neither beat nor entry for T -------------------> TAKE_OVER
                `-- else -------------------------------------------> WAIT, and look again

- The heartbeat has a count, so a newcomer sees progress without comparing clocks; times are
  measured by the newcomer's own monotonic clock, from its own first look, after each look.
- T is PERIODS_MAX of the period that the heartbeat names, and doubles with each takeover of the
  last minute, to PATIENCE_MAX_SECONDS: two processes on a store that is slower than they think
  would take the shard from each other for ever. The last minute is the one before the newest time
  that the log or a heartbeat names; a wrong clock there makes a newcomer too patient or too hasty.
- Who was deposed may wait, and own the shard again.

The caller must hand the history that `wait_for_turn` returns to the rules unchanged, and begin
its term by appending to the same journal: the append goes to the position after the last entry
that was read, which is what makes it safe.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from atoll_syncer.model.history import History
from atoll_syncer.storage.files import StoreEmptied, StoreUnavailable
from atoll_syncer.storage.journal import Heartbeat, Journal

PERIODS_MAX: Final = 2.5  # of a heartbeat, without a sign of life
PATIENCE_MAX_SECONDS: Final = 30.0
TAKEOVERS_SECONDS: Final = 60.0  # in which they count
LOOK_SECONDS: Final = 0.5  # a store of files or objects tells nobody of a heartbeat
CATCH_UP_SECONDS: Final = 10.0  # so that little of the log is to be read when the owner is gone

log = structlog.get_logger()


def patience(period: float, takeovers: Iterable[float], newest: float) -> float:
    """T, in seconds; `takeovers` and the `newest` time that is known are in Unix seconds."""
    recent = sum(newest - each < TAKEOVERS_SECONDS for each in takeovers)
    return min(PERIODS_MAX * period * 2.0**recent, PATIENCE_MAX_SECONDS)


def takeover(
    pod: str,
    history: History,
    *,
    released: bool,
    silent_seconds: float,
    patience: float,
) -> tuple[bool, str]:
    """Whether `pod` takes the shard over now, and why.

    `released`: the owner's process has said that it ends; it was silent for `silent_seconds`.
    """
    owner = history.pod
    if not owner:
        return True, "no process has had it yet"
    if owner == pod:
        return True, "this pod had it last"
    if released:
        return True, f"pod {owner} has ended in order"
    if silent_seconds >= patience:
        return True, f"no sign of life of pod {owner} for {patience:g} s"
    return False, f"pod {owner} has the shard"


InThread = Callable[[Callable[[], tuple[bool, str]]], Awaitable[tuple[bool, str]]]


class HeartbeatWatch:
    """What a newcomer sees of the heartbeat and of the log, by its own clock.

    While the heartbeat goes on a look is one read, and the log is read now and then: in a bucket
    each request is paid for. `period` is that of an owner whose heartbeat is not there. `clock`
    counts monotonic seconds.
    """

    def __init__(
        self,
        journal: Journal,
        pod: str,
        clock: Callable[[], float],
        *,
        period: float,
    ) -> None:
        self.journal, self._pod, self._clock = journal, pod, clock
        self._period = period
        self._beat: Heartbeat | None = None
        self._beat_at = self._seen_at = clock()
        self._position, self._read_at = -1, -math.inf  # of the log, as it was read; -1: not yet

    def look(self) -> tuple[bool, str]:
        """Whether to take over, and why. Raises StoreUnavailable: look again."""
        beat = self.journal.last_beat()
        if beat != self._beat:
            self._beat, self._beat_at = beat, self._clock()
            self._seen_at = self._beat_at
        is_behind = self._clock() - self._read_at >= CATCH_UP_SECONDS
        if is_behind or not self._owners_lives():
            self.journal.read()
            self._read_at = self._clock()
            if self.journal.position != self._position:
                self._seen_at = self._appended_at()
                self._position = self.journal.position
        return takeover(
            self._pod,
            self.journal.history,
            released=self._owners and self._beat is not None and self._beat.released,
            silent_seconds=self._clock() - self._seen_at,
            patience=self._patience,
        )

    def _appended_at(self) -> float:
        """When the newest entry came, by this clock.

        The log is read when the heartbeat has stopped, so its entries may be older than that. The
        owner has dated them and its heartbeat by one clock.
        """
        now, beat = self._clock(), self._beat
        if self._position < 0 or beat is None or not self._owners:
            return now
        return min(now, self._beat_at + max(0.0, self.journal.time - beat.time))

    def _owners_lives(self) -> bool:
        """Whether the heartbeat alone says that the owner whom the log names still lives."""
        beat = self._beat
        if beat is None or beat.released or not self._owners:
            return False
        return self._clock() - self._seen_at < self._patience

    @property
    def _owners(self) -> bool:
        """Whether the heartbeat is that of the newest term that was read."""
        beat, history = self._beat, self.journal.history
        named = history.instance, history.epoch
        return beat is not None and (beat.instance, beat.epoch) == named

    @property
    def _patience(self) -> float:
        beat, journal = self._beat, self.journal
        if beat is None or not self._owners:
            return patience(self._period, journal.takeovers, journal.time)
        return patience(beat.period, journal.takeovers, max(beat.time, journal.time))


async def wait_for_turn(watch: HeartbeatWatch, in_thread: InThread) -> History:
    """Return what the log adds up to when this pod may take the shard over.

    `in_thread` does each look outside of the event loop, because a disk may take long. Raises
    StoreEmptied, and StoreCorrupt for the log of a newer version.
    """
    said = ""
    while True:
        try:
            is_its_turn, reason = await in_thread(watch.look)
        except StoreEmptied:
            raise  # who is started after this one opens what is there by then
        except StoreUnavailable as error:
            is_its_turn, reason = False, str(error)
        if is_its_turn:
            log.info("takes the shard over", reason=reason)
            return watch.journal.history
        if reason != said:
            said = reason
            log.info("waits to take the shard over", reason=said)
        await asyncio.sleep(LOOK_SECONDS)
