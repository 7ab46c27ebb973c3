"""Carries the values of a learner on one host, whose sessions have one Bulk stream each.

Offers, seeds, held versions and companions become payloads in the queue of a shard's client, which
asks for their bytes when the stream is free (bulk.py). An offer is begun at once all the same: its
capture may be overwritten soon. A learner of several lanes or hosts has `hosts.head.Head` instead.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.companion import part_count
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.network.diagnosis import RefusedError
from atoll_protos.transfer.frames import Assembler, Buffer, Whole
from atoll_worker.link.messages import CompanionReady, Message
from atoll_worker.link.socket import TransportEnd
from atoll_worker.rules.effects import Effect
from atoll_worker.rules.exchange import Exchange
from atoll_worker.transport.bulk import Bulk, Numbered, OpenChannel, Outgoing, Payloads
from atoll_worker.transport.control_stream import ShardClient
from atoll_worker.transport.held_values import Key, PreparedParts, Values, publish_bytes
from atoll_worker.transport.numbers import Base, Encoded, Numbers

T = TypeVar("T")

log = structlog.get_logger()


class Others:
    """What the learner's other processes have of one thing that is sent: nothing, on one host."""

    async def prepared(self) -> PreparedParts:
        """When all have their parts; is cancelled with the session."""
        return PreparedParts(lost=False, not_finite=())

    def drop(self) -> None:
        """It is not sent after all."""

    def outgoing(self, fragment: int, head: pb.Transfer, data: Buffer) -> Outgoing:
        return Outgoing(head, data)


@dataclass(slots=True, kw_only=True)
class Carrier:
    """`feed` performs what the rules answer; a bug inside of `bugs_end` ends all.

    `lost` is who of the learner's processes is lost, and how that was seen: nobody on one host.
    """

    end: TransportEnd
    numbers: Numbers
    exchange: Exchange
    open_channel: OpenChannel
    client: Callable[[int], ShardClient]
    feed: Callable[[list[Effect]], None]
    bugs_end: Callable[[], AbstractContextManager[None]]
    now: Callable[[], float]
    values: Values = field(init=False)
    lost: str = ""
    named: dict[Key, tuple[str, ...]] = field(default_factory=dict)  # tensors of the last offer
    works: set[asyncio.Task[Any]] = field(default_factory=set)  # that form what is to be sent

    def __post_init__(self) -> None:
        self.values = Values(self.numbers)

    async def listen(self) -> None:
        """Let the other processes that carry values come."""

    async def gathered(self) -> None:
        """Return when all of them are there."""

    async def failed(self) -> str:
        """Return when one is lost: who, and how that was seen."""
        await asyncio.Event().wait()
        raise AssertionError("nobody is lost")

    async def leave(self) -> None:
        """Let the others end in order."""

    def abort(self) -> None:
        """End the others at once."""

    # ------------------------------------------------------------ sessions

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Payloads) -> Any:
        """The streams of a session that a shard takes; `run` is their life. Raises RefusedError."""
        as_asked(welcome, 1)
        return Bulk(
            endpoint=self.end.configure.endpoints[shard],
            open_channel=self.open_channel,
            session=welcome.session,
            secret=welcome.secret,
            next_frames=Numbered(payloads).next_frames,
            take=Assembler(partial(self._admit, shard)).feed,
            whole=partial(self._whole, shard),
            heard=partial(self.heard, shard),
        )

    def heard(self, shard: int) -> None:
        self.exchange.heard(shard, self.now())

    def closed(self, shard: int) -> None:
        """The session is over."""

    def _admit(self, shard: int, head: pb.Transfer) -> int | None:
        """The byte count that the coming transfer may have, or None to drop the session."""
        if not head.HasField("publish"):
            return None
        with self.bugs_end():
            if not self.exchange.publish_started(shard, head.publish, self.now()):
                return None
        return publish_bytes(self.end.configure, shard, head)

    async def _whole(self, shard: int, whole: Whole) -> None:
        self._arrived(shard, whole)

    def _arrived(self, shard: int, whole: Whole) -> None:
        with self.bugs_end():
            self.values.arrived(shard, whole.head, whole.payload)
            self.feed(self.exchange.published(shard, whole.head.publish, self.now()))

    def place(self, shard: int, fragment: int, number: int) -> None:
        self.values.place(shard, fragment, number)

    def promote(self, shard: int, fragment: int, number: int) -> None:
        self.values.promote(shard, fragment, number)

    def discard(self, shard: int, fragment: int, number: int) -> None:
        self.values.discard(shard, fragment, number)

    def command(self, command: Message) -> None:
        """The training process is to have it behind all that was placed before."""
        self.end.send(command)

    # ------------------------------------------------------------ values that go

    def prepare(
        self, what: pb.Prepares, shard: int, fragments: tuple[int, ...], capture: int = 0
    ) -> Others:
        """Let the other processes form their parts of these slices."""
        return Others()

    def offer(self, shard: int, offer: pb.Offer) -> None:
        """What has been captured again since the offer was made is not sent (rule 16)."""
        key = shard, offer.slice
        base, counter = self.values.bases[key], self.values.captures[key]
        others = self.prepare(pb.PREPARES_OFFER, shard, (offer.slice,), counter)
        work = self._formed(key, base, counter, others)
        forming = self._begin(work, name=f"offer-{shard}-{offer.slice}")

        async def payload() -> Outgoing | None:
            encoded = await forming
            if encoded is None:
                self.feed(self.exchange.capture_lost(shard, offer))
                return None
            return self._outgoing(key, pb.Transfer(offer=offer), encoded, others)

        self.client(shard).send_bulk(payload)

    async def _formed(self, key: Key, base: Base, counter: int, others: Others) -> Encoded | None:
        """What is held here of an offer; None if the capture is lost, here or elsewhere."""
        formed = await self.values.formed(key, base, counter)
        elsewhere = await others.prepared()
        if formed is None or elsewhere.lost:
            others.drop()
            return None
        names = dict.fromkeys((*formed.not_finite, *elsewhere.not_finite))
        self._note_not_finite(key, tuple(names))
        return formed.encoded

    def _outgoing(self, key: Key, head: pb.Transfer, encoded: Encoded, others: Others) -> Outgoing:
        """The head has the byte count of the whole slice."""
        head.encoding, data = encoded
        head.byte_count = self.end.configure.layout.slice(*key).form.byte_count(head.encoding)
        return others.outgoing(key[1], head, data)

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
        others = self.prepare(pb.PREPARES_SEED, shard, fragments)
        looked = self._begin(self._looked_at(shard, fragments, others), name=f"seed-{shard}")

        async def payload(key: Key) -> Outgoing | None:
            if not await looked:
                return None
            head = pb.Transfer(seed=pb.Seed(slice=key[1]))
            return self._outgoing(key, head, self.numbers.encode_seed(*key), others)

        for fragment in fragments:
            self.client(shard).send_bulk(partial(payload, (shard, fragment)))

    async def _looked_at(self, shard: int, fragments: tuple[int, ...], others: Others) -> bool:
        bad = list[str]()
        for each in fragments:
            bad += await asyncio.to_thread(self.numbers.not_finite, shard, each)
        bad += (await others.prepared()).not_finite
        if bad:
            self.feed(self.exchange.bad_seed(bad[0]))
        return not bad

    def held(self, shard: int, held: pb.Held) -> None:
        key = shard, held.version.slice
        encoded = self.numbers.encode_base(self.values.bases[key])
        others = self.prepare(pb.PREPARES_HELD, shard, (held.version.slice,))

        async def payload() -> Outgoing:
            await others.prepared()
            return self._outgoing(key, pb.Transfer(held=held), encoded, others)

        self.client(shard).send_bulk(payload)

    def companion(self, companion: CompanionReady, part: int = 0) -> None:
        """Each part is put in line when the one before it is on its way: offers go in between."""
        changed, byte_count = companion.changed, companion.byte_count

        async def payload() -> Outgoing | None:
            data = await asyncio.to_thread(
                self.end.companion_part, part, byte_count, changed=changed
            )
            head = pb.Companion(changed=changed, part=part, companion_bytes=byte_count)
            if part + 1 < part_count(byte_count):
                self.companion(companion, part + 1)
            elif not changed:
                self.end.companion_sent()
            return Outgoing(pb.Transfer(companion=head, byte_count=len(data)), data)

        self.client(REGISTRAR_SHARD).send_bulk(payload)


def as_asked(welcome: pb.Welcome, lanes: int) -> None:
    """Raises RefusedError where the shard takes another number of lanes than this learner has."""
    if max(1, welcome.lanes) != lanes:
        raise RefusedError(f"takes {max(1, welcome.lanes)} lanes, and this learner has {lanes}")
