"""A shard's tasks and threads: slow work outside of the loop, retries of the store (rule 23).

The event loop never waits for a disk and never computes. Each thread does one thing after the
other, in the order of the calls; what two threads do may overlap. A function in a thread touches
only what its caller handed to it. `executors` are given: real threads, or the simulation's.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from enum import StrEnum
from typing import Any, TypeVar

import structlog

from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.storage.files import StoreFull, StoreUnavailable

RETRY_SECONDS = 1.0  # a full disk or an unreachable store delays trailers and stops no learner

T = TypeVar("T")
log = structlog.get_logger()


class Thread(StrEnum):
    """Each does one thing after the other."""

    LOG = "log"  # appends entries
    BEAT = "beat"  # says that the process lives, and looks whether another has followed
    MERGE = "merge"  # makes versions, and writes their objects
    READ = "read"  # reads values back
    EXAMINE = "examine"  # looks through what has arrived
    RENDER = "render"  # writes the models of checkpoints
    FILES = "files"  # reads those by which a running job is changed, however slow the store is
    TIDY = "tidy"  # writes snapshots of the log, and removes what nobody needs any more


Executors = Mapping[Thread, Executor]


def start_threads() -> Executors:
    return {each: ThreadPoolExecutor(1, each) for each in Thread}


class Background:
    """The tasks and threads of one process. What a task raises is a bug and goes to `failed`."""

    def __init__(
        self,
        executors: Executors,
        metrics: ShardMetrics,
        failed: Callable[[BaseException], None],
        make_room: Callable[[str], int],
    ) -> None:
        self._executors, self._metrics, self._failed = executors, metrics, failed
        self._make_room = make_room  # on the volume of a path; returns how many bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self.troubles: list[str] = []  # of the work that is tried again

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def stop(self) -> None:
        """Another one may use the threads; what is under way in one goes on."""
        for task in self._tasks:
            task.cancel()

    async def run(self, thread: Thread, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executors[thread], work)

    async def until_stored(self, thread: Thread, work: Callable[[], T]) -> T:
        """Repeat it every RETRY_SECONDS while the store has `troubles`, each logged once."""
        said: list[str] = []
        try:
            while True:
                try:
                    return await self.run(thread, work)
                except (StoreFull, StoreUnavailable) as error:
                    self._metrics.store_troubles.labels(error.kind).inc()
                    if str(error) not in said:
                        said.append(str(error))
                        self.troubles.append(str(error))
                        log.error("the store does not take it; trying again", trouble=str(error))
                    if isinstance(error, StoreFull) and (freed := self._make_room(error.path)):
                        log.warning("older lines of the event tape gave way", byte_count=freed)
                        continue
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            for trouble in said:
                self.troubles.remove(trouble)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a bug ends this process", exc_info=error)
            self._failed(error)
