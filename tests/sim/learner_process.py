"""A learner: the training process with symbolic parameters, and its transport's edge."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.effects import (
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
from atoll_worker.exchange import Exchange
from atoll_worker.messages import (
    Adopt,
    Boundary,
    Capture,
    Fail,
    Finished,
    Proceed,
    Start,
    Tick,
)
from sim.clock import Process
from sim.network import Connection
from sim.symbols import Difference, Key, Theta, Value, Work, seed_value

if TYPE_CHECKING:
    from sim.world import World

LINK_SECONDS = 0.0005


@dataclass(slots=True, kw_only=True)
class Line:
    """The transport's connection to one shard."""

    connection: Connection | None = None
    session: int | None = None
    report: pb.ToShard | None = None  # the mailbox in which the latest wins


@dataclass(slots=True, kw_only=True)
class Region:
    """A capture region of the shared memory, with its counter."""

    counter: int = 0
    theta: Theta | None = None


@dataclass(slots=True, kw_only=True)
class Training:
    """The training process' memory."""

    t_m: int = 0
    tokens: int = 0
    cursor: int = 0
    blocked_seconds: float = 0.0
    start: Start | None = None
    begun: bool = False
    proceed: bool = False
    finished: bool = False
    waits_since: float | None = None  # in step(), in lock-step
    step_seconds: float = 0.0
    inbox: list[Any] = field(default_factory=list)
    bases: dict[Key, tuple[Value, int]] = field(default_factory=dict)  # and t_m at adoption


class LearnerProcess(Process):
    """One process start of a slot; both its processes live and die together here."""

    def __init__(self, world: "World", slot: str, uid: str, instance: str) -> None:
        super().__init__(world.sim, instance)
        self.world, self.slot, self.uid, self.instance = world, slot, uid, instance
        self.rng = world.sim.random(f"learner {instance}")
        self.exchange = Exchange(
            run_file=world.run_file, layout=world.layout, slot=slot, uid=uid, instance=instance
        )
        keys = sorted(self.exchange.slices)
        self.lines = [Line() for _ in range(world.run_file.shards)]
        self.regions = {key: Region() for key in keys}
        self.seen_counters = dict.fromkeys(keys, 0)
        self.bases: dict[Key, Value] = {}
        self.candidates: dict[tuple[int, int, int], tuple[pb.Publish, Value]] = {}
        self.placed: dict[Key, tuple[pb.Publish, Value]] = {}
        self.training = Training()
        self.exit_code: int | None = None
        self.timer_at = float("inf")
        self.slowness = 1.0
        self.hiccup_seconds = 0.0  # of the next step

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

    # ------------------------------------------------------------ training process

    def obey(self, command: Any) -> None:
        """A command arrives; while the training process waits it acts at once."""
        training = self.training
        training.inbox.append(command)
        if not training.begun:
            self.work_while_waiting()
            if training.start is not None and not training.begun:
                training.begun = True
                training.cursor = training.start.cursor
                self.begin_step()
        elif training.waits_since is not None:
            self.work_while_waiting()
            self.go_on()

    def work_while_waiting(self) -> None:
        """More work at the same boundary."""
        adopted, captured = self.drain()
        if adopted or captured:
            self.say_boundary(adopted, captured, again=True)

    def begin_step(self) -> None:
        """The next step, with noise."""
        seconds = self.world.scenario.step_seconds[self.slot] * self.slowness
        seconds = seconds * self.rng.uniform(0.8, 1.25) + self.hiccup_seconds
        self.hiccup_seconds = 0.0
        self.training.step_seconds = seconds
        self.after(seconds, self.finish_step)

    def finish_step(self) -> None:
        """`learner.step()`: count, adopt, capture, report; in lock-step wait."""
        training = self.training
        training.t_m += 1
        training.tokens += self.world.scenario.tokens_per_step
        training.cursor += 1
        training.proceed = False
        self.world.watchers.tell("stepped", self)
        adopted, captured = self.drain()
        self.say_boundary(adopted, captured, again=False)
        if self.world.run_file.sync.lockstep:
            training.waits_since = self.sim.now
            self.go_on()
        else:
            self.training.blocked_seconds = 0.0
            self.end_or_step()

    def go_on(self) -> None:
        """In lock-step: return from step() once Proceed has come."""
        training = self.training
        if training.waits_since is not None and (training.proceed or training.finished):
            training.blocked_seconds = self.sim.now - training.waits_since
            training.waits_since = None
            self.end_or_step()

    def end_or_step(self) -> None:
        """`while not learner.finished`."""
        if not self.training.finished:
            self.begin_step()
        elif self.world.scenario.leaves_when_finished:
            self.leave("finished")

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

    def drain(self) -> tuple[list[tuple[int, int, int]], list[Key]]:
        """Adopt, then capture, at a boundary (replica.py)."""
        training = self.training
        inbox, training.inbox = training.inbox, []
        adopted: list[tuple[int, int, int]] = []
        captures: dict[Key, None] = {}
        for command in inbox:
            self.world.watchers.tell("commanded", self, command)
            match command:
                case Adopt(shard=shard, fragment=fragment, number=number):
                    publish, value = self.placed[shard, fragment]
                    training.bases[shard, fragment] = value, training.t_m
                    adopted.append((shard, fragment, number))
                    self.sim.note(self.name, f"adopts {shard}/{fragment} v{number}")
                    self.world.watchers.tell("adopted", self, (shard, fragment), publish, value)
                case Capture(slices=slices):
                    captures.update(dict.fromkeys(slices))
                case Start():
                    training.start = command
                case Proceed():
                    training.proceed = True
                case Finished():
                    training.finished = True
                    self.sim.note(self.name, "is finished")
                case Fail(exit_code=code, reason=reason):
                    self.exit_code = code
                    self.after(0.0, lambda: self.fail(reason))
                case Tick():
                    pass
        for key in captures:
            base, since = training.bases[key]
            work = None
            if training.t_m > since:
                work = Work(self.slot, self.incarnation, key, since + 1, training.t_m)
            self.regions[key].theta = Theta(base, work)
            self.regions[key].counter += 2
        return adopted, list(captures)

    def fail(self, reason: str) -> None:
        """The job refuses this process."""
        self.kill(f"exit {self.exit_code}: {reason}")
        self.world.learner_exited(self)

    def say_boundary(
        self, adopted: list[tuple[int, int, int]], captured: list[Key], *, again: bool
    ) -> None:
        """Tell the transport process, over the link."""
        training = self.training
        boundary = Boundary(
            t_m=training.t_m,
            tokens=0 if again else self.world.scenario.tokens_per_step,
            loss=1.0,
            step_seconds=0.0 if again else training.step_seconds,
            blocked_seconds=0.0 if again else training.blocked_seconds,
            cursor=training.cursor,
            adopted=tuple(adopted),
            captured=tuple(captured),
            again=again,
        )
        self.after(LINK_SECONDS, lambda: self.hear_boundary(boundary))

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
