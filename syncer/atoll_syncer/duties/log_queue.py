"""What waits for the log of a shard: records, and replies that may not overtake them (rule 19).

All records that wait, up to the next reply, become durable as one entry of the log: a create takes
35 to 110 ms in an object store, and a hundred admissions must not take a hundred of them. What
follows from a record follows afterwards, one record after the other, in their order.

One queue and one thread, because entry n+1 may be created only by a process that knows entry n.
When the position is taken, another process has followed this one: `work` ends, and nothing that
still waits can become durable.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any

import structlog

from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.model.effects import SendReply
from atoll_syncer.model.log import Entry
from atoll_syncer.storage.journal import DeposedError, Journal, stands_alone

STOP_SECONDS = 2.0

log = structlog.get_logger()


class LogQueue:
    """`durable` is called with the records of each entry, and `deposed` at the end of the term."""

    def __init__(
        self,
        journal: Journal,
        background: Background,
        durable: Callable[[Sequence[Entry]], Awaitable[None]],
        deposed: Callable[[], None],
    ) -> None:
        self._journal, self._background = journal, background
        self._durable, self._deposed = durable, deposed
        self._waiting: asyncio.Queue[Entry | SendReply] = asyncio.Queue()
        self._replies: dict[int, asyncio.Future[Any]] = {}  # by token

    def put(self, waiting: Entry | SendReply) -> None:
        self._waiting.put_nowait(waiting)

    def reply_to(self, token: int) -> asyncio.Future[Any]:
        """Has the message of the reply with this token when its turn has come."""
        return self._replies.setdefault(token, asyncio.get_running_loop().create_future())

    async def work(self) -> None:
        while True:
            taken = [await self._waiting.get()]
            while not self._waiting.empty():
                taken.append(self._waiting.get_nowait())
            for _, together in groupby(taken, _entry_of):
                try:
                    await self._handle(list(together))
                except DeposedError:
                    self._deposed()
                    return
            for _ in taken:
                self._waiting.task_done()

    async def finish(self) -> None:
        """Wait until nothing waits, at most STOP_SECONDS."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._waiting.join()
        except TimeoutError:
            log.warning("stopped with unwritten entries", count=self._waiting.qsize())

    async def _handle(self, together: Sequence[Entry | SendReply]) -> None:
        """Replies, or the records of one entry."""
        records = list[Entry]()
        for each in together:
            if isinstance(each, SendReply):
                future = self._replies.pop(each.token, None)
                if future is not None and not future.done():
                    future.set_result(each.message)
            else:
                records.append(each)
        if records:
            append = self._journal.append
            await self._background.until_stored(Thread.LOG, lambda: append(*records))
            await self._durable(records)


def _entry_of(waiting: Entry | SendReply) -> object:
    """Neighbours of one value are handled together."""
    if isinstance(waiting, SendReply):
        return SendReply
    return id(waiting) if stands_alone(waiting) else Entry
