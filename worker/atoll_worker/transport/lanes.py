"""Transfers on their way out, each divided over the lanes of a session (rules 32 to 34).

    send_bulk --> line of what is to be sent --> number, head, bytes --> lane 0: its part
                  (asked for its bytes when                              lane 1: its part
                   the first lane is free)                               ...

Every lane takes the parts of all transfers in the same order, at its own pace. What all lanes have
taken is forgotten here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import Form
from atoll_protos.frames import Buffer, transfer_frames
from atoll_protos.parts import part_spans, span_bytes

Outgoing = tuple[pb.Transfer, Buffer]
Payload = Callable[[], Awaitable[Outgoing | None]]  # None: there is nothing to send after all


@dataclass(frozen=True, slots=True)
class Divided:
    """One transfer, and which of its bytes go on which lane; lanes beyond have no part of it."""

    number: int  # in the session, from 1
    head: pb.Transfer  # with the byte count of the whole
    data: Buffer
    spans: tuple[tuple[range, ...], ...]

    def frames(self, lane: int) -> Iterator[bytes]:
        """The frames of this lane's part."""
        if lane >= len(self.spans):
            return iter(())
        head = pb.Transfer()
        head.CopyFrom(self.head)
        head.byte_count = span_bytes(self.spans[lane])
        return transfer_frames(self.number, head, self.data, self.spans[lane])


class Dividing:
    """What one session sends; `next` is called by each lane in turn."""

    def __init__(
        self,
        lanes: int,
        queue: "asyncio.Queue[Payload]",
        form: Callable[[pb.Transfer], Form | None],
    ) -> None:
        self.lanes, self._queue, self._form = lanes, queue, form
        self._line: deque[Divided] = deque()  # not taken by all lanes
        self._taken = [0] * lanes  # transfers, by lane
        self._data_state: bytes | None = None  # the last one that was sent
        self._fetching = asyncio.Lock()
        self._count = 0  # transfers so far

    async def next(self, lane: int) -> Divided:
        """The transfer whose part this lane sends next; waits for one."""
        while self._taken[lane] == self._count:
            async with self._fetching:
                if self._taken[lane] == self._count:  # no other lane has fetched it meanwhile
                    await self._fetch()
        found = self._line[self._taken[lane] - self._count]  # from the end
        self._taken[lane] += 1
        while self._line and self._line[0].number <= min(self._taken):
            self._line.popleft()
        return found

    async def _fetch(self) -> None:
        outgoing = await (await self._queue.get())()
        if outgoing is None:
            return
        head, data = outgoing
        self._data_state = once(head, self._data_state)
        self._count += 1
        form = self._form(head) if self.lanes > 1 else None
        spans: tuple[tuple[range, ...], ...] = ((range(head.byte_count),),)
        if form is not None:
            spans = part_spans(form, head.encoding, self.lanes)
        self._line.append(Divided(self._count, head, data, spans))


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
