"""Transfers on their way out, each divided over the lanes of a session (rules 32 to 34).

    send_bulk --> line of what is to be sent --> number, head, bytes --> lane 0: its part
                  (asked for its bytes when                              lane 1: its part
                   the first lane is free)                               ...

Every lane takes the parts of all transfers in the same order, at its own pace. What all lanes have
taken is forgotten here.

The head of a learner numbers the transfers (`Dividing`). A lane process carries other parts of the
same transfers, under the numbers that the head tells it (`Line`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import Form
from atoll_protos.frames import Buffer, transfer_frames
from atoll_protos.parts import Share, span_bytes


class Outgoing(NamedTuple):
    """What is to be sent: its head, with the byte count of the whole, and the bytes held here.

    `numbered` is told the number of the transfer and its head as it goes out, before the first
    part leaves: others carry parts of it, too.
    """

    head: pb.Transfer
    data: Buffer
    numbered: Callable[[int, pb.Transfer], None] = lambda number, head: None


Payload = Callable[[], Awaitable[Outgoing | None]]  # None: there is nothing to send after all


@dataclass(frozen=True, slots=True)
class Divided:
    """One transfer, and which of the bytes held here go on which lane."""

    number: int  # in the session, from 1
    head: pb.Transfer  # with the byte count of the whole
    data: Buffer
    spans: tuple[tuple[range, ...], ...]

    def frames(self, lane: int) -> Iterator[bytes]:
        """The frames of this lane's part; none on lanes that have no part of it."""
        if lane >= len(self.spans):
            return iter(())
        head = pb.Transfer()
        head.CopyFrom(self.head)
        head.byte_count = span_bytes(self.spans[lane])
        return transfer_frames(self.number, head, self.data, self.spans[lane])


def divided(number: int, outgoing: Outgoing, form: Form | None, share: Share) -> Divided:
    """The transfer of this number; `form` is None of what belongs to no slice: lane 0 has it."""
    head = outgoing.head
    spans: tuple[tuple[range, ...], ...] = ((range(head.byte_count),),)
    if form is not None:
        spans = share.spans(form, head.encoding)
    return Divided(number, head, outgoing.data, spans)


class Line:
    """What one session sends on the lanes of a share; `next` is called by each lane in turn."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._line: deque[Divided] = deque()  # not taken by all lanes
        self._taken = dict.fromkeys(share.lanes, 0)  # transfers, by lane
        self._count = 0  # transfers so far
        self._added = asyncio.Event()

    def add(self, transfer: Divided) -> None:
        """The next transfer."""
        self._line.append(transfer)
        self._count += 1
        self._added.set()
        self._added = asyncio.Event()

    async def next(self, lane: int) -> Divided:
        """The transfer whose part this lane sends next; waits for one."""
        while self._taken[lane] == self._count:
            await self._more(lane)
        found = self._line[self._taken[lane] - self._count]  # from the end
        self._taken[lane] += 1
        while self._line and self._count - len(self._line) < min(self._taken.values()):
            self._line.popleft()
        return found

    async def _more(self, lane: int) -> None:
        """Return when there may be one more than this lane has taken."""
        del lane
        await self._added.wait()


class Dividing(Line):
    """A line that numbers its transfers, and asks for each when the first lane is free."""

    def __init__(
        self,
        share: Share,
        queue: "asyncio.Queue[Payload]",
        form: Callable[[pb.Transfer], Form | None],
    ) -> None:
        super().__init__(share)
        self._queue, self._form = queue, form
        self._data_state: bytes | None = None  # the last one that was sent
        self._fetching = asyncio.Lock()

    async def _more(self, lane: int) -> None:
        async with self._fetching:
            if self._taken[lane] == self._count:  # no other lane has fetched it meanwhile
                await self._fetch()

    async def _fetch(self) -> None:
        outgoing = await (await self._queue.get())()
        if outgoing is None:
            return
        self._data_state = once(outgoing.head, self._data_state)
        form = self._form(outgoing.head) if self.share.parts > 1 else None
        number = self._count + 1
        outgoing.numbered(number, outgoing.head)
        self.add(divided(number, outgoing, form, self.share))


def once(head: pb.Transfer, sent: bytes | None) -> bytes | None:
    """A session carries a data state once: not in an offer that has the same one as the last.

    `sent` is the last one so far; returns the last one with this offer.
    """
    if not head.offer.HasField("data_state"):
        return sent
    if head.offer.data_state != sent:
        return head.offer.data_state
    head.offer.ClearField("data_state")
    head.offer.same_data_state = True
    return sent
