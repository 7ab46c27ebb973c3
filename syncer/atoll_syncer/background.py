"""A shard's tasks and threads: slow work beside the loop, and patience with the store (rule 23)."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any, TypeVar

import structlog

from atoll_syncer.metrics import Metrics
from atoll_syncer.storage.store import StoreFull, StoreUnavailable

RETRY_SECONDS = 1.0  # a full disk or an unreachable store delays trailers and stops no learner

T = TypeVar("T")
log = structlog.get_logger()


class Thread(StrEnum):
    """Each does one thing after the other."""

    LOG = "log"  # appends entries, and beats
    MERGE = "merge"  # makes versions, and writes and collects their objects
    EXAMINE = "examine"  # looks through what has arrived


class Background:
    """The tasks and threads of one process. `failed` hears what a task raises: a bug."""

    def __init__(self, metrics: Metrics, failed: Callable[[BaseException], None]) -> None:
        self._pools = {each: ThreadPoolExecutor(1, each) for each in Thread}
        self._metrics, self._failed = metrics, failed
        self._tasks: set[asyncio.Task[None]] = set()
        self.troubles: list[str] = []  # of the work that is tried again

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task; it lasts until its end or `stop`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def stop(self) -> None:
        """Cancel all tasks, and begin nothing more in the threads."""
        for task in self._tasks:
            task.cancel()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, thread: Thread, work: Callable[[], T]) -> T:
        """Do it in that thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pools[thread], work)

    async def until_stored(self, thread: Thread, work: Callable[[], T]) -> T:
        """Again and again while the store does not take it; the trouble is said once."""
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
