"""Transfers of a learner with several lanes, each divided over the lanes of a session.

Every lane takes the parts of all transfers in the same order, at its own pace (docs/protocol.md,
rules 32 to 34). The head of a learner numbers the transfers (`Dividing`); a lane process carries
other parts of the same transfers, under the numbers that the head tells it (`Line`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.division import Share, span_bytes
from atoll_protos.transfer.frames import Whole, transfer_frames
from atoll_protos.transfer.gathering import Gathering, key_of
from atoll_worker.transport.bulk import (
    Bulk,
    Numbered,
    OpenChannel,
    Outgoing,
    Payloads,
    Ready,
    first_to_end,
    not_told,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Shared(Outgoing):
    """A payload of which other hosts carry parts; `numbered` is called before the first leaves."""

    numbered: Callable[[int, pb.Transfer], None]


@dataclass(frozen=True, slots=True)
class Divided:
    """One transfer, and which of the bytes held here go on which lane."""

    number: int  # in the session, from 1
    outgoing: Outgoing  # its head has the byte count of the whole
    spans: tuple[tuple[range, ...], ...]

    def frames(self, lane: int) -> Iterator[bytes]:
        if lane >= len(self.spans):
            return iter(())
        head = pb.Transfer()
        head.CopyFrom(self.outgoing.head)
        head.byte_count = span_bytes(self.spans[lane])
        return transfer_frames(self.number, head, self.outgoing.data, self.spans[lane])


def form_of(layout: Layout, shard: int, head: pb.Transfer) -> Form | None:
    kind, fragment = key_of(head)
    if kind == "companion" or not 0 <= fragment < layout.fragments:
        return None
    return layout.slice(shard, fragment).form


def divided(number: int, outgoing: Outgoing, form: Form | None, share: Share) -> Divided:
    """`form` is None of what belongs to no slice: lane 0 has it."""
    head = outgoing.head
    spans: tuple[tuple[range, ...], ...] = ((range(head.byte_count),),)
    if form is not None:
        spans = share.spans(form, head.encoding)
    return Divided(number, outgoing, spans)


class Line:
    """What one session sends on the lanes of a share; `next` is called by each lane in turn."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._line: deque[Divided] = deque()  # not taken by all lanes
        self._taken = dict.fromkeys(share.lanes, 0)  # transfers, by lane
        self._count = 0  # transfers so far
        self._added = asyncio.Event()

    def add(self, transfer: Divided) -> None:
        self._line.append(transfer)
        self._count += 1
        self._added.set()
        self._added = asyncio.Event()

    async def next(self, lane: int) -> Divided:
        while self._taken[lane] == self._count:
            await self._more(lane)
        found = self._line[self._taken[lane] - self._count]  # from the end
        self._taken[lane] += 1
        while self._line and self._count - len(self._line) < min(self._taken.values()):
            self._line.popleft()
        return found

    async def _more(self, lane: int) -> None:
        del lane
        await self._added.wait()


class Dividing(Line):
    """A line that numbers its transfers, and asks for each when the first lane is free."""

    def __init__(
        self,
        share: Share,
        payloads: Payloads,
        form: Callable[[pb.Transfer], Form | None],
    ) -> None:
        super().__init__(share)
        self._numbered, self._form = Numbered(payloads), form
        self._fetching = asyncio.Lock()

    async def _more(self, lane: int) -> None:
        async with self._fetching:
            if self._taken[lane] != self._count:
                return  # another lane has fetched it meanwhile
            number, outgoing = await self._numbered.next()
            if isinstance(outgoing, Shared):
                outgoing.numbered(number, outgoing.head)
            self.add(divided(number, outgoing, self._form(outgoing.head), self.share))


@dataclass(slots=True, kw_only=True)
class Lanes:
    """The Bulk streams of a share in one session. The end of one is the end of all."""

    endpoint: str
    open_channel: OpenChannel
    session: int
    secret: str
    line: Line
    gathering: Gathering
    whole: Callable[[Whole], Awaitable[None]]
    heard: Callable[[], None] = not_told
    ready: Ready | None = None
    streams: list[Bulk] = field(default_factory=list)

    async def run(self) -> None:
        """Until any of the lanes ends; the first error is raised."""
        share = self.line.share
        self.streams = [self._stream(lane) for lane in share.lanes]
        try:
            await first_to_end(*(each.run() for each in self.streams))
        finally:
            if not share.is_whole:
                sent = sum(each.bytes_sent for each in self.streams)
                received = sum(each.bytes_received for each in self.streams)
                lanes = f"{share.first} .. {share.stop - 1}"
                log.info("lanes closed", lanes=lanes, sent=sent, received=received)

    def _stream(self, lane: int) -> Bulk:
        async def frames() -> Iterator[bytes]:
            return (await self.line.next(lane)).frames(lane)

        return Bulk(
            endpoint=self.endpoint,
            open_channel=self.open_channel,
            session=self.session,
            secret=self.secret,
            next_frames=frames,
            take=partial(self.gathering.feed, lane),
            whole=self.whole,
            heard=self.heard,
            ready=self.ready,
            lane=lane,
        )
