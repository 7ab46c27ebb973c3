"""The transport process of a learner or observer: drives its rules over gRPC and shared memory.

`Transport.feed` performs the effects of the rules (`rules.exchange.Exchange`) in order. It never
waits: what takes long (connecting, sending, encoding an offer) becomes a task, and its result is
the next input. All inputs come in one event loop, from the training process, from a `ShardClient`
for each shard, and from the clock. The values themselves are a `Carrier`'s.

An offer belongs to the session in which it was due: with that session it is forgotten. When its
capture was overwritten, the rules hear `capture_lost` when the offer's turn comes.

The transport ends when the training process leaves or is gone. What a finished learner owes to the
export gets WAITS_SECONDS until the registrar has it (rule 36). The Leaves get LEAVE_SECONDS_MAX in
all (rule 24). A bug of the rules or of this driver ends it at once, with ExitCode.BUG: a
half-changed state goes on with nobody.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import Deadline
from atoll_protos.transfer.frames import FrameError
from atoll_worker.link.messages import (
    Boundary,
    Evaluated,
    Leaving,
    LoggedValues,
    Warned,
)
from atoll_worker.link.socket import TransportEnd
from atoll_worker.rules.exchange import Exchange
from atoll_worker.rules.learner_state import (
    Command,
    Dial,
    Discard,
    Effect,
    HangUp,
    LearnerState,
    PlaceValue,
    Promote,
    SendHeld,
    SendMessage,
    SendOffer,
    SendSeed,
    TelemetryRecord,
)
from atoll_worker.transport.carrier import Base, Carrier, Key, Numbers
from atoll_worker.transport.control_stream import (
    OpenChannel,
    Payloads,
    Ready,
    ShardClient,
    channel_ready,
)

FLUSH_SECONDS: Final = 0.5
LOGGED: Final = "logged"  # the event of what a script logs, as often as it steps
WAITING_BYTES_MAX: Final = 1 << 20  # of lines that a disk without room takes later

log = structlog.get_logger()


class Telemetry:
    """Appends JSON lines with their `time`, written out twice a second; without a folder none.

    What an offer counts is written out before it leaves: a machine that loses its power has the
    lines of all that can be merged. Without a slot it is an observer's. What the disk does not take
    is tried again, up to WAITING_BYTES_MAX, and what comes after that is left out.
    """

    def __init__(self, folder: str, slot: str) -> None:
        name = f"learners/{slot}.jsonl" if slot else "evaluations.jsonl"
        self._path = Path(folder) / name if folder else None
        self._waiting = bytearray()
        self._flushed_at = 0.0
        self._trouble = ""

    def write(self, fields: dict[str, Any]) -> None:
        if self._path is None:
            return
        now = time.time()
        line = (json.dumps({"time": now, **fields}) + "\n").encode()
        if len(self._waiting) + len(line) <= WAITING_BYTES_MAX:
            self._waiting += line
        often = "t_m" in fields or fields.get("event") == LOGGED
        if now - self._flushed_at >= FLUSH_SECONDS or not often:
            self.flush()

    def flush(self) -> None:
        if self._path is None or not self._waiting:
            return
        path, trouble = self._path, ""
        self._flushed_at = time.time()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(0o600)  # also where the script's files are for others
            with path.open("ab", buffering=0) as file:
                while self._waiting:
                    del self._waiting[: file.write(self._waiting)]
        except OSError as error:
            trouble = str(error)
        if trouble and not self._trouble:
            log.warning("telemetry waits", reason=trouble)
        self._trouble = trouble


LEAVE_SECONDS_MAX = 3.0
TROUBLE_SECONDS = 5.0  # between two looks at the credentials
LOOKED_AT_EACH = 101  # adoption; a prime, so that every slice has its turn


@dataclass(kw_only=True, eq=False)
class Transport:
    """See the module. `run` is its whole life; tests/sim gives it other parts, in virtual time."""

    end: TransportEnd
    numbers: Numbers
    telemetry: Telemetry
    open_channel: OpenChannel
    ready: Ready = channel_ready
    trouble: Callable[[], str] | None = None  # why it could not dial now; reads files
    outlived: Callable[[], frozenset[str]] = frozenset  # endpoints to dial again; reads files
    now: Callable[[], float]  # monotonic seconds

    def __post_init__(self) -> None:
        configure = self.end.configure
        self.exchange = Exchange(LearnerState(configure=configure))
        self.clients = [
            ShardClient(shard, endpoint, self, self.open_channel, self.ready)
            for shard, endpoint in enumerate(configure.endpoints)
        ]
        self.over = asyncio.Event()
        self._bug: Exception | None = None
        self._adoptions = 0
        self._waiting: list[Effect] = []  # for the next turn of the loop
        self._looks: set[asyncio.Task[None]] = set()
        self._away: dict[int, str] = {}  # why shards could not be reached last time
        self._said = ""  # of the credentials
        self._deadline = Deadline(self.now, self.exchange.deadline)
        self.carrier = Carrier(
            end=self.end,
            numbers=self.numbers,
            exchange=self.exchange,
            open_channel=self.open_channel,
            client=lambda shard: self.clients[shard],
            feed=self.feed,
            bugs_end=self._bugs_end,
            now=self.now,
        )
        self.values = self.carrier.values

    async def run(self) -> None:
        """Until the training process leaves or dies; raises what is a bug of the rules or here."""
        configure = self.end.configure
        if not configure.observer:
            self.values.begin(self.exchange.state.slices)
        self.end.attach(asyncio.get_running_loop(), self._hear_training, self.over.set)
        over = asyncio.create_task(self.over.wait())
        self.feed(self.exchange.start(self.now()))
        works = [self._keep_time()]
        if self.trouble is not None:
            works.append(self._keep_looking())
        keepers = [asyncio.create_task(work) for work in works]
        await asyncio.wait({*keepers, over}, return_when=asyncio.FIRST_COMPLETED)
        for keeper in keepers:
            if keeper.done():
                keeper.result()  # a bug
            keeper.cancel()
        if self._bug is not None:
            raise self._bug  # what it has changed by half is of no use to anybody
        await asyncio.gather(*(client.leave(LEAVE_SECONDS_MAX) for client in self.clients))
        self.telemetry.flush()

    @contextmanager
    def _bugs_end(self) -> Iterator[None]:
        try:
            yield
        except FrameError:
            raise
        except Exception as error:
            self._bug = self._bug or error
            self.over.set()
            raise

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order.

        A turn of the loop copies one slice. At the end of a job all of them are placed, which may
        be many GB, and meanwhile the shards are to hear this learner.
        """
        with self._bugs_end():
            self._perform_turn(effects)
        self._deadline.moved()

    def _perform_turn(self, effects: list[Effect]) -> None:
        """Up to the second PlaceValue; the rest, and what comes after it, waits."""
        places = [n for n, effect in enumerate(effects) if isinstance(effect, PlaceValue)]
        end = 0 if self._waiting else places[1] if len(places) > 1 else len(effects)
        for effect in effects[:end]:
            self._perform(effect)
        if end < len(effects) and not self._waiting:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._waiting += effects[end:]

    def _next_turn(self) -> None:
        effects, self._waiting = self._waiting, []
        self.feed(effects)

    def connected(self, shard: int) -> None:
        with self._bugs_end():
            self.feed(self.exchange.connected(shard, self.now()))

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Payloads) -> Any:
        self._away.pop(shard, None)
        return self.carrier.opened(shard, welcome, payloads)

    def disconnected(self, shard: int, reason: str) -> None:
        reason = self.exchange.state.shards[shard].end_reason or reason
        if not self.over.is_set():
            if self._away.get(shard) != reason:
                log.info("disconnected", shard=shard, reason=reason)
            self._away[shard] = reason
            with self._bugs_end():
                self.feed(self.exchange.disconnected(shard, reason, self.now()))

    def message(self, shard: int, message: pb.ToLearner) -> None:
        with self._bugs_end():
            self.feed(self.exchange.message(shard, message, self.now()))

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
                self._perform(TelemetryRecord({"event": "warning", "reason": reason}))
            case LoggedValues(values=values):
                self.feed(self.exchange.logged(values))
            case Leaving(reason=reason):
                self.feed(self.exchange.leave(reason, self.now()))
                self.over.set()
            case Evaluated(tick=tick, loss=loss, tokens=tokens, seconds=seconds):
                evaluation = pb.Evaluation(
                    tick=tick, loss=loss, tokens=tokens, seconds=seconds, final=message.final
                )
                self.feed(self.exchange.evaluated(evaluation))
                line = {"tick": tick, "loss": loss, "tokens": tokens, "seconds": seconds}
                self.telemetry.write({"run": self.exchange.state.run, **line})

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Command(command):
                self.end.send(command)
            case SendMessage(shard, message):
                if message.HasField("join") and self.end.configure.lanes > 1:
                    message.join.lanes = self.end.configure.lanes  # the rules know of none
                self.clients[shard].send(message)
            case SendOffer(shard, offer):
                self.telemetry.flush()
                self.carrier.offer(shard, offer)
            case SendSeed(shard):
                self.carrier.seed(shard)
            case SendHeld(shard, held):
                self.carrier.held(shard, held)
            case PlaceValue(shard, fragment, number):
                self.values.place(shard, fragment, number)
            case Promote(shard, fragment, number):
                self.values.promote(shard, fragment, number)
                self._look_now_and_then((shard, fragment))
            case Discard(shard, fragment, number):
                self.values.discard(shard, fragment, number)
            case TelemetryRecord(fields) if not self.end.configure.observer:
                state = self.exchange.state
                known = {"run": state.run, "slot": self.end.configure.slot}
                self.telemetry.write({**known, "incarnation": state.incarnation, **fields})
            case Dial(shard):
                self.clients[shard].dial()
            case HangUp(shard, reason):
                self.clients[shard].hang_up(reason)

    def _look_now_and_then(self, key: Key) -> None:
        """Whether what is adopted has the bits of its version."""
        self._adoptions += 1
        held = self.exchange.state.slices[key].held
        if self._adoptions % LOOKED_AT_EACH == 0 and held:
            look = asyncio.create_task(self._look(key, self.values.bases[key], held))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self, key: Key, base: Base, held: pb.Version) -> None:
        """Check that a base on an integer wire has the bits that its shard computed."""
        if await asyncio.to_thread(self.values.numbers.digest, base) == held.digest:
            return
        reason = (
            f"version {held.number} of slice {key[1]} of shard {key[0]} has other bits here than at"
            " its shard: this machine rounds otherwise, and what it trains is merged as if it began"
            " from the shard's values; set sync.wire.down to bf16 or f32, or run this learner on"
            " machines like those of the shards"
        )
        log.error(reason)
        self._perform(TelemetryRecord({"event": "warning", "reason": reason}))

    async def _keep_looking(self) -> None:
        """Report what is wrong with the credentials while shards can receive it."""
        while self.trouble is not None:
            trouble = await asyncio.to_thread(self.trouble)
            if trouble and trouble != self._said:
                log.warning("credentials cannot be used", reason=trouble)
            self._said = trouble
            self.feed(self.exchange.troubled(trouble, self.now()))
            outlived = await asyncio.to_thread(self.outlived)
            again = [client.shard for client in self.clients if client.endpoint in outlived]
            self.feed(self.exchange.renewed(again))
            await asyncio.sleep(TROUBLE_SECONDS)

    async def _keep_time(self) -> None:
        while True:
            await self._deadline.wait()
            self.feed(self.exchange.tick_time(self.now()))
