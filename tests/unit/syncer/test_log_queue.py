"""Records that wait become one entry of the log, and no reply overtakes a record."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.duties.storing import LogQueue
from atoll_syncer.model.effects import SendReply
from atoll_syncer.model.log import Begun, Entry, RunStarted, TermBegun
from atoll_syncer.storage.journal import DeposedError

TERM: Entry = TermBegun(epoch=1, pod="p", instance="p-1")
RUN: Entry = RunStarted(run="r")
MARKS: list[Entry] = [Begun(shard=number) for number in range(6)]


class Bench:
    """A queue over a log that is a list, and all that happened, in order."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.reply: asyncio.Future[Any] | None = None
        self.taken_after: float = float("inf")  # so many entries another process follows
        journal: Any = SimpleNamespace(append=self.append)
        background: Any = SimpleNamespace(until_stored=self.until_stored)
        self.queue = LogQueue(journal, background, self.durable, lambda: self.seen.append("end"))

    def append(self, *records: Entry) -> None:
        if self.taken_after == 0:
            raise DeposedError
        self.taken_after -= 1
        replied = self.reply is not None and self.reply.done()
        self.seen.append(("replied" if replied else "not yet", records))

    async def until_stored(self, _: object, work: Callable[[], None]) -> None:
        work()

    async def durable(self, records: Sequence[Entry]) -> None:
        self.seen.append(f"durable {len(records)}")

    def put(self, *waiting: Entry | SendReply) -> None:
        for each in waiting:
            self.queue.put(each)

    async def work(self) -> None:
        """Until nothing waits, or the term is over."""
        working = asyncio.create_task(self.queue.work())
        finished = asyncio.create_task(self.queue.finish())
        await asyncio.wait({working, finished}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, finished):
            task.cancel()


async def test_records_that_wait_are_one_entry_up_to_the_next_reply_rule_19() -> None:
    bench = Bench()
    bench.reply = bench.queue.reply_to(1)
    bench.put(*MARKS[:3], SendReply(1, pb.MarkBegunReply()), *MARKS[3:])
    await bench.work()
    assert bench.seen == [
        *(("not yet", tuple(MARKS[:3])), "durable 3"),
        *(("replied", tuple(MARKS[3:])), "durable 3"),
    ]


async def test_the_beginning_of_a_term_and_of_a_run_are_entries_of_their_own() -> None:
    bench = Bench()
    bench.put(TERM, RUN, *MARKS[:2])
    await bench.work()
    entries = [each[1] for each in bench.seen if isinstance(each, tuple)]
    assert entries == [(TERM,), (RUN,), tuple(MARKS[:2])]


async def test_who_was_followed_appends_nothing_more_rule_20() -> None:
    bench = Bench()
    bench.taken_after = 1
    reply = bench.queue.reply_to(1)
    bench.put(TERM, *MARKS[:2], SendReply(1, pb.MarkBegunReply()))
    await bench.work()
    assert bench.seen == [("not yet", (TERM,)), "durable 1", "end"]
    assert not reply.done()
