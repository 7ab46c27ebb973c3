"""A shard's process: production's `serve_shard` and all that is in it, on a simulated machine."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Expected, Sync
from atoll_protos.job.schedule import Length, heard
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.duties.background import Thread
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.duties.port import Machine
from atoll_syncer.edges.registrar_client import RegistrarClient
from atoll_syncer.model.effects import Accept, Append, Effect, EndSession, Send
from atoll_syncer.model.log import Entry, TermBegun
from atoll_syncer.model.roster import Certificate
from atoll_syncer.rules.shard import Shard
from atoll_syncer.serving import serve_shard
from atoll_syncer.storage.export import ExportPart
from atoll_syncer.storage.journal import Journal
from sim.channel import Channel
from sim.clock import Process
from sim.loop import VirtualThread
from sim.memory_store import MemoryStore
from sim.rpc import Server
from sim.shard_values import ShardValues
from sim.symbols import Difference, Value

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import TensorValues
    from atoll_syncer.storage.export import Export
    from atoll_syncer.storage.tape import Tape
    from sim.learner_process import LearnerProcess
    from sim.world import World


LIST_SECONDS = 1.5  # that an edit of the list takes longer to each next shard


@dataclass(slots=True, kw_only=True)
class Peer:
    """One session as seen from the edge: its learner, and what the shard has sent."""

    learner: "LearnerProcess"
    incarnation: int = 0  # as welcomed
    ended: bool = False


class ShardProcess(Process):
    """One process start of one pod. It waits for its turn, restores, and serves."""

    def __init__(
        self, world: "World", number: int, pod: str, instance: str, store: MemoryStore
    ) -> None:
        super().__init__(world.sim, f"{pod}/{instance.rpartition('-')[2]}")
        self.world, self.number, self.pod, self.instance = world, number, pod, instance
        self.store = store
        self.is_first = not world.sim.now  # of this job
        self.server = Server(self)
        self.stopping = asyncio.Event()  # SIGTERM
        self.shard: Shard | None = None  # once its term begins
        self.has_begun = False  # its term: the record is durable
        self.began_at = 0.0
        self.cut_until = 0.0  # no learner reaches it
        self.values: ShardValues | None = None  # once a model is known
        self.peers: dict[int, Peer] = {}  # by session
        self.exit_code: ExitCode | None = None

    # ------------------------------------------------------------ life

    def start(self) -> None:
        self._main = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            self.exit_code = await serve_shard(self._machine(), self.stopping)
        except Exception as error:
            self.sim.fails(error)
            return
        if self.exit_code == ExitCode.BUG:
            self.sim.fails(AssertionError(f"a bug ends {self.name}"))
        self.kill(f"exit {int(self.exit_code)}")
        self.world.shard_exited(self)

    def died(self) -> None:
        """Sessions break; the store stays."""
        for connection in self.world.connections:
            if connection.ends[1].process is self:
                connection.end_died(1)

    def _machine(self) -> Machine:
        world, rng = self.world, self.sim.random(f"shard {self.instance}")
        disk, merge = world.scenario.disk_seconds, world.scenario.merge_seconds

        def drawn(seconds: float) -> Callable[[], float]:
            return lambda: seconds * rng.uniform(0.1, 1.0)

        executors: Any = {
            Thread.LOG: VirtualThread(self, drawn(2 * disk), drawn(0.01)),
            Thread.BEAT: VirtualThread(self, drawn(world.scenario.beat_seconds), drawn(0.01)),
            Thread.MERGE: VirtualThread(self, drawn(merge), drawn(0.01)),
            Thread.READ: VirtualThread(self, drawn(world.scenario.read_seconds), drawn(0.01)),
            Thread.EXAMINE: VirtualThread(
                self, drawn(world.scenario.examine_seconds), drawn(0.001)
            ),
            Thread.FILES: VirtualThread(self, drawn(0.01), drawn(0.01)),
            Thread.TIDY: VirtualThread(self, drawn(disk), drawn(0.01)),
        }
        return Machine(
            run_file=world.run_file,
            shard=self.number,
            pod=self.pod,
            instance=self.instance,
            new_run=f"run-{self.instance}",
            fresh=world.scenario.fresh and self.is_first,
            expected=self._read_expected() or world.scenario.expected,
            read_expected=self._read_expected if world.scenario.lists else None,
            read_length=self._read_length if world.scenario.lengths else None,
            store=self.store,
            journal=Journal(self.store, self.time),
            tape=cast("Tape", world.tapes[self.number]),
            exporter=cast("Export", NoExport(self)),
            ask=RegistrarClient(self._registrar).ask if self.number else None,
            metrics=cast(ShardMetrics, Nothing()),
            executors=executors,
            make_values=self._make_values,
            clock=self.time,
            open_server=self._open_server,
            open_place=lambda _: world.place,
            snapshot_entries=world.scenario.snapshot_entries,
            watch=self._watch,
            new_secret=lambda: f"secret of {self.instance}",
        )

    def _open_server(self) -> Server:
        self.server = Server(self)
        return self.server

    def time(self) -> float:
        return self.sim.now

    def _read_length(self) -> Length | None:
        """The file that the operator changes, as it is in this shard's pod now."""
        scenario, reached = self.world.scenario, self.world.reached
        if self.shard is not None:
            reached[self.number] = max(reached[self.number], self.shard.state.clock.tick)
        came = [n for at, n in scenario.reads.get(self.number, ()) if at <= reached[self.number]]
        return scenario.length(came[-1]) if came else None

    def _read_expected(self) -> Expected | None:
        """The list of learners, as it has come into this shard's pod so far."""
        late = self.sim.now - LIST_SECONDS * self.number
        return next((each for at, each in self.world.scenario.lists[::-1] if at <= late), None)

    def _registrar(self, _: object) -> Any:
        return Channel(self.world, self, f"shard{self.number}", REGISTRAR_SHARD)

    def _make_values(self, layout: Layout, number: int, sync: Sync) -> "TensorValues":
        self.values = ShardValues(self, layout, sync)
        return cast("TensorValues", self.values)

    # ------------------------------------------------------------ what checkers look at

    @property
    def heads(self) -> Mapping[int, Value]:
        """The value of every slice's head, as this process holds it."""
        return {} if self.values is None else self.values.heads

    @property
    def staged(self) -> Mapping[tuple[str, int, int, int], Difference]:
        """Offers by slot, incarnation, slice and capture."""
        return {} if self.values is None else self.values.staged

    def _watch(self, shard: Shard) -> Shard:
        self.began_at = self.sim.now
        self.sim.note(self.name, f"takes over after epoch {shard.state.history.epoch}")
        self.world.watchers.tell("length_heard", self, shard.state.ending.length)
        self.shard = cast(Shard, WatchedShard(self, shard))
        return self.shard


class WatchedShard:
    """A shard's rules, whose inputs and effects are shown to the checkers."""

    def __init__(self, process: ShardProcess, shard: Shard) -> None:
        self._process, self._shard = process, shard
        self.state = shard.state  # for ever; most that is asked of the rules is this

    def _tell(self, hook: str, *what: Any) -> None:
        """Nothing of a process that has died: Python collects its coroutines at some later time."""
        if self._process.alive:
            self._process.world.watchers.tell(hook, *what)

    def __getattr__(self, name: str) -> Any:
        """The rules' own; an input's effects are looked at first."""
        member = getattr(self._shard, name)
        if not callable(member):
            return member
        if name in READ:
            setattr(self, name, member)
            return member

        def asked(*arguments: Any) -> list[Effect]:
            if name in TOLD:
                self._tell(TOLD[name], self._process, *arguments[:-1])  # but for the time
            for told in arguments if name in HEARS else ():
                if isinstance(told, Length):
                    self._tell("length_heard", self._process, told)
                elif isinstance(told, pb.HelloRequest | pb.HelloReply):
                    self._tell("length_heard", self._process, heard(told.length))
            effects: list[Effect] = member(*arguments)
            self._did(effects)
            return effects

        setattr(self, name, asked)
        return asked

    def session_opened(
        self, session: int, join: pb.Join, now: float, certificate: Certificate
    ) -> list[Effect]:
        process = self._process
        learner = process.world.instances[join.instance]
        process.peers[session] = Peer(learner=learner)
        certificate = process.world.certificate_of(join.slot) or certificate
        self._tell("certificate_shown", process, session, join.slot, certificate)
        self._tell("shard_joined", process, session, join)
        effects = self._shard.session_opened(session, join, now, certificate)
        self._did(effects)
        return effects

    def session_closed(self, session: int, now: float) -> list[Effect]:
        self._process.peers.pop(session, None)
        effects = self._shard.session_closed(session, now)
        self._did(effects)
        return effects

    def transfer_started(self, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
        offer = transfer.HasField("offer")
        if offer:
            self._tell("offer_began", self._process, session, transfer)
        effects = self._shard.transfer_started(session, transfer, now)
        self._did(effects)
        if offer and any(isinstance(effect, Accept) for effect in effects):
            self._tell("offer_accepted", self._process, session, transfer)
        return effects

    def appended(self, entry: Entry, now: float) -> list[Effect]:
        process = self._process
        process.sim.note(process.name, f"durable: {type(entry).__name__}")
        if isinstance(entry, TermBegun):
            process.has_begun = True
            process.world.shard_begins(process)
        effects = self._shard.appended(entry, now)
        self._did(effects)
        return effects

    def _did(self, effects: list[Effect]) -> None:
        process = self._process
        self._tell("shard_did", process, effects)
        for effect in effects:
            process.world.performed(effect)
            match effect:
                case Send(session, message) if session in process.peers:
                    peer, kind = process.peers[session], message.WhichOneof("kind")
                    if kind == "welcome":
                        peer.incarnation = message.welcome.incarnation
                    if kind != "tick":
                        process.sim.note(process.name, f"{kind} to {peer.learner.name}")
                case EndSession(session, end) if session in process.peers:
                    peer = process.peers[session]
                    peer.ended = True
                    process.sim.note(process.name, f"ends {peer.learner.name}: {end.reason}")
                case Append(entry):
                    process.sim.note(process.name, f"appends {type(entry).__name__}")


TOLD = {
    "expected_heard": "list_heard",
    "message": "shard_message",
}
# Methods that answer with no effects.
HEARS = frozenset({"length_heard", "answered", "registrar_request"})
READ = frozenset({"deadline", "publish", "next_unread"})


class MemoryTape:
    """A tape that keeps which commits are on it. It outlives the processes that use it."""

    dropped_lines = 0
    waiting_lines = 0

    def __init__(self) -> None:
        self.lines: set[tuple[int, int, int]] = set()  # slice, version, epoch

    def commits(self, lowest: Mapping[int, int]) -> set[tuple[int, int, int]]:
        return set(self.lines)

    def begin(self) -> None:
        """See Tape."""

    def sync(self) -> None:
        """See Tape."""

    def give_way(self, full: str) -> int:
        return 0

    def write(self, run: str, record: Mapping[str, Any]) -> None:
        if record["event"] == "commit":
            self.lines.add((record["slice"], record["version"], record["epoch"]))

    def close(self) -> None:
        """See Tape."""


class NoExport:
    """Parts and index of a model of symbols."""

    def __init__(self, process: "ShardProcess") -> None:
        self._process = process

    def write_part(self, run: str, shard: int, bases: Mapping[int, Any]) -> ExportPart:
        assert bases, "a part of nothing"
        self._process.world.watchers.tell("exported", shard, bases)
        return ExportPart(file=f"part-{shard}", digest="digest")

    def assemble(
        self,
        run: str,
        layout: Layout,
        parts: Sequence[ExportPart],
    ) -> None:
        """See Export."""


class Nothing:
    """Metrics that count nothing: all of its members are callable and it is a context."""

    def __getattr__(self, name: str) -> "Nothing":
        return self

    def __call__(self, *arguments: Any) -> "Nothing":
        return self

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *error: object) -> None:
        """See contextlib."""
