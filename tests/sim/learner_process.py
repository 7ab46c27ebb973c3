"""A learner's process: production's `Transport` and all that is in it, on a simulated machine."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_worker.link.messages import Boundary, Configure, Leaving
from atoll_worker.rules.exchange import Exchange
from atoll_worker.rules.learner_state import Effect, SendMessage, SendOffer
from atoll_worker.transport.carrier import Numbers
from atoll_worker.transport.transport import Transport
from sim.channel import Channel
from sim.symbols import Change, Difference, Key, Symbol, Value, seed_value
from sim.training_process import LINK_SECONDS, TrainingProcess

if TYPE_CHECKING:
    from sim.world import World


class LearnerProcess(TrainingProcess):
    """One process start of a slot; both its processes live and die together here."""

    def __init__(
        self, world: "World", slot: str, uid: str, instance: str, *, observer: bool = False
    ) -> None:
        keys = [
            (shard, part.fragment)
            for shard in range(world.run_file.shards)
            for part in world.layout.shard_slices(shard)
        ]
        super().__init__(world, slot, instance, keys)
        self.uid, self.instance, self.observer = uid, instance, observer
        drawn = world.sim.random(f"lanes {instance}")
        divides = not observer and drawn.random() < world.scenario.lanes_share
        self.lanes = drawn.choice((2, 3)) if divides else 1
        self.end = TrainingEnd(self)
        self.transport = Transport(
            end=self.end,  # type: ignore[arg-type]
            numbers=self.make_numbers(),
            telemetry=Telemetry(self),  # type: ignore[arg-type]
            open_channel=self._open_channel,
            now=self.time,
        )
        self.exit_code: int | None = None
        self.lie: pb.ToShard | None = None  # becomes part of the next message of its kind
        self.lies_until = 0.0  # and of all that follow until then
        self._show_joins()
        self._show_offers()

    def _show_joins(self) -> None:
        """The checkers see every Join at the moment at which it is sent."""
        connected = self.exchange.connected

        def shown(shard: int, now: float) -> list[Effect]:
            effects = connected(shard, now)
            for effect in effects:
                if isinstance(effect, SendMessage):
                    self.world.watchers.tell("learner_joins", self, shard, effect.message.join)
            return effects

        self.exchange.connected = shown  # type: ignore[method-assign]
        heard = self.exchange.heard

        def came(shard: int, now: float) -> None:
            self.world.watchers.tell("learner_bytes", self, shard)
            heard(shard, now)

        self.exchange.heard = came  # type: ignore[method-assign]

    def _show_offers(self) -> None:
        """The checkers see every offer as the rules decide it, and which captures are lost."""
        perform, lost = self.transport._perform, self.exchange.capture_lost
        tell = self.world.watchers.tell

        def performed(effect: Effect) -> None:
            if isinstance(effect, SendOffer):
                tell("handed_over", self, (effect.shard, effect.offer.slice), effect.offer)
            perform(self._with_lie(effect))
            self.world.performed(effect)

        def lost_one(shard: int, offer: pb.Offer) -> list[Effect]:
            tell("capture_lost", self, (shard, offer.slice), offer)
            return lost(shard, offer)

        self.transport._perform = performed  # type: ignore[method-assign]
        self.exchange.capture_lost = lost_one  # type: ignore[method-assign]

    def _with_lie(self, effect: Effect) -> Effect:
        lie = self.lie
        if lie is None or not isinstance(effect, SendMessage):
            return effect
        if effect.message.WhichOneof("kind") != lie.WhichOneof("kind"):
            return effect
        if self.sim.now >= self.lies_until:
            self.lie = None
        message = pb.ToShard()
        message.MergeFrom(effect.message)
        if named := {each.slice for each in lie.report.slices}:  # it names each slice once
            honest = [each for each in message.report.slices if each.slice not in named]
            del message.report.slices[:]
            message.report.slices.extend(honest)
        message.MergeFrom(lie)
        return SendMessage(effect.shard, message)

    def make_numbers(self) -> Numbers:
        return SymbolicNumbers(self)

    @property
    def exchange(self) -> Exchange:
        return self.transport.exchange

    @property
    def incarnation(self) -> int:
        return self.exchange.state.incarnation

    @property
    def bases(self) -> dict[Key, Value]:
        return {key: base.value for key, base in self.transport.values.bases.items()}

    @property
    def is_whole(self) -> bool:
        """Whether all its processes are there and move."""
        return self.alive and not self.paused

    def time(self) -> float:
        return self.sim.now

    def remember(self, run: str, tick: int, incarnation: int) -> None:
        """Make it a process of another run, which was at this tick."""
        state = self.exchange.state
        state.run, state.incarnation = run, incarnation
        for shard in state.shards:
            shard.tick = tick

    # ------------------------------------------------------------ life

    def start(self) -> None:
        self._main = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.transport.run()
        except Exception as error:
            self.sim.fails(error)
        self.kill("left")

    def died(self) -> None:
        """Connections break; the machine's memory is gone."""
        for connection in self.world.connections:
            if connection.ends[0].process is self:
                connection.end_died(0)
        self.world.watchers.tell("learner_ended", self)

    def leave(self, reason: str) -> None:
        self.exit_code = 0
        self.end.say(Leaving(reason=reason))

    def fail(self, code: int, reason: str) -> None:
        self.exit_code = code

        def end() -> None:
            self.kill(f"exit {code}: {reason}")
            self.world.learner_exited(self)

        self.after(0.0, end)

    def say_boundary(self, boundary: Boundary) -> None:
        """The training process has finished a step, or more work."""
        self.end.say(boundary)

    def _open_channel(self, endpoint: str, options: Any) -> Any:
        shard = int(endpoint)

        def heard(message: Any) -> None:
            if isinstance(message, pb.ToLearner):
                self.world.watchers.tell("learner_message", self, shard, message)

        return Channel(self.world, self, self.slot, shard, heard)


class TrainingEnd:
    """See link.socket.TransportEnd: the link between both processes."""

    def __init__(self, learner: LearnerProcess) -> None:
        world = learner.world
        self._learner = learner
        self._on_message: Callable[[Any], None] | None = None
        self.configure = Configure(
            run_file=world.run_file,
            layout=world.layout,
            slot="" if learner.observer else learner.slot,
            uid=learner.uid,
            instance=learner.instance,
            endpoints=tuple(str(shard) for shard in range(world.run_file.shards)),
            telemetry_folder="",
            observer=learner.observer,
            lanes=learner.lanes,
        )

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        """See TransportEnd; here no training process ends without its transport."""
        self._on_message = on_message

    def send(self, command: Any) -> None:
        self._learner.world.watchers.tell("training_told", self._learner, command)
        self._learner.after(LINK_SECONDS, partial(self._learner.receive, command))

    def say(self, message: Any) -> None:
        self._learner.after(LINK_SECONDS, partial(self._hear, message))

    def _hear(self, message: Any) -> None:
        assert self._on_message is not None, "said before the transport runs"
        self._learner.world.watchers.tell("training_said", self._learner, message)
        self._on_message(message)


class Telemetry:
    """See transport.telemetry.Telemetry: the checkers read every line."""

    def __init__(self, learner: LearnerProcess) -> None:
        self._learner = learner

    def write(self, fields: dict[str, Any]) -> None:
        self._learner.world.watchers.tell("recorded", self._learner, fields)

    def flush(self) -> None:
        """See Telemetry."""


@dataclass(frozen=True, slots=True)
class Received:
    """A base as it came: its value, and what was said of it."""

    publish: pb.Publish
    value: Value


class SymbolicNumbers(Numbers):
    """Symbols in place of arrays."""

    def __init__(self, learner: LearnerProcess) -> None:
        self._learner, self._world = learner, learner.world

    def counter(self, shard: int, fragment: int) -> int:
        return self._learner.regions[shard, fragment].counter

    def decode(
        self,
        shard: int,
        publish: pb.Publish,
        encoding: pb.Encoding,
        data: bytearray,
        held: Received | None,
    ) -> Received:
        """A difference to another base than the one held gives nonsense."""
        symbol = self._world.symbol(data)
        if isinstance(symbol, Change):
            fits = publish.difference and held is not None and held.value == symbol.before
            symbol = symbol.after if fits else Value("nonsense")
        assert isinstance(symbol, Value), f"a base was to come, not {symbol}"
        return Received(publish, symbol)

    def place(self, shard: int, fragment: int, base: Received) -> None:
        self._learner.placed[shard, fragment] = base.publish, base.value

    def difference(self, shard: int, fragment: int, base: Received) -> Difference:
        theta = self._learner.regions[shard, fragment].theta
        assert theta is not None, "nothing was captured"
        return Difference(base.value, theta)

    def not_finite(
        self, shard: int, fragment: int, difference: Difference | None = None
    ) -> tuple[str, ...]:
        """A symbol has no values."""
        return ()

    def encode_difference(
        self, shard: int, fragment: int, difference: Difference
    ) -> tuple[pb.Encoding, bytes]:
        encoding = encoding_of(self._world.run_file.sync.wire_up)
        return self._encoded((shard, fragment), difference, encoding)

    def encode_seed(self, shard: int, fragment: int) -> tuple[pb.Encoding, bytes]:
        key = shard, fragment
        return self._encoded(key, seed_value(key, self._world.seed_name(self._learner)), pb.F32)

    def encode_base(self, base: Received) -> tuple[pb.Encoding, bytes]:
        keys = (key for key, held in self._learner.transport.values.bases.items() if held is base)
        wire_down = self._world.run_file.sync.wire_down
        encoding = pb.F32 if base.value.exact else base_encoding(wire_down)
        return self._encoded(next(keys), base.value, encoding)

    def digest(self, base: Received) -> str:
        """A symbol that fits has the digest that was said of it."""
        return base.publish.version.version.digest

    def _encoded(
        self, key: Key, symbol: Symbol, encoding: pb.Encoding
    ) -> tuple[pb.Encoding, bytes]:
        form = self._world.layout.slice(*key).form
        return encoding, self._world.payload(symbol, form.byte_count(encoding))
