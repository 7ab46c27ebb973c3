"""Keys of jobs that want a pass: one pass a key at a time, back-off with jitter, own resync."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

Key = tuple[str, str]  # namespace, name
Reconcile = Callable[[Key], Awaitable[float | None]]

BACKOFF_SECONDS = (1.0, 60.0)
SPACING_SECONDS = 0.3  # between two passes of one job, however many events come
RESYNC_SECONDS = 300.0
WORKERS = 8

log = structlog.get_logger()


def backoff(failures: int, chance: float) -> float:
    """Seconds before the next try; `chance` in 0..1 spreads them over the upper half."""
    low, high = BACKOFF_SECONDS
    whole = min(high, low * 2.0 ** min(failures, 10))
    return max(low, whole * (0.5 + 0.5 * chance))


@dataclass(slots=True, kw_only=True)
class Queue:
    """Level-triggered: a key says only that something may have changed."""

    reconcile: Reconcile
    due: dict[Key, float] = field(default_factory=dict)
    failures: dict[Key, int] = field(default_factory=dict)
    running: dict[Key, float] = field(default_factory=dict)  # begun at
    ended: dict[Key, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Ask for a pass, no later than in `delay` seconds."""
        now = time.monotonic()
        at = max(now + delay, self.ended.get(key, 0.0) + SPACING_SECONDS)
        self.due[key] = min(at, self.due.get(key, at))
        self.changed.set()

    async def run(self) -> None:
        """For ever."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                now = time.monotonic()
                for key in self._ready(now)[: WORKERS - len(self.running)]:
                    del self.due[key]
                    self.running[key] = now
                    task = asyncio.create_task(self._pass(key))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), self._pause(now))
        finally:
            for task in tasks:
                task.cancel()

    def _ready(self, now: float) -> list[Key]:
        ready = [k for k, at in self.due.items() if at <= now and k not in self.running]
        return sorted(ready, key=lambda key: self.due[key])

    def _pause(self, now: float) -> float:
        if len(self.running) >= WORKERS:
            return RESYNC_SECONDS
        waits = [at - now for key, at in self.due.items() if key not in self.running]
        return max(0.01, min(waits, default=RESYNC_SECONDS))

    async def _pass(self, key: Key) -> None:
        try:
            again = await self.reconcile(key)
        except Exception as error:  # the top of the loop: logged once, tried again
            self.failures[key] = self.failures.get(key, 0) + 1
            delay = backoff(self.failures[key] - 1, random.random())
            text = f"{type(error).__name__}: {error}"
            namespace, job = key
            log.warning("pass failed", namespace=namespace, job=job, error=text, retry=delay)
            again = delay
        else:
            self.failures.pop(key, None)
        finally:
            self.running.pop(key, None)
            self.ended[key] = time.monotonic()
        if again is None:
            self.ended.pop(key, None)
            self.changed.set()
        else:
            self.add(key, again)
