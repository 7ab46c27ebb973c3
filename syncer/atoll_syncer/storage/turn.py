"""Waits for this process's turn to reign over a shard (PROTOCOL.md, rule 20)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from atoll_syncer.model.log import Entry, Reign
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.store import StoreUnavailable
from atoll_syncer.storage.takeover import Decision, Heartbeat, Turn, View, decide

HEARTBEAT_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 5.0  # of a newcomer without a sign of life
LOOK_SECONDS: Final = 0.5

InThread = Callable[[Callable[[], Decision]], Awaitable[Decision]]

log = structlog.get_logger()


class SupersededError(Exception):
    """Another pod has followed this one: it never reigns again."""


class Watch:
    """A newcomer's look at the log and at the heartbeat in it, by its own clock."""

    def __init__(self, journal: Journal, pod: str, now: float) -> None:
        self.journal, self.pod = journal, pod
        self.entries: list[Entry] = []
        self._beat: Heartbeat | None = None
        self._beat_seen_at = now

    def look(self, now: float) -> Decision:
        """Read on, and decide. Raises StoreUnavailable: look again."""
        self.entries += self.journal.read()
        beat = self.journal.last_beat()
        if beat != self._beat:
            self._beat, self._beat_seen_at = beat, now
        reigns = [entry for entry in self.entries if isinstance(entry, Reign)]
        view = View(
            pod=self.pod,
            reigns=reigns,
            beat=beat,
            beat_seen_at=self._beat_seen_at,
            knocks={},  # nobody can dial a process that does not serve yet
        )
        return decide(view, patience_seconds=PATIENCE_SECONDS, now=now)


async def wait_for_turn(
    journal: Journal, pod: str, in_thread: InThread, clock: Callable[[], float]
) -> list[Entry]:
    """The whole log, read when it is this pod's turn. Raises SupersededError.

    `in_thread` computes each look outside of the event loop, because a disk may take long;
    `clock` counts monotonic seconds.
    """
    watch, said = Watch(journal, pod, clock()), ""
    while True:
        try:
            decision = await in_thread(lambda: watch.look(clock()))
        except StoreUnavailable as error:
            decision = Decision(turn=Turn.WAIT, reason=str(error))
        if decision.turn is Turn.REIGN:
            return watch.entries
        if decision.turn is Turn.LEAVE:
            raise SupersededError(decision.reason)
        if decision.reason != said:
            said = decision.reason
            log.info("waits for its turn", reason=said)
        await asyncio.sleep(LOOK_SECONDS)
