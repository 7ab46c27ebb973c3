"""A shard's process: the production rules and journal, with symbols in place of tensors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import (
    Accept,
    Append,
    Ask,
    Drop,
    Effect,
    EndSession,
    Exit,
    Merge,
    PublishHead,
    Reply,
    Send,
    Stage,
    StoreHeld,
    StoreSeed,
    WriteIndex,
    WritePart,
)
from atoll_syncer.model.log import Entry, History, TermBegun
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.journal import Heartbeat
from atoll_syncer.storage.store import StoreUnavailable
from atoll_syncer.storage.takeover import PATIENCE_SECONDS, Action, View, decide
from sim.memory_store import MemoryStore
from sim.network import Connection
from sim.shard_storage import RETRY_SECONDS, ShardStorage
from sim.symbols import Difference, Value

if TYPE_CHECKING:
    from sim.learner_process import LearnerProcess
    from sim.world import World

HEARTBEAT_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class Port:
    """One session as the shard's edge has it."""

    connection: Connection
    learner: "LearnerProcess"
    incarnation: int = 0  # as welcomed
    lacking: dict[int, None] = field(default_factory=dict)
    sending: bool = False
    accepted: bool = False  # the transfer that has begun may come
    ended: bool = False


class ShardProcess(ShardStorage):
    """One process start of one pod. It reads the log, waits for its turn, and reigns."""

    def __init__(
        self, world: "World", number: int, pod: str, instance: str, store: MemoryStore
    ) -> None:
        super().__init__(world, number, pod, instance, store)
        self.entries: list[Entry] = []
        self.ports: dict[int, Port] = {}
        self.sessions = 0
        self.seeds: dict[tuple[int, int], Value] = {}
        self.judged: Difference | None = None
        self.token = 0
        self.timer_at = float("inf")
        self.exit: Exit | None = None
        self.beats = 0
        self.looked_at: tuple[Heartbeat | None, float] = (None, world.sim.now)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Look whether it is this process's turn, and again until it is."""
        now = self.sim.now
        try:
            self.entries += self.journal.read()
            beat = self.journal.last_beat()
        except StoreUnavailable:
            self.after(RETRY_SECONDS, self.start)
            return
        if beat != self.looked_at[0]:  # another count
            self.looked_at = beat, now
        terms = [each for each in self.entries if isinstance(each, TermBegun)]
        view = View(
            pod=self.pod,
            terms=terms,
            beat=beat,
            beat_seen_at=self.looked_at[1],
        )
        decision = decide(view, patience_seconds=PATIENCE_SECONDS, now=now)
        if decision.action is Action.TAKE_OVER:
            self.reign()
        elif decision.action is Action.WAIT:
            self.after(0.5, self.start)
        else:
            self.exited(Exit(77, decision.reason))

    def reign(self) -> None:
        """Take the shard over: restore the values, and begin."""
        history = History.of(self.entries)
        try:
            lost = self.restore(history)
        except StoreUnavailable:
            self.after(RETRY_SECONDS, self.start)
            return
        self.live = history.live_objects()
        self.shard = Shard(
            run_file=self.world.run_file,
            shard=self.number,
            pod=self.pod,
            instance=self.instance,
            history=history,
            fresh=self.world.scenario.fresh and not self.world.restarted[self.number],
            new_run=f"run-{self.instance}",
            now=self.sim.now,
        )
        self.world.restarted[self.number] = True
        self.sim.note(self.name, f"reigns after epoch {history.epoch}")
        self.feed(self.shard.start(self.sim.now))
        self.feed(self.shard.lost(lost, self.sim.now))
        self.beat()

    def died(self) -> None:
        """Sessions break; the store stays."""
        for connection in self.world.connections:
            if connection.ends[1].process is self:
                connection.end_died(1)

    def exited(self, exit_: Exit) -> None:
        """End by itself."""
        self.exit = exit_
        self.kill(f"exit {int(exit_.code)}: {exit_.reason}")
        self.world.shard_exited(self)

    def beat(self) -> None:
        """Renew the heartbeat and read the log's end (rule 20)."""
        assert self.shard is not None
        self.beats += 1
        beat = Heartbeat(
            pod=self.pod,
            instance=self.instance,
            epoch=self.shard.history.epoch,
            count=self.beats,
            learners=tuple(sorted(port.learner.instance for port in self.ports.values())),
        )
        try:
            if not self.writing and self.journal.is_deposed():
                self.feed(self.shard.deposed(self.sim.now))
                return
            self.journal.beat(beat)
        except StoreUnavailable:
            pass
        self.after(HEARTBEAT_SECONDS, self.beat)

    # ------------------------------------------------------------ effects

    def feed(self, effects: list[Effect]) -> None:
        """Perform effects in order, and look after the time."""
        self.world.watchers.tell("shard_did", self, effects)
        for effect in effects:
            if self.alive:
                self.perform(effect)
        if self.alive and self.shard is not None:
            when = self.shard.deadline()
            if when < self.timer_at:
                self.timer_at = when
                self.sim.at(when, lambda: self.do(lambda: self.time_passed(when)))

    def time_passed(self, when: float) -> None:
        """A timer rings; one that an earlier one has replaced says nothing."""
        assert self.shard is not None
        if when != self.timer_at:
            return
        self.timer_at = float("inf")
        self.feed(self.shard.tick_time(self.sim.now))

    def perform(self, effect: Effect) -> None:
        """As driver.py does."""
        match effect:
            case Send(session, message) if session in self.ports:
                self.send(self.ports[session], message)
            case PublishHead(session, fragment) if session in self.ports:
                self.ports[session].lacking[fragment] = None
                self.publish(session)
            case EndSession(session, end) if session in self.ports:
                self.end_session(session, end)
            case Accept(session, _, _) if session in self.ports:
                self.ports[session].accepted = True
            case Append(entry):
                self.queue.append(entry)
                self.write()
            case Reply():
                self.queue.append(effect)
                self.write()
            case Ask(request):
                self.ask(request)
            case Exit():
                self.exited(effect)
            case WritePart():
                self.after(self.rng.uniform(0.01, 0.2), self.part_written)
            case WriteIndex():
                self.after(self.rng.uniform(0.01, 0.2), self.exported)
            case _:
                self.perform_on_values(effect)

    def perform_on_values(self, effect: Effect) -> None:
        """Stage, drop, merge, seed."""
        match effect:
            case Stage(slot, incarnation, fragment, capture):
                assert self.judged is not None, "an offer is staged as it is judged"
                self.staged[slot, incarnation, fragment, capture] = self.judged
            case Drop(slot, incarnation, fragment, capture):
                self.staged.pop((slot, incarnation, fragment, capture), None)
            case Merge():
                self.merge(effect)
            case StoreSeed(session):
                self.coming = {
                    fragment: self.seeds.pop((session, fragment))
                    for fragment in range(self.world.run_file.sync.fragments)
                }
                self.after(self.rng.uniform(0.01, 0.3), self.store_seed)

            case StoreHeld(fragment, session, number):
                value = self.seeds.pop((session, fragment))
                self.coming[fragment] = value
                seconds = self.rng.uniform(0.01, 0.3)
                self.after(seconds, lambda: self.store_merged(fragment, value, number))

    # ------------------------------------------------------------ the registrar

    def ask(self, request: Any) -> None:
        """A call to the registrar, again until it answers (a Hello comes again by itself)."""

        def answered(reply: Any) -> None:
            assert self.shard is not None
            if reply is not None:
                self.feed(self.shard.answered(reply, self.sim.now))
            elif not isinstance(request, pb.HelloRequest):
                self.after(RETRY_SECONDS, lambda: self.ask(request))

        self.world.call_registrar(self, request, answered)

    def called(self, request: Any, reply: Callable[[Any], None]) -> None:
        """A call of another shard arrives."""
        if self.shard is None:
            reply(None)
            return
        self.token += 1
        self.replies[self.token] = reply
        self.feed(self.shard.registrar_request(self.token, request, self.sim.now))

    # ------------------------------------------------------------ sessions

    def joined(self, connection: Connection, learner: "LearnerProcess", join: pb.Join) -> int:
        """The first message of a session; returns its number."""
        assert self.shard is not None
        self.sessions += 1
        number = self.sessions
        self.ports[number] = Port(connection=connection, learner=learner)
        self.world.watchers.tell("shard_joined", self, number, join)
        self.feed(self.shard.session_opened(number, join, self.sim.now))
        return number

    def closed(self, session: int) -> None:
        """Both streams are gone."""
        if self.ports.pop(session, None) is not None:
            assert self.shard is not None
            self.feed(self.shard.session_closed(session, self.sim.now))

    def send(self, port: Port, message: pb.ToLearner) -> None:
        """A control message."""
        if message.HasField("welcome"):
            port.incarnation = message.welcome.incarnation
        kind = message.WhichOneof("kind")
        if kind != "tick":
            self.sim.note(self.name, f"{kind} to {port.learner.name}")
        learner, number = port.learner, self.number
        port.connection.send(1, "control", lambda: learner.heard(number, message))

    def end_session(self, session: int, end: pb.End) -> None:
        """Say End, and close."""
        port = self.ports[session]
        self.sim.note(self.name, f"ends {port.learner.name}: {end.reason}")
        if not port.ended:
            port.ended = True
            self.send(port, pb.ToLearner(end=end))
            port.connection.hang_up(1)
            self.after(0.001, lambda: self.closed(session))

    def heard(self, session: int, message: pb.ToShard) -> None:
        """A control message of a session."""
        if session in self.ports and self.shard is not None:
            self.world.watchers.tell("shard_heard", self, session, message)
            self.feed(self.shard.message(session, message, self.sim.now))

    def transfer_began(self, session: int, transfer: pb.Transfer) -> None:
        """A transfer's head: may it come?"""
        if session not in self.ports or self.shard is None:
            return
        port = self.ports[session]
        port.accepted = False
        if transfer.HasField("offer"):
            self.world.watchers.tell("offer_began", self, session, transfer)
        self.feed(self.shard.transfer_started(session, transfer, self.sim.now))
        if transfer.HasField("offer") and port.accepted:
            self.world.watchers.tell("offer_accepted", self, session, transfer)

    def transferred(self, session: int, transfer: pb.Transfer, payload: Any) -> None:
        """A transfer is whole, or its checksum is wrong (no payload)."""
        port = self.ports.get(session)
        if port is None or self.shard is None or not port.accepted:
            return
        port.accepted = False
        if payload is None or self.is_another(transfer, payload):
            rejected = self.shard.transfer_rejected(session, "checksum", self.sim.now)
            self.feed(rejected)
            return
        if transfer.HasField("seed"):
            self.seeds[session, transfer.seed.slice] = payload
        elif transfer.HasField("held"):
            self.seeds[session, transfer.held.version.slice] = payload
        else:
            self.judged = payload
            self.sim.note(self.name, f"offer {payload.theta.work}")
        self.feed(self.shard.transfer_verified(session, transfer, self.sim.now))
        self.judged = None

    def is_another(self, transfer: pb.Transfer, payload: Any) -> bool:
        """As arrivals.examine: a held value has the digest of its version."""
        held = transfer.held.version.version
        return transfer.HasField("held") and payload.digest != held.digest

    def publish(self, session: int) -> None:
        """One transfer at a time; what it holds is looked up when it leaves."""
        port = self.ports.get(session)
        if port is None or port.sending or not port.lacking or self.shard is None:
            return
        fragment = next(iter(port.lacking))
        del port.lacking[fragment]
        publish = self.shard.publish(session, fragment)
        if publish is None:
            self.publish(session)
            return
        port.sending = True
        value, learner, number = self.heads[fragment], port.learner, self.number
        head = pb.Transfer(publish=publish)
        port.connection.send(1, "bulk", lambda: learner.publish_began(number, head))
        arrival = port.connection.send(
            1, "bulk", lambda: learner.published(number, head, value), whole_slice=True
        )
        self.sim.at(arrival, lambda: self.do(lambda: self.sent(session)))

    def sent(self, session: int) -> None:
        """The next one may leave."""
        port = self.ports.get(session)
        if port is not None:
            port.sending = False
            self.publish(session)
