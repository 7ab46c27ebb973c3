"""Carries the values of a learner or observer: what it sends, holds and places.

Offers, seeds and held versions become payloads in the queue of a shard's client, which asks for
their bytes when the streams are free. An offer is begun at once all the same: its capture may be
overwritten soon.

What has arrived whole is a *candidate*. `place` copies it into the adopt region of the shared
memory. When the training process has adopted it, `promote` makes it the *base*; `discard` drops one
that a newer one has replaced. So `bases` are always what has been adopted, bit for bit.

An offer is `base - theta`. `formed` forms and encodes it in a thread, and then compares the capture
region's counter with that of the capture that the offer names: when the region has been written
again, there is no offer.

`Numbers` is the only door through which `Transport` touches parameters; the simulation puts symbols
in place of arrays. The arrays are numpy's: torch would cost this process 500 MB and over a second
of each start, and gives the same bits (`arrays`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import AVERAGE, Layout, Piece, Slice
from atoll_protos.job.run_file import Sync
from atoll_protos.network.channels import RefusedError
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_protos.transfer.frames import (
    Buffer,
    Whole,
)
from atoll_worker.link.messages import Configure
from atoll_worker.link.shared_memory import CAPTURE_ENCODING, SharedMemory
from atoll_worker.link.socket import TransportEnd
from atoll_worker.rules.exchange import Exchange
from atoll_worker.rules.learner_state import Effect
from atoll_worker.transport.control_stream import (
    Bulk,
    OpenChannel,
    Outgoing,
    Payloads,
    ShardClient,
)

Base = Any  # one slice of a version, bit for bit as its shard holds it
Difference = Any  # one slice: base less theta, in f32
Encoded = tuple[pb.Encoding, Buffer]


def rounded_spans(layout: Layout, owned: Slice, coded: Any) -> list[tuple[slice, Any]]:
    """Where a learner does not hold a base as it is: see arrays.difference.

    A tensor in f32 holds every base; one in bf16 or f16 holds those of its own type. A base has
    buffers in f32, and parameters in the dtype `coded`.
    """
    found = []
    for piece in owned.pieces:
        tensor = layout.tensors[piece.tensor]
        dtype = arrays.DTYPES[tensor.dtype]
        if dtype not in (arrays.F32 if tensor.merge == AVERAGE else coded, arrays.F32):
            found.append((_span(piece), dtype))
    return found


def _span(piece: Piece) -> slice:
    return slice(piece.offset, piece.offset + piece.element_count)


class Numbers:
    """A base is `codecs.Packed`."""

    def __init__(self, memory: SharedMemory, sync: Sync, layout: Layout) -> None:
        self._memory, self._sync, self._layout = memory, sync, layout

    def counter(self, shard: int, fragment: int) -> int:
        return self._memory.counter(shard, fragment)

    def decode(
        self, shard: int, publish: pb.Publish, encoding: pb.Encoding, data: bytearray, held: Base
    ) -> Base:
        """`held` is the base that a difference is added to."""
        if publish.difference:
            return arrays.moved(held, data, encoding, to=base_encoding(self._sync.wire_down))
        form = self._memory.form(shard, publish.version.slice)
        return arrays.packed(data, encoding, form)

    def place(self, shard: int, fragment: int, base: Base) -> None:
        self._memory.place(shard, fragment, arrays.encoding_of(base), base.data)

    def difference(self, shard: int, fragment: int, base: Base) -> Difference:
        """In f32 (rule 16). Heavy, for a thread: callers compare the region's counter around it."""
        theta = self._captured(shard, fragment)
        owned = self._layout.slice(shard, fragment)
        rounded = rounded_spans(self._layout, owned, base.coded.dtype)
        return arrays.difference(base, theta, rounded=rounded)

    def not_finite(
        self, shard: int, fragment: int, difference: Difference | None = None
    ) -> tuple[str, ...]:
        """Return tensors with a value, in this difference or capture, that is not finite."""
        values = self._captured(shard, fragment) if difference is None else difference
        owned, tensors = self._layout.slice(shard, fragment), self._layout.tensors
        names = (
            tensors[piece.tensor].name
            for piece in owned.pieces
            if not arrays.all_finite(values[_span(piece)])
        )
        return tuple(dict.fromkeys(names))

    def encode_difference(self, shard: int, fragment: int, difference: Difference) -> Encoded:
        """In the job's encoding of offers; heavy, for a thread."""
        encoding = encoding_of(self._sync.wire_up)
        form = self._memory.form(shard, fragment)
        return encoding, arrays.pack(difference, encoding, form)

    def encode_seed(self, shard: int, fragment: int) -> Encoded:
        """Return the capture region as it is, in f32 (rule 1). A view, not a copy."""
        return CAPTURE_ENCODING, self._memory.capture(shard, fragment)

    def encode_base(self, base: Base) -> Encoded:
        """Bit for bit, so that its digest is the version's (rule 22). A view, not a copy."""
        return arrays.encoding_of(base), base.data

    def digest(self, base: Base) -> str:
        found: str = base.digest
        return found

    def _captured(self, shard: int, fragment: int) -> arrays.Array:
        return arrays.from_bytes(self._memory.capture(shard, fragment), CAPTURE_ENCODING)


FORMED_AT_ONCE_MAX = 4  # offers; each takes a thread and as much memory as its slice in f32

Key = tuple[int, int]  # shard and fragment


class Formed(NamedTuple):
    """An offer of a slice, and its tensors with values that are not finite."""

    encoded: Encoded
    not_finite: tuple[str, ...]


@dataclass(slots=True)
class Values:
    """See the module."""

    numbers: Numbers
    bases: dict[Key, Base] = field(default_factory=dict)  # as adopted
    candidates: dict[tuple[int, int, int], Base] = field(default_factory=dict)  # with their number
    captures: dict[Key, int] = field(default_factory=dict)  # counter of the newest finished capture
    _threads: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(FORMED_AT_ONCE_MAX)
    )

    def begin(self, keys: Iterable[Key]) -> None:
        """Every capture region holds the model as it was made."""
        self.captures = {key: self.numbers.counter(*key) for key in keys}

    def captured(self, key: Key) -> None:
        self.captures[key] += 2

    def arrived(self, shard: int, head: pb.Transfer, payload: bytearray) -> None:
        publish = head.publish
        key = shard, publish.version.slice
        base = self.numbers.decode(shard, publish, head.encoding, payload, self.bases.get(key))
        self.candidates[*key, publish.version.version.number] = base

    def place(self, shard: int, fragment: int, number: int) -> None:
        """Where there is no candidate of this number, the base once more."""
        base = self.candidates.get((shard, fragment, number))
        self.numbers.place(shard, fragment, self.bases[shard, fragment] if base is None else base)

    def promote(self, shard: int, fragment: int, number: int) -> None:
        self.bases[shard, fragment] = self.candidates.pop((shard, fragment, number))

    def discard(self, shard: int, fragment: int, number: int) -> None:
        self.candidates.pop((shard, fragment, number), None)

    async def formed(self, key: Key, base: Base, counter: int) -> Formed | None:
        """Return the difference to the capture of this count; None if the region has another."""
        async with self._threads:
            difference = await asyncio.to_thread(self.numbers.difference, *key, base)
            if self.numbers.counter(*key) != counter:
                return None
            bad = await asyncio.to_thread(self.numbers.not_finite, *key, difference)
            encoded = await asyncio.to_thread(self.numbers.encode_difference, *key, difference)
            return Formed(encoded, bad)


def publish_bytes(configure: Configure, shard: int, head: pb.Transfer) -> int | None:
    """Return the bytes of a Publish's parts; None for no encoding of the run (rule 25)."""
    layout, wire = configure.layout, configure.run_file.sync.wire_down
    part = layout.slice(shard, head.publish.version.slice)
    base = base_encoding(wire)
    whole = base, layout.final_encoding(part, base)
    known = (encoding_of(wire),) if head.publish.difference else whole
    return part.form.byte_count(head.encoding) if head.encoding in known else None


T = TypeVar("T")

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Carrier:
    """`feed` performs what the rules answer; a bug inside of `bugs_end` ends all."""

    end: TransportEnd
    numbers: Numbers
    exchange: Exchange
    open_channel: OpenChannel
    client: Callable[[int], ShardClient]
    feed: Callable[[list[Effect]], None]
    bugs_end: Callable[[], AbstractContextManager[None]]
    now: Callable[[], float]
    values: Values = field(init=False)
    named: dict[Key, tuple[str, ...]] = field(default_factory=dict)  # tensors of the last offer
    works: set[asyncio.Task[Any]] = field(default_factory=set)  # that form what is to be sent

    def __post_init__(self) -> None:
        self.values = Values(self.numbers)

    # ------------------------------------------------------------ sessions

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Payloads) -> Bulk:
        """Open the streams of a session; `run` is their life. Raises RefusedError."""
        configure = self.end.configure
        as_asked(welcome, configure.lanes)
        return Bulk(
            endpoint=configure.endpoints[shard],
            open_channel=self.open_channel,
            session=welcome.session,
            secret=welcome.secret,
            payloads=payloads,
            admit=partial(self._admit, shard),
            whole=partial(self._whole, shard),
            heard=partial(self.heard, shard),
            lanes=configure.lanes,
        )

    def heard(self, shard: int) -> None:
        self.exchange.heard(shard, self.now())

    def _admit(self, shard: int, head: pb.Transfer) -> int | None:
        """Return the byte count that the coming transfer may have, or None to drop the session."""
        if not head.HasField("publish"):
            return None
        with self.bugs_end():
            if not self.exchange.publish_started(shard, head.publish, self.now()):
                return None
        return publish_bytes(self.end.configure, shard, head)

    async def _whole(self, shard: int, whole: Whole) -> None:
        with self.bugs_end():
            self.values.arrived(shard, whole.head, whole.payload)
            self.feed(self.exchange.published(shard, whole.head.publish, self.now()))

    # ------------------------------------------------------------ values that go

    def offer(self, shard: int, offer: pb.Offer) -> None:
        """Send the offer, but for what has been captured again since it was made (rule 16)."""
        key = shard, offer.slice
        base, counter = self.values.bases[key], self.values.captures[key]
        work = self._formed(key, base, counter)
        forming = self._begin(work, name=f"offer-{shard}-{offer.slice}")

        async def payload() -> Outgoing | None:
            encoded = await forming
            if encoded is None:
                self.feed(self.exchange.capture_lost(shard, offer))
                return None
            return self._outgoing(key, pb.Transfer(offer=offer), encoded)

        self.client(shard).send_bulk(payload)

    async def _formed(self, key: Key, base: Base, counter: int) -> Encoded | None:
        """Form an offer; None if its capture is lost."""
        formed = await self.values.formed(key, base, counter)
        if formed is None:
            return None
        self._note_not_finite(key, formed.not_finite)
        return formed.encoded

    def _outgoing(self, key: Key, head: pb.Transfer, encoded: Encoded) -> Outgoing:
        """Take the byte count of the whole slice, which the head has."""
        head.encoding, data = encoded
        head.byte_count = self.end.configure.layout.slice(*key).form.byte_count(head.encoding)
        return Outgoing(head, data)

    def _begin(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        task = asyncio.create_task(work, name=name)
        self.works.add(task)
        task.add_done_callback(self.works.discard)
        return task

    def _note_not_finite(self, key: Key, names: tuple[str, ...]) -> None:
        """Say it when a slice of the model begins or ends to have values that are not finite."""
        if names == self.named.get(key, ()):
            return
        self.named[key] = names
        if names:
            log.error(
                "values are not finite: nothing of this slice is merged until its next adoption",
                tensors=names,
                remedy="lower the learning rate, clip the gradients, or look at the data",
            )
        else:
            log.info("all values of this slice are finite again", shard=key[0], slice=key[1])

    def seed(self, shard: int) -> None:
        """Sent as the capture regions lie; only looking at them takes a thread."""
        fragments = tuple(part.fragment for part in self.end.configure.layout.shard_slices(shard))
        looked = self._begin(self._looked_at(shard, fragments), name=f"seed-{shard}")

        async def payload(key: Key) -> Outgoing | None:
            if not await looked:
                return None
            head = pb.Transfer(seed=pb.Seed(slice=key[1]))
            return self._outgoing(key, head, self.numbers.encode_seed(*key))

        for fragment in fragments:
            self.client(shard).send_bulk(partial(payload, (shard, fragment)))

    async def _looked_at(self, shard: int, fragments: tuple[int, ...]) -> bool:
        bad = list[str]()
        for fragment in fragments:
            bad += await asyncio.to_thread(self.numbers.not_finite, shard, fragment)
        if bad:
            self.feed(self.exchange.bad_seed(bad[0]))
        return not bad

    def held(self, shard: int, held: pb.Held) -> None:
        key = shard, held.version.slice
        encoded = self.numbers.encode_base(self.values.bases[key])

        async def payload() -> Outgoing:
            return self._outgoing(key, pb.Transfer(held=held), encoded)

        self.client(shard).send_bulk(payload)


def as_asked(welcome: pb.Welcome, lanes: int) -> None:
    """Raise RefusedError where the shard takes another number of lanes than this learner has."""
    if max(1, welcome.lanes) != lanes:
        raise RefusedError(f"takes {max(1, welcome.lanes)} lanes, and this learner has {lanes}")
