"""What a learner sends of its values: offers, seeds, held versions, and the parts of a companion.

Each becomes a payload in the line of a shard's client, which asks for its bytes when the first lane
is free (lanes.py). An offer is begun at once all the same: its capture may be overwritten soon.

Where the learner has hands, each forms its own parts of every slice, and nothing is in line before
all of them have theirs. With the number of a transfer the hands get its head, and send their parts.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.companion import part_count
from atoll_protos.names import REGISTRAR_SHARD
from atoll_worker.link.messages import Companion
from atoll_worker.rules.effects import Effect
from atoll_worker.rules.exchange import Exchange
from atoll_worker.transport.client import ShardClient
from atoll_worker.transport.coordination import READY, Outcome
from atoll_worker.transport.ends import TrainingEnd
from atoll_worker.transport.hands import Hands, Ticket
from atoll_worker.transport.lanes import Outgoing
from atoll_worker.transport.numbers import Base, Encoded
from atoll_worker.transport.side import Kind
from atoll_worker.transport.values import Key, Values

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Sending:
    """See the module. `feed` performs what the rules answer."""

    end: TrainingEnd
    values: Values
    hands: Hands
    client: Callable[[int], ShardClient]
    exchange: Exchange
    feed: Callable[[list[Effect]], None]
    named: dict[Key, tuple[str, ...]] = field(default_factory=dict)  # tensors of the last offer
    works: set[asyncio.Task[Any]] = field(default_factory=set)  # that form what is to be sent

    def offer(self, shard: int, offer: pb.Offer) -> None:
        """Rule 16: what has been captured again since the offer was made is not sent."""
        key = shard, offer.slice
        counter = self.values.captures[key]
        ticket = self.hands.prepare(Kind.OFFER, shard, (offer.slice,), counter)
        work = self._formed(key, self.values.bases[key], counter, ticket)
        forming = self._begin(work, name=f"offer-{shard}-{offer.slice}")

        async def payload() -> Outgoing | None:
            encoded = await forming
            if encoded is None:
                self.feed(self.exchange.capture_lost(shard, offer))
                return None
            return self._outgoing(key, pb.Transfer(offer=offer), encoded, ticket)

        self.client(shard).send_bulk(payload)

    async def _formed(self, key: Key, base: Base, counter: int, ticket: Ticket) -> Encoded | None:
        """What is held here of an offer, once all others have theirs; None if any has lost it."""
        formed = await self.values.formed(key, base, counter)
        others = await ticket.prepared()
        if formed is None or others.lost:
            ticket.drop()
            return None
        self._note_not_finite(key, tuple(dict.fromkeys((*formed.not_finite, *others.not_finite))))
        return formed.encoded

    def _outgoing(self, key: Key, head: pb.Transfer, encoded: Encoded, ticket: Ticket) -> Outgoing:
        """With the byte count of the whole slice; the hands send their parts with the first one."""
        head.encoding, data = encoded
        head.byte_count = self.end.layout.slice(*key).form.byte_count(head.encoding)
        return Outgoing(head, data, partial(ticket.numbered, key[1]))

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
        """The capture regions hold the model as it was made, until training begins.

        So they are sent as they lie, one after the other; only looking at them takes a thread.
        """
        fragments = tuple(part.fragment for part in self.end.layout.shard_slices(shard))
        ticket = self.hands.prepare(Kind.SEED, shard, fragments)
        looked = self._begin(self._looked_at(shard, fragments, ticket), name=f"seed-{shard}")
        for fragment in fragments:
            self.client(shard).send_bulk(partial(self._seed, (shard, fragment), looked, ticket))

    async def _seed(
        self, key: Key, looked: "asyncio.Task[bool]", ticket: Ticket
    ) -> Outgoing | None:
        if not await looked:
            return None
        encoded = self.values.numbers.encode_seed(*key)
        return self._outgoing(key, pb.Transfer(seed=pb.Seed(slice=key[1])), encoded, ticket)

    async def _looked_at(self, shard: int, fragments: tuple[int, ...], ticket: Ticket) -> bool:
        """Whether all values of a shard's seeds are finite, here and at the hands."""
        bad = list[str]()
        for each in fragments:
            bad += await asyncio.to_thread(self.values.numbers.not_finite, shard, each)
        bad += (await ticket.prepared()).not_finite
        if bad:
            self.feed(self.exchange.bad_seed(tuple(dict.fromkeys(bad))))
        return not bad

    def held(self, shard: int, held: pb.Held) -> None:
        """The base as it is held (rule 22)."""
        key = shard, held.version.slice
        encoded = self.values.numbers.encode_base(self.values.bases[key])
        ticket = self.hands.prepare(Kind.HELD, shard, (held.version.slice,))

        def send(others: Outcome) -> None:
            del others
            self._send_bulk(key, pb.Transfer(held=held), encoded, ticket)

        self._when_prepared(ticket, send)

    def _when_prepared(self, ticket: Ticket, then: Callable[[Outcome], None]) -> None:
        """At once, where there are no hands."""
        if ticket.outcome is None:
            then(READY)
            return

        async def waiting() -> None:
            then(await ticket.prepared())

        self._begin(waiting(), name=f"prepared-{ticket.order}")

    def companion(self, companion: Companion, part: int = 0) -> None:
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

    def _send_bulk(self, key: Key, head: pb.Transfer, encoded: Encoded, ticket: Ticket) -> None:
        outgoing = self._outgoing(key, head, encoded, ticket)

        async def payload() -> Outgoing | None:
            return outgoing

        self.client(key[0]).send_bulk(payload)
