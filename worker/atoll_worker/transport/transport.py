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

The values themselves are held by `Values`. An offer belongs to the session in which it was due:
with that session it is forgotten. `SendOffer` begins to form it at once; when its capture was
overwritten meanwhile, nothing is sent, and the rules hear `capture_lost` when the offer's turn
comes, and make another one.

A learner on several hosts has a lane process on each further host (hands.py), which does with its
share of every slice what is done here with the head's. A version has arrived, an offer is sent and
a command behind a Place is given when all of them are ready. Who has lost a hand can do none of it
any more: the training process gets Fail, and all sessions end (rule 30).

The transport ends when the training process leaves or is gone: control messages that wait (the
Leaves) get LEAVE_SECONDS_MAX in all until the shards have read them, then all connections are
closed, and only after them those of the hands. It ends at once, with ExitCode.BUG, when the rules
or this driver raise what they must not: a half-changed state goes on with nobody. Everything
outside is given to the constructor in `Outside`; tests/sim runs this same class in virtual time.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.addresses import split
from atoll_protos.codecs import Form
from atoll_protos.deadline import Deadline
from atoll_protos.exits import ExitCode
from atoll_protos.frames import FrameError, Whole
from atoll_protos.gathering import key_of
from atoll_worker.link import messages
from atoll_worker.link.messages import (
    Boundary,
    Companion,
    Evaluated,
    Fail,
    Leaving,
    Listening,
    Warned,
)
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
from atoll_worker.transport.bulk import OpenChannel, Ready
from atoll_worker.transport.client import ShardClient, channel_ready
from atoll_worker.transport.ends import TrainingEnd
from atoll_worker.transport.hands import Hands
from atoll_worker.transport.numbers import Base, Numbers
from atoll_worker.transport.sending import Sending
from atoll_worker.transport.values import Key, Values, publish_bytes

LEAVE_SECONDS_MAX = 3.0
TROUBLE_SECONDS = 5.0  # between two looks at the credentials
LOOKED_AT_EACH = 101  # adoption; a prime, so that every slice has its turn

log = structlog.get_logger()


class Lines(Protocol):
    """See telemetry.Telemetry."""

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
    outlived: Callable[[], frozenset[str]] = frozenset  # endpoints to dial again; reads files
    clock: Callable[[], float]  # monotonic seconds
    hands: Hands | None = None  # of a learner on several hosts


class Transport:
    """See the module. `run` is its whole life."""

    def __init__(self, outside: Outside) -> None:
        self.end, self.values, self.telemetry = (
            outside.end,
            Values(outside.numbers),
            outside.telemetry,
        )
        self.now, self.layout = outside.clock, outside.end.layout
        self._trouble, self._outlived = outside.trouble, outside.outlived
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
        self.hands = outside.hands or Hands(share=configure.share)
        self.hands.listener = self
        share = None if outside.hands is None else configure.share
        self.clients = [
            ShardClient(shard, endpoint, self, outside.open_channel, outside.ready, share)
            for shard, endpoint in enumerate(configure.endpoints)
        ]
        self.over = asyncio.Event()
        self._bug: Exception | None = None
        self._adoptions = 0
        self._waiting: list[Effect] = []  # for the next turn of the loop
        self._looks: set[asyncio.Task[None]] = set()
        self._owes_nothing = asyncio.Event()  # to the export
        self._away: dict[int, str] = {}  # why shards could not be reached last time
        self._said = ""  # of the credentials
        self._deadline = Deadline(self.now, self.exchange.deadline)
        self.sending = Sending(
            end=self.end,
            values=self.values,
            hands=self.hands,
            client=lambda shard: self.clients[shard],
            exchange=self.exchange,
            feed=self.feed,
        )

    @property
    def bases(self) -> dict[Key, Base]:
        """What the training process has adopted of every slice."""
        return self.values.bases

    async def run(self) -> None:
        """Until the training process leaves or dies; raises what is a bug of the rules or here."""
        configure = self.end.configure
        if not configure.observer:
            self.values.begin(self.exchange.slices)
        if configure.hands:
            host, _ = split(configure.head)
            self.end.send(Listening(port=await self.hands.listen(host)))
        self.end.attach(asyncio.get_running_loop(), self._hear_training, self.over.set)
        over = asyncio.create_task(self.over.wait())
        if configure.hands:
            gathered = asyncio.create_task(self.hands.gathered())
            await asyncio.wait({gathered, over}, return_when=asyncio.FIRST_COMPLETED)
            if gathered.done():
                gathered.result()  # a bug
            gathered.cancel()
        self.feed(self.exchange.start(self.now()))
        works = self._keep_time(), self._keep_looking(), self._keep_hands()
        keepers = [asyncio.create_task(each) for each in works]
        await asyncio.wait({*keepers, over}, return_when=asyncio.FIRST_COMPLETED)
        for keeper in keepers:
            if keeper.done():
                keeper.result()  # a bug
            keeper.cancel()
        if self._bug is not None:
            raise self._bug  # what it has changed by half is of no use to anybody
        await self._companion_taken()
        await asyncio.gather(*(client.leave(LEAVE_SECONDS_MAX) for client in self.clients))
        await self.hands.leave()
        self.telemetry.close()

    async def _companion_taken(self) -> None:
        """Stay until the registrar has what it needs of this learner for the export.

        Where a hand is lost nothing is sent any more.
        """
        if self.hands.lost:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._owes_nothing.wait(), LEAVE_SECONDS_MAX)

    @contextmanager
    def _bugs_end(self) -> Iterator[None]:
        """What the rules or this driver raise ends the process; a bad transfer is its sender's."""
        try:
            yield
        except FrameError:
            raise
        except Exception as error:
            self._bug = self._bug or error
            self.over.set()
            raise

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order; none any more when a hand is lost.

        A turn of the loop copies one slice. At the end of a job all of them are placed, which may
        be many GB, and meanwhile the shards are to hear this learner.
        """
        if self.hands.lost:
            return
        with self._bugs_end():
            self._perform_turn(effects)
        if self.exchange.owes_companion:
            self._owes_nothing.clear()
        else:
            self._owes_nothing.set()
        self._deadline.moved()

    def _perform_turn(self, effects: list[Effect]) -> None:
        """Perform effects up to the second Place; the rest, and what comes after it, waits."""
        places = [n for n, effect in enumerate(effects) if isinstance(effect, Place)]
        end = 0 if self._waiting else places[1] if len(places) > 1 else len(effects)
        for effect in effects[:end]:
            self._perform(effect)
        if end < len(effects) and not self._waiting:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._waiting += effects[end:]

    def _next_turn(self) -> None:
        effects, self._waiting = self._waiting, []
        self.feed(effects)

    # ------------------------------------------------------------ what the clients say

    def connected(self, shard: int) -> None:
        """See client.Listener."""
        with self._bugs_end():
            self.feed(self.exchange.connected(shard, self.now()))

    def opened(self, shard: int, welcome: pb.Welcome) -> None:
        """See client.Listener."""
        self._away.pop(shard, None)
        self.hands.opened(shard, welcome)

    def disconnected(self, shard: int, reason: str) -> None:
        """See client.Listener."""
        self.hands.closed(shard)
        if not self.over.is_set():
            if self._away.get(shard) != reason:
                log.info("disconnected", shard=shard, reason=reason)
            self._away[shard] = reason
            with self._bugs_end():
                self.feed(self.exchange.disconnected(shard, reason, self.now()))

    def message(self, shard: int, message: pb.ToLearner) -> None:
        """See client.Listener."""
        with self._bugs_end():
            self.feed(self.exchange.message(shard, message, self.now()))

    def publish_started(self, shard: int, head: pb.Transfer) -> int | None:
        """See client.Listener."""
        if not head.HasField("publish"):
            return None
        with self._bugs_end():
            if not self.exchange.publish_started(shard, head.publish, self.now()):
                return None
        return publish_bytes(self.layout, self.end.run_file.sync, shard, head)

    def form(self, shard: int, head: pb.Transfer) -> Form | None:
        """See client.Listener."""
        kind, fragment = key_of(head)
        return None if kind == "companion" else self.layout.slice(shard, fragment).form

    async def published(self, shard: int, whole: Whole) -> None:
        """See client.Listener."""
        self.hands.verified(shard, whole)

    # ------------------------------------------------------------ what the hands say

    def arrived(self, shard: int, whole: Whole) -> None:
        """See hands.HandsListener."""
        with self._bugs_end():
            self.values.arrived(shard, whole.head, whole.payload)
            self.feed(self.exchange.published(shard, whole.head.publish, self.now()))

    def command(self, command: messages.Command) -> None:
        """See hands.HandsListener."""
        self.end.send(command)

    def lanes_lost(self, shard: int, reason: str, remedy: str) -> None:
        """See hands.HandsListener."""
        if remedy:
            self.clients[shard].refuse(reason, remedy)
        self.clients[shard].hang_up(reason)

    # ------------------------------------------------------------ performing

    def _hear_training(self, message: Any) -> None:
        with self._bugs_end():
            self._from_training(message)

    def _from_training(self, message: Any) -> None:
        match message:
            case Boundary():
                for key in message.captured:
                    self.values.captured(key)
                self.feed(self.exchange.boundary(message, self.now()))
            case Warned(reason=reason):
                self._perform(Record({"event": "warning", "reason": reason}))
            case Companion():
                self.sending.companion(message)
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
                self.hands.command(command)
            case SendMessage(shard, message):
                if message.HasField("join") and self.end.configure.lanes > 1:
                    message.join.lanes = self.end.configure.lanes  # the rules know of none
                self.clients[shard].send(message)
            case SendOffer(shard, offer):
                self.sending.offer(shard, offer)
            case SendSeed(shard):
                self.sending.seed(shard)
            case SendHeld(shard, held):
                self.sending.held(shard, held)
            case Place(shard, fragment, number):
                self.values.place(shard, fragment, number)
                self.hands.place(shard, fragment, number)
            case Promote(shard, fragment, number):
                self.values.promote(shard, fragment, number)
                self.hands.promote(shard, fragment, number)
                self._look_now_and_then((shard, fragment))
            case Discard(shard, fragment, number):
                self.values.discard(shard, fragment, number)
                self.hands.discard(shard, fragment, number)
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
            case HangUp(shard, reason):
                self.clients[shard].hang_up(reason)

    def _look_now_and_then(self, key: Key) -> None:
        """Whether what is adopted has the bits of its version; a part of it has no digest."""
        self._adoptions += 1
        held = self.exchange.slices[key].held
        if self._adoptions % LOOKED_AT_EACH == 0 and held and self.end.configure.share.is_whole:
            look = asyncio.create_task(self._look(key, self.values.bases[key], held))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self, key: Key, base: Base, held: pb.Version) -> None:
        """An integer wire has each learner compute the base that its shard has computed."""
        if await asyncio.to_thread(self.values.numbers.digest, base) == held.digest:
            return
        reason = (
            f"version {held.number} of slice {key[1]} of shard {key[0]} has other bits here than at"
            " its shard: this machine rounds otherwise, and what it trains is merged as if it began"
            " from the shard's values; set sync.wire.down to bf16 or f32, or run this learner on"
            " machines like those of the shards"
        )
        log.error(reason)
        self._perform(Record({"event": "warning", "reason": reason}))

    async def _keep_hands(self) -> None:
        """When one is lost, end everything but the link, over which the training process hears it.

        An Adopt that waits for what a lost hand was to place is never sent.
        """
        reason = await self.hands.failed()
        log.error("a lane process is lost", reason=reason)
        self.hands.abort()
        for client in self.clients:
            client.hang_up(reason)
        remedy = "start all ranks of this learner again"
        self.end.send(Fail(exit_code=int(ExitCode.TRY_AGAIN), reason=f"{reason}; {remedy}"))
        await asyncio.Event().wait()

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
            outlived = await asyncio.to_thread(self._outlived)
            again = [each.shard for each in self.clients if each.endpoint in outlived]
            self.feed(self.exchange.renewed(again))
            await asyncio.sleep(TROUBLE_SECONDS)

    async def _keep_time(self) -> None:
        while True:
            await self._deadline.wait()
            self.feed(self.exchange.tick_time(self.now()))
