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
        |-- this pod had a term, and another pod followed ----------> LEAVE (exit 77)
        `-- the last term is another pod's
                |-- its heartbeat has not changed for T ------------> TAKE_OVER
                `-- else -------------------------------------------> WAIT, and look again

- The owner renews the heartbeat every `Store.heartbeat_seconds` (1 or 2) and reads the log's end
  each time. The heartbeat has a count, so a newcomer sees progress without comparing clocks; times
  are measured by the newcomer's own monotonic clock, from its own first look.
- T is PATIENCE_SECONDS: long enough for a slow disk, short enough that a shard is back before
  learners have waited for long.
- A pod whose term was followed by another pod's never owns the shard again. Otherwise two pods
  could take it from each other for ever. The operator replaces such a pod.

The caller must hand the history that `wait_for_turn` returns to the rules unchanged, and begin
its term by appending to the same journal: the append goes to the position after the last entry
that was read, which is what makes it safe.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

import structlog

from atoll_syncer.model.history import History
from atoll_syncer.storage.journal import Heartbeat, Journal
from atoll_syncer.storage.store import StoreUnavailable

PATIENCE_SECONDS: Final = 5.0  # of a newcomer without a sign of life
LOOK_SECONDS: Final = 0.5  # a store of files or objects tells nobody of a heartbeat

log = structlog.get_logger()


class SupersededError(Exception):
    """Another pod has followed this one: it never owns the shard again."""


class Action(Enum):
    """What a newcomer does now."""

    TAKE_OVER = "take over"
    WAIT = "wait"
    LEAVE = "leave"  # exit 77


def takeover(pod: str, history: History, *, silent_seconds: float) -> tuple[Action, str]:
    """Whether `pod` takes the shard over, which has seen no new heartbeat for so long, and why."""
    owner = history.pod
    if not owner:
        return Action.TAKE_OVER, "no process has had it yet"
    if owner == pod:
        return Action.TAKE_OVER, "this pod had it last"
    if pod in history.followed:
        return Action.LEAVE, f"pod {owner} has followed this pod"
    if silent_seconds >= PATIENCE_SECONDS:
        return Action.TAKE_OVER, f"no heartbeat of pod {owner} for {PATIENCE_SECONDS:g} s"
    return Action.WAIT, f"pod {owner} has the shard"


InThread = Callable[[Callable[[], tuple[Action, str]]], Awaitable[tuple[Action, str]]]


class HeartbeatWatch:
    """What a newcomer sees of the log and of the heartbeat next to it, by its own clock."""

    def __init__(self, journal: Journal, pod: str, now: float) -> None:
        self.journal, self.pod = journal, pod
        self._beat: Heartbeat | None = None
        self._beat_seen_at = now

    def look(self, now: float) -> tuple[Action, str]:
        """Read on, and decide. Raises StoreUnavailable: look again."""
        history = self.journal.read()
        beat = self.journal.last_beat()
        if beat != self._beat:
            self._beat, self._beat_seen_at = beat, now
        return takeover(self.pod, history, silent_seconds=now - self._beat_seen_at)


async def wait_for_turn(
    journal: Journal, pod: str, in_thread: InThread, clock: Callable[[], float]
) -> History:
    """What the log adds up to when this pod may take the shard over. Raises SupersededError.

    `in_thread` does each look outside of the event loop, because a disk may take long; `clock`
    counts monotonic seconds. Raises StoreCorrupt for the log of a newer version of Atoll.
    """
    watch, said = HeartbeatWatch(journal, pod, clock()), ""
    while True:
        try:
            action, reason = await in_thread(lambda: watch.look(clock()))
        except StoreUnavailable as error:
            action, reason = Action.WAIT, str(error)
        if action is Action.TAKE_OVER:
            return journal.history
        if action is Action.LEAVE:
            raise SupersededError(reason)
        if reason != said:
            said = reason
            log.info("waits to take the shard over", reason=said)
        await asyncio.sleep(LOOK_SECONDS)
