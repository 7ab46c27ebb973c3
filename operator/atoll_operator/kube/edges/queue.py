"""The work queue: which job gets a pass next, and when.

The queue holds keys of jobs, never events: a key says only that something may have changed.

- Adding a key that is due keeps the earlier time, so any number of events is one pass. An event
  during a pass makes the key due again, so nothing that happened after it has read is missed.
- At most one pass per key runs at a time, and at most WORKERS in all, but one of each namespace in
  any case: so long passes of one tenant hold up no other's. Those that are due begin in turn of
  their namespaces. Two of one key are at least SPACING_SECONDS apart. A pass returns the seconds
  until the next one; None: an event brings it.
- A pass that raises is logged with its traceback and tried again after `backoff`, and not before
  the API server wants it (Retry-After). Events do not shorten that time, because a pass that failed
  half-way has caused some itself; an edit of the job does (`lift`). Every exception is caught: a
  fault in one job must not stop the others.

    add ──> due ── its time has come, a worker is free ──> running ── returned seconds ──> due
                                                             │ raised ── back-off ───────> due
                                                             └─ returned None ──> forgotten
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from atoll_operator.kube.observed.cache import Key
from atoll_operator.kube.observed.memory import doubled

Reconcile = Callable[[Key], Awaitable[float | None]]

BACKOFF_SECONDS = (1.0, 60.0)
SPACING_SECONDS = 0.3  # between two passes of one job, however many events come
IDLE_SECONDS = 300.0  # between two looks at an empty queue
WORKERS = 8

log = structlog.get_logger()


def backoff(failures: int, chance: float) -> float:
    """Seconds before the next try; `chance`, in 0..1, spreads them over the upper half."""
    return max(BACKOFF_SECONDS[0], doubled(BACKOFF_SECONDS, failures) * (0.5 + 0.5 * chance))


@dataclass(slots=True, kw_only=True)
class Queue:
    """Keys that are due and passes that run; times are monotonic seconds."""

    reconcile: Reconcile
    due: dict[Key, float] = field(default_factory=dict)
    failures: dict[Key, int] = field(default_factory=dict)  # in a row
    blocked: dict[Key, float] = field(default_factory=dict)  # until when, after a failure
    running: dict[Key, float] = field(default_factory=dict)  # when the pass began
    ended: dict[Key, float] = field(default_factory=dict)  # when the last pass ended
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: Key, delay: float = 0.0) -> None:
        now = time.monotonic()
        spaced_at = self.ended.get(key, 0.0) + SPACING_SECONDS
        at = max(now + delay, spaced_at, self.blocked.get(key, 0.0))
        self.due[key] = min(at, self.due.get(key, at))
        self.changed.set()

    def lift(self, key: Key) -> None:
        self.blocked.pop(key, None)
        self.failures.pop(key, None)

    async def run(self) -> None:
        """Run passes until cancelled; then those that run are cancelled too, and awaited."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                now = time.monotonic()
                for key in self._next(now):
                    del self.due[key]
                    self.running[key] = now
                    task = asyncio.create_task(self._pass(key))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                self.changed.clear()
                with contextlib.suppress(TimeoutError):  # wait_for would lose a cancellation
                    async with asyncio.timeout(self._pause(now)):
                        await self.changed.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _next(self, now: float) -> list[Key]:
        """Those that begin now: of each namespace in turn the one that is due for longest."""
        ready = [k for k, at in self.due.items() if at <= now and k not in self.running]
        of_namespace = Counter(namespace for namespace, _ in self.running)
        turns: dict[Key, int] = {}
        for key in sorted(ready, key=self.due.__getitem__):
            turns[key] = of_namespace[key[0]]
            of_namespace[key[0]] += 1
        free = WORKERS - len(self.running)
        in_turn = sorted(turns, key=turns.__getitem__)
        return [key for n, key in enumerate(in_turn) if n < free or not turns[key]]

    def _pause(self, now: float) -> float:
        full = len(self.running) >= WORKERS
        served = {namespace for namespace, _ in self.running} if full else set()
        waits = [
            at - now
            for key, at in self.due.items()
            if key not in self.running and key[0] not in served
        ]
        return max(0.01, min(waits, default=IDLE_SECONDS))

    async def _pass(self, key: Key) -> None:
        try:
            again = await self.reconcile(key)
        except Exception as error:  # the top of the loop: logged once, tried again
            self.failures[key] = self.failures.get(key, 0) + 1
            delay = backoff(self.failures[key] - 1, random.random())
            delay = max(delay, getattr(error, "retry_after_seconds", 0.0))
            self.blocked[key] = time.monotonic() + delay
            self.due.pop(key, None)  # an event of before the failure
            log.warning(
                "pass failed", namespace=key[0], job=key[1], retry_seconds=round(delay, 1),
                error=f"{type(error).__name__}: {error}", exc_info=True,
            )  # fmt: skip
            again = delay
        else:
            self.lift(key)
        finally:
            self.running.pop(key, None)
            self.ended[key] = time.monotonic()
        if again is None:
            self.ended.pop(key, None)
            self.changed.set()
        else:
            self.add(key, again)
