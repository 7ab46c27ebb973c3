"""A learner's process: the production rules of its transport, and the edge around them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Boundary
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
from sim.network import Connection
from sim.symbols import Difference, Key, Value, seed_value
from sim.training_process import LINK_SECONDS, TrainingProcess

if TYPE_CHECKING:
    from sim.world import World


@dataclass(slots=True, kw_only=True)
class Line:
    """The transport's connection to one shard."""

    connection: Connection | None = None
    session: int | None = None
    report: pb.ToShard | None = None  # the mailbox in which the latest wins


class LearnerProcess(TrainingProcess):
    """One process start of a slot; both its processes live and die together here."""

    def __init__(self, world: "World", slot: str, uid: str, instance: str) -> None:
        self.exchange = Exchange(
            run_file=world.run_file, layout=world.layout, slot=slot, uid=uid, instance=instance
        )
        keys = sorted(self.exchange.slices)
        super().__init__(world, slot, instance, keys)
        self.uid, self.instance = uid, instance
        self.lines = [Line() for _ in range(world.run_file.shards)]
        self.seen_counters = dict.fromkeys(keys, 0)
        self.bases: dict[Key, Value] = {}
        self.candidates: dict[tuple[int, int, int], tuple[pb.Publish, Value]] = {}
        self.exit_code: int | None = None
        self.timer_at = float("inf")

    @property
    def incarnation(self) -> int:
        """As the registrar gave it."""
        return self.exchange.incarnation

    def start(self) -> None:
        """Both processes run."""
        self.feed(self.exchange.start(self.sim.now))

    def died(self) -> None:
        """Connections break; the machine's memory is gone."""
        for line in self.lines:
            if line.connection is not None:
                line.connection.end_died(0)
        self.world.watchers.tell("learner_ended", self)

    # ------------------------------------------------------------ its end

    def leave(self, reason: str) -> None:
        """Leave the job in peace."""
        self.feed(self.exchange.leave(reason, self.sim.now))
        self.exit_code = 0

        def hang_up() -> None:
            for line in self.lines:
                if line.connection is not None:
                    line.connection.hang_up(0)
            self.kill(f"left: {reason}")

        self.after(0.2, hang_up)

    def fail(self, code: int, reason: str) -> None:
        """The job refuses this process."""
        self.exit_code = code

        def end() -> None:
            self.kill(f"exit {code}: {reason}")
            self.world.learner_exited(self)

        self.after(0.0, end)

    # ------------------------------------------------------------ transport process

    def hear_boundary(self, boundary: Boundary) -> None:
        """The training process has finished a step, or more work."""
        for key in boundary.captured:
            self.seen_counters[key] += 2
        self.feed(self.exchange.boundary(boundary, self.sim.now))

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order, and look after the time."""
        for effect in effects:
            self.perform(effect)
        when = self.exchange.deadline()
        if when < self.timer_at:
            self.timer_at = when
            self.sim.at(when, lambda: self.do(lambda: self.time_passed(when)))

    def time_passed(self, when: float) -> None:
        """A timer rings; one that an earlier one has replaced says nothing."""
        if when == self.timer_at:
            self.timer_at = float("inf")
            self.feed(self.exchange.tick_time(self.sim.now))

    def perform(self, effect: Effect) -> None:
        """As transport.py does."""
        match effect:
            case Command(command):
                self.after(LINK_SECONDS, lambda: self.obey(command))
            case SendMessage(shard, message):
                self.send(shard, message)
            case SendOffer(shard, offer):
                self.send_offer(shard, offer)
            case SendSeed(shard):
                for fragment in range(self.world.run_file.sync.fragments):
                    value = seed_value((shard, fragment), self.world.seed_name(self))
                    transfer = pb.Transfer(seed=pb.Seed(slice=fragment), encoding=pb.F32)
                    self.send_bulk(shard, transfer, value)
            case SendHeld(shard, held):
                transfer = pb.Transfer(held=held, encoding=pb.BF16)
                self.send_bulk(shard, transfer, self.bases[shard, held.version.slice])
            case Place(shard, fragment, number):
                self.placed[shard, fragment] = self.candidates[shard, fragment, number]
            case Promote(shard, fragment, number):
                self.bases[shard, fragment] = self.candidates.pop((shard, fragment, number))[1]
            case Discard(shard, fragment, number):
                self.candidates.pop((shard, fragment, number), None)
            case Record(fields):
                self.world.watchers.tell("recorded", self, fields)
            case Dial(shard):
                self.world.dial(self, shard)
            case HangUp(shard):
                line = self.lines[shard]
                if line.connection is not None:
                    line.connection.hang_up(0)
                    self.after(0.0, lambda: self.closed(shard, line, "hung up"))

    def send(self, shard: int, message: pb.ToShard) -> None:
        """A control message; an unsent report gives way to a newer one (rule 7)."""
        line = self.lines[shard]
        if line.connection is None:
            return
        if not message.HasField("report"):
            self.deliver(line, message)
        elif line.report is not None:
            line.report = message
        else:
            line.report = message
            self.after(self.rng.uniform(0.0, 0.02), lambda: self.send_report(line))

    def send_report(self, line: Line) -> None:
        """Empty the mailbox."""
        message, line.report = line.report, None
        if message is not None and line.connection is not None:
            self.deliver(line, message)

    def deliver(self, line: Line, message: pb.ToShard) -> None:
        """Put a control message on its way; a session's first one is its Join."""
        connection = line.connection
        assert connection is not None
        process = self.world.peer(connection)

        def arrive() -> None:
            if line.session is None:
                line.session = process.joined(connection, self, message.join)
            else:
                process.heard(line.session, message)

        connection.send(0, "control", arrive)

    def send_offer(self, shard: int, offer: pb.Offer) -> None:
        """Rule 16: base less the captured value, unless that has been overwritten."""
        key = shard, offer.slice
        region = self.regions[key]
        if region.counter != self.seen_counters[key]:
            self.feed(self.exchange.capture_lost(shard, offer.slice, offer.base))
            return
        assert region.theta is not None, "nothing was captured"
        difference = Difference(self.bases[key], region.theta)
        encoding = {"f32": pb.F32, "bf16": pb.BF16}[self.world.run_file.sync.wire_up]
        self.send_bulk(shard, pb.Transfer(offer=offer, encoding=encoding), difference)

    def send_bulk(self, shard: int, transfer: pb.Transfer, payload: Any) -> None:
        """Head, then chunks and trailer; some arrive damaged."""
        line = self.lines[shard]
        connection = line.connection
        if connection is None:
            return
        process = self.world.peer(connection)
        whole = None if self.rng.random() < self.world.damaged_share else payload

        def begin() -> None:
            if line.session is not None:
                process.transfer_began(line.session, transfer)

        def end() -> None:
            if line.session is not None:
                process.transferred(line.session, transfer, whole)

        connection.send(0, "bulk", begin)
        connection.send(0, "bulk", end, whole_slice=True)

    # ------------------------------------------------------------ what the network says

    def connected(self, shard: int, line: Line) -> None:
        """The control stream is open."""
        self.lines[shard] = line
        self.feed(self.exchange.connected(shard, self.sim.now))

    def closed(self, shard: int, line: Line | None, reason: str) -> None:
        """Both streams are gone, or could not be opened."""
        if line is not None:
            if self.lines[shard] is not line or line.connection is None:
                return
            line.connection = None
        self.feed(self.exchange.disconnected(shard, reason, self.sim.now))

    def heard(self, shard: int, message: pb.ToLearner) -> None:
        """A control message."""
        self.world.watchers.tell("learner_heard", self, shard, message)
        self.feed(self.exchange.message(shard, message, self.sim.now))

    def publish_began(self, shard: int, head: pb.Transfer) -> None:
        """A Publish begins."""
        fits = self.exchange.publish_started(shard, head.publish, self.sim.now)
        assert fits, "a Publish that does not fit"

    def published(self, shard: int, head: pb.Transfer, value: Value) -> None:
        """Its trailer has come."""
        publish = head.publish
        key = shard, publish.version.slice, publish.version.version.number
        self.candidates[key] = publish, value
        self.feed(self.exchange.published(shard, publish, self.sim.now))
