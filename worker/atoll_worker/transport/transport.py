"""The transport process of a learner or observer: drives its rules over gRPC and shared memory.

A learner is two processes. The training process runs the user's loop and must never wait for the
network; this one does everything else. Its rules (`rules.exchange.Exchange`) are a machine without
I/O: an input and the time go in, a list of effects comes out, and `Transport.feed` performs them
in order. It never waits: what takes long (connecting, sending, encoding an offer) becomes a task,
and its result is the next input.

Inputs come from three sides, all in one event loop:
- the training process: `Boundary` after each step, `Leaving`, `Evaluated`, and its end;
- the shards, by way of one `ShardClient` each: connected, a message, a Publish that begins, a
  Publish that is whole, disconnected (once for every `Dial`);
- the clock, when `Exchange.deadline` is reached.

A version on its way to the model passes three places. What has arrived whole is a *candidate*.
`Place` copies it into the adopt region of the shared memory and `Command(Adopt)` names it to the
training process, which takes it at its next step boundary. The Boundary that says so leads to
`Promote`: the candidate is the *base* now. `Discard` drops one that a newer one has replaced. So
`bases` are always what the training process really has adopted, bit for bit.

An offer is `base - theta` of one slice. The training process copies theta into the capture region
at a step boundary, and the region's counter is odd while it writes. `SendOffer` forms and encodes
the difference at once, in a thread, so that no other message waits for it. Then it compares the
counter with that of the mark that the offer names: when the region has been written again, nothing
is sent; the rules hear `capture_lost` when the offer's turn comes, and make another one. An offer
belongs to the session in which it was due: with that session it is forgotten.

The transport ends when the training process leaves or is gone: control messages that wait (the
Leaves) get LEAVE_SECONDS_MAX in all, then all connections are closed. Everything outside is given
to the constructor in `Outside`; tests/sim runs this same class in virtual time.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import Form, base_encoding, encoding_of
from atoll_protos.companion import part_count
from atoll_protos.deadline import Deadline
from atoll_protos.frames import Buffer
from atoll_protos.gathering import key_of
from atoll_protos.layout import Layout
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.run import RunFile
from atoll_worker.link.messages import Boundary, Companion, Configure, Evaluated, Leaving, Warned
from atoll_worker.rules.effects import (
    Command,
    Dial,
    Discard,
    Effect,
    HangUp,
    Place,
    Promote,
    Record,
    SendHeld,
    SendMessage,
    SendOffer,
    SendSeed,
)
from atoll_worker.rules.exchange import Exchange
from atoll_worker.transport.client import OpenChannel, Ready, ShardClient, channel_ready
from atoll_worker.transport.lanes import Outgoing
from atoll_worker.transport.numbers import Base, Encoded, Numbers

LEAVE_SECONDS_MAX = 3.0
TROUBLE_SECONDS = 5.0  # between two looks at the credentials
FORMED_AT_ONCE_MAX = 4  # offers; each takes a thread and as much memory as its slice in f32

log = structlog.get_logger()


class TrainingEnd(Protocol):
    """The way to the training process; see link.socket.TransportEnd."""

    configure: Configure
    run_file: RunFile
    layout: Layout

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        """Call back in the loop: every message, and once the end."""

    def send(self, command: Any) -> None:
        """Send one command; never waits."""

    def companion_part(self, part: int, byte_count: int, *, changed: bool) -> bytes:
        """One part of the companion that the training process has given."""

    def companion_sent(self) -> None:
        """The whole companion is sent, and may be forgotten."""


class Lines(Protocol):
    """See telemetry.Telemetry."""

    def open(self) -> None:
        """Before the first line."""

    def write(self, fields: dict[str, Any]) -> None:
        """Add one line."""

    def close(self) -> None:
        """Write out what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the transport is given: `main` makes real parts, tests/sim ones in virtual time."""

    end: TrainingEnd
    numbers: Numbers
    telemetry: Lines
    open_channel: OpenChannel
    ready: Ready = channel_ready
    trouble: Callable[[], str] | None = None  # why it could not dial now; reads files
    clock: Callable[[], float]  # monotonic seconds


class Transport:
    """See the module. `run` is its whole life."""

    def __init__(self, outside: Outside) -> None:
        self.end, self.numbers, self.telemetry = outside.end, outside.numbers, outside.telemetry
        self.now, self.layout = outside.clock, outside.end.layout
        self._trouble = outside.trouble
        configure = self.end.configure
        self.exchange = Exchange(
            run_file=self.end.run_file,
            layout=self.end.layout,
            slot=configure.slot,
            uid=configure.uid,
            instance=configure.instance,
            observer=configure.observer,
            frozen_digest=configure.frozen_digest,
            has_companion=configure.has_companion,
        )
        self.clients = [
            ShardClient(shard, endpoint, self, outside.open_channel, outside.ready)
            for shard, endpoint in enumerate(configure.endpoints)
        ]
        self.bases: dict[tuple[int, int], Base] = {}  # as adopted
        self.candidates: dict[tuple[int, int, int], Base] = {}  # received, not yet adopted
        self.captures: dict[tuple[int, int], int] = {}  # counter that the newest mark belongs to
        self.over = asyncio.Event()
        self._owes_nothing = asyncio.Event()  # to the export
        self.not_finite: dict[tuple[int, int], tuple[str, ...]] = {}  # tensors of the last offer
        self._away: dict[int, str] = {}  # why shards could not be reached last time
        self._said = ""  # of the credentials
        self._deadline = Deadline(self.now, self.exchange.deadline)
        self._forming: set[asyncio.Task[Encoded | None]] = set()
        self._threads = asyncio.Semaphore(FORMED_AT_ONCE_MAX)

    async def run(self) -> None:
        """Until the training process leaves or dies."""
        self.telemetry.open()
        if not self.end.configure.observer:
            self.captures = {key: self.numbers.counter(*key) for key in self.exchange.slices}
        self.end.attach(asyncio.get_running_loop(), self._from_training, self.over.set)
        self.feed(self.exchange.start(self.now()))
        keepers = [asyncio.create_task(each) for each in (self._keep_time(), self._keep_looking())]
        over = asyncio.create_task(self.over.wait())
        await asyncio.wait({*keepers, over}, return_when=asyncio.FIRST_COMPLETED)
        for keeper in keepers:
            if keeper.done():
                keeper.result()  # a bug
            keeper.cancel()
        await self._companion_taken()
        await asyncio.gather(*(client.drained(LEAVE_SECONDS_MAX) for client in self.clients))
        for client in self.clients:
            client.hang_up()
        self.telemetry.close()

    async def _companion_taken(self) -> None:
        """Stay until the registrar has what it needs of this learner for the export."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._owes_nothing.wait(), LEAVE_SECONDS_MAX)

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order."""
        for effect in effects:
            self._perform(effect)
        if self.exchange.owes_companion:
            self._owes_nothing.clear()
        else:
            self._owes_nothing.set()
        self._deadline.moved()

    # ------------------------------------------------------------ what the clients say

    def connected(self, shard: int) -> None:
        """See client.Listener."""
        self._away.pop(shard, None)
        self.feed(self.exchange.connected(shard, self.now()))

    def disconnected(self, shard: int, reason: str) -> None:
        """See client.Listener."""
        if not self.over.is_set():
            if self._away.get(shard) != reason:
                log.info("disconnected", shard=shard, reason=reason)
            self._away[shard] = reason
            self.feed(self.exchange.disconnected(shard, reason, self.now()))

    def message(self, shard: int, message: pb.ToLearner) -> None:
        """See client.Listener."""
        self.feed(self.exchange.message(shard, message, self.now()))

    def publish_started(self, shard: int, head: pb.Transfer) -> int | None:
        """See client.Listener."""
        if not head.HasField("publish"):
            return None
        if not self.exchange.publish_started(shard, head.publish, self.now()):
            return None
        part = self.layout.slice(shard, head.publish.version.slice)
        wire_down = self.end.run_file.sync.wire_down
        base = base_encoding(wire_down)
        whole = base, self.layout.final_encoding(part, base)
        known = (encoding_of(wire_down),) if head.publish.difference else whole
        return part.form.byte_count(head.encoding) if head.encoding in known else None

    def form(self, shard: int, head: pb.Transfer) -> Form | None:
        """See client.Listener."""
        kind, fragment = key_of(head)
        return None if kind == "companion" else self.layout.slice(shard, fragment).form

    async def published(self, shard: int, head: pb.Transfer, payload: bytearray) -> None:
        """See client.Listener."""
        publish = head.publish
        key = shard, publish.version.slice
        base = self.numbers.decode(shard, publish, head.encoding, payload, self.bases.get(key))
        self.candidates[*key, publish.version.version.number] = base
        self.feed(self.exchange.published(shard, publish, self.now()))

    # ------------------------------------------------------------ performing

    def _from_training(self, message: Any) -> None:
        match message:
            case Boundary():
                for key in message.captured:
                    self.captures[key] += 2
                self.feed(self.exchange.boundary(message, self.now()))
            case Warned(reason=reason):
                self._perform(Record({"event": "warning", "reason": reason}))
            case Companion():
                self._send_part(message, 0)
            case Leaving(reason=reason):
                self.feed(self.exchange.leave(reason, self.now()))
                self.over.set()
            case Evaluated(tick=tick, loss=loss, tokens=tokens, seconds=seconds):
                evaluation = pb.Evaluation(tick=tick, loss=loss, tokens=tokens, seconds=seconds)
                self.feed(self.exchange.evaluated(evaluation))
                line = {"tick": tick, "loss": loss, "tokens": tokens, "seconds": seconds}
                self.telemetry.write({"run": self.exchange.run, **line})

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Command(command):
                self.end.send(command)
            case SendMessage(shard, message):
                if message.HasField("join") and self.end.configure.lanes > 1:
                    message.join.lanes = self.end.configure.lanes  # the rules know of none
                self.clients[shard].send(message)
            case SendOffer(shard, offer):
                self._send_offer(shard, offer)
            case SendSeed(shard):
                self._send_seed(shard)
            case SendHeld(shard, held):
                self._send_held(shard, held)
            case Place(shard, fragment, number) if (shard, fragment, number) in self.candidates:
                self.numbers.place(shard, fragment, self.candidates[shard, fragment, number])
            case Place(shard, fragment):  # the final values, once more
                self.numbers.place(shard, fragment, self.bases[shard, fragment])
            case Promote(shard, fragment, number):
                self.bases[shard, fragment] = self.candidates.pop((shard, fragment, number))
            case Discard(shard, fragment, number):
                self.candidates.pop((shard, fragment, number), None)
            case Record(fields) if not self.end.configure.observer:
                exchange = self.exchange
                known = {
                    "run": exchange.run,
                    "slot": exchange.slot,
                    "incarnation": exchange.incarnation,
                }
                self.telemetry.write({**known, **fields})
            case Dial(shard):
                self.clients[shard].dial()
            case HangUp(shard):
                self.clients[shard].hang_up()

    def _send_offer(self, shard: int, offer: pb.Offer) -> None:
        """Rule 16: what has been captured again since the offer was made is not sent."""
        key = shard, offer.slice
        work = self._formed(key, self.bases[key], self.captures[key])
        forming = asyncio.create_task(work, name=f"offer-{shard}-{offer.slice}")
        self._forming.add(forming)
        forming.add_done_callback(self._forming.discard)

        async def payload() -> Outgoing | None:
            encoded = await forming
            if encoded is None:
                self.feed(self.exchange.capture_lost(shard, offer))
                return None
            encoding, data = encoded
            return pb.Transfer(offer=offer, encoding=encoding, byte_count=len(data)), data

        self.clients[shard].send_bulk(payload)

    async def _formed(self, key: tuple[int, int], base: Base, counter: int) -> Encoded | None:
        """The difference to the capture of this count; None if the region has another one."""
        async with self._threads:
            difference = await asyncio.to_thread(self.numbers.difference, *key, base)
            if self.numbers.counter(*key) != counter:
                return None
            bad = await asyncio.to_thread(self.numbers.not_finite, *key, difference)
            self._note_not_finite(key, bad)
            return await asyncio.to_thread(self.numbers.encode_difference, *key, difference)

    def _note_not_finite(self, key: tuple[int, int], names: tuple[str, ...]) -> None:
        """Say it when a slice of the model begins or ends to have values that are not finite."""
        if names == self.not_finite.get(key, ()):
            return
        self.not_finite[key] = names
        if names:
            log.error(
                "values are not finite: nothing of this slice is merged until its next adoption",
                tensors=names,
                remedy="lower the learning rate, clip the gradients, or look at the data",
            )
        else:
            log.info("all values of this slice are finite again", shard=key[0], slice=key[1])

    def _send_seed(self, shard: int) -> None:
        """The capture regions hold the model as it was made, until training begins."""
        for part in self.layout.shard_slices(shard):
            if bad := self.numbers.not_finite(shard, part.fragment):
                self.feed(self.exchange.bad_seed(bad))
                return
        for part in self.layout.shard_slices(shard):
            encoding, data = self.numbers.encode_seed(shard, part.fragment)
            seed = pb.Seed(slice=part.fragment)
            head = pb.Transfer(seed=seed, encoding=encoding, byte_count=len(data))
            self._send_bulk(shard, head, data)

    def _send_held(self, shard: int, held: pb.Held) -> None:
        """The base as it is held (rule 22)."""
        encoding, data = self.numbers.encode_base(self.bases[shard, held.version.slice])
        self._send_bulk(
            shard, pb.Transfer(held=held, encoding=encoding, byte_count=len(data)), data
        )

    def _send_part(self, companion: Companion, part: int) -> None:
        """Each part is put in line when the one before it is on its way: offers go in between."""
        changed, byte_count = companion.changed, companion.byte_count

        async def payload() -> Outgoing | None:
            data = await asyncio.to_thread(
                self.end.companion_part, part, byte_count, changed=changed
            )
            head = pb.Companion(changed=changed, part=part, companion_bytes=byte_count)
            if part + 1 < part_count(byte_count):
                self._send_part(companion, part + 1)
            elif not changed:
                self.end.companion_sent()
            return pb.Transfer(companion=head, byte_count=len(data)), data

        self.clients[REGISTRAR_SHARD].send_bulk(payload)

    def _send_bulk(self, shard: int, head: pb.Transfer, data: Buffer) -> None:
        async def payload() -> Outgoing | None:
            return head, data

        self.clients[shard].send_bulk(payload)

    async def _keep_looking(self) -> None:
        """Look at the credentials from time to time: what is wrong is said while shards hear it."""
        if self._trouble is None:
            await asyncio.Event().wait()
        while self._trouble is not None:
            trouble = await asyncio.to_thread(self._trouble)
            if trouble and trouble != self._said:
                log.warning("credentials cannot be used", reason=trouble)
            self._said = trouble
            self.feed(self.exchange.troubled(trouble, self.now()))
            await asyncio.sleep(TROUBLE_SECONDS)

    async def _keep_time(self) -> None:
        while True:
            await self._deadline.wait()
            self.feed(self.exchange.tick_time(self.now()))
