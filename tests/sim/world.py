"""The whole job in virtual time: processes, network, stores, and who is started again."""

import json
import warnings
from collections import defaultdict
from functools import partial

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import REGISTRAR_SHARD, split_slot
from atoll_syncer.model.log import Committed, from_document
from atoll_syncer.model.roster import Certificate
from atoll_syncer.storage.files import LOG, OBJECTS
from atoll_syncer.storage.journal import newest_position
from sim import payloads
from sim.clock import Action, Process, Simulation
from sim.learner_process import LearnerProcess
from sim.memory_place import MemoryPlace
from sim.memory_store import MemoryStore
from sim.network import KEEPALIVE_SECONDS, Connection, Weather
from sim.rank_processes import FollowerProcess, HeadProcess
from sim.scenario import SLOW_SECONDS, Scenario
from sim.second_world import Parent
from sim.shard_process import MemoryTape, ShardProcess
from sim.symbols import Symbol, Value
from sim.watch import Watcher, Watchers

OPERATOR_SECONDS = 5.0
SET_OWNER = "/atoll_protos.v1.Registrar/SetOwner"


class World:
    """See the module. Checkers hear what happens through `watchers`."""

    learner_kind: type[LearnerProcess] = LearnerProcess  # of a learner of one process
    shard_kind: type[ShardProcess] = ShardProcess

    def __init__(
        self,
        scenario: Scenario,
        checkers: tuple[type[Watcher], ...],
        *,
        keep_trace: bool = False,
        parent: Parent | None = None,
    ) -> None:
        self.parent = parent  # the checkpoint with which it begins
        self.scenario, self.run_file, self.layout = scenario, scenario.run_file, scenario.layout
        self.sim = Simulation(scenario.seed, keep_trace=keep_trace)
        self.rng = self.sim.random("world")
        self.weather = Weather(
            delay_seconds=scenario.delay_seconds,
            slice_seconds=scenario.slice_seconds,
            slow=dict.fromkeys(scenario.slow, SLOW_SECONDS),
        )
        self.at_effects: dict[str, list[Action]] = {}  # what goes wrong at the next one of a kind
        self.values: dict[str, Value] = {}  # by digest
        self.symbols: list[Symbol] = []  # all that were ever sent
        self.instances: dict[str, LearnerProcess] = {}
        self.connections: list[Connection] = []
        self._between: dict[tuple[Process, Process], list[Connection]] = defaultdict(list)
        self.loses_a_store = scenario.loses_a_store
        self._closed = False
        self._shards_up: list[ShardProcess] = []  # without those that were seen dead
        self._training: list[LearnerProcess] = []  # that may still make a step
        self._gone_steps, self._gone_tokens = 0, 0  # of those that are dead
        count = self.run_file.shards
        self.reached = [0] * count  # the highest tick at which each shard has read the length
        self.pods = [0] * count  # how many each shard has had
        self.starts = 0
        self.all_shards: list[ShardProcess] = []
        self.all_learners: list[LearnerProcess] = []
        self.followers: list[FollowerProcess] = []  # ranks of learners, but for their heads
        self.guests: list[LearnerProcess] = []  # observers, and processes of a former run
        self.watchers = Watchers([checker(self) for checker in checkers])
        self.tapes = [MemoryTape() for _ in range(count)]
        self.place = MemoryPlace(self) if parent is None else parent.place
        # By shard, of all entries: the position, a slot and its cursor.
        self.merged: list[list[tuple[int, str, int]]] = [[] for _ in range(count)]
        self.stores = [self.new_store(number) for number in range(count)]
        self.shards = [self.start_shard(number) for number in range(count)]
        # By shard, while two pods have its place: the process of the one that has not the shard.
        self.others: list[ShardProcess | None] = [None] * count
        self.learners = {
            slot: self.start_learner(slot, f"{slot}-pod0", scenario.late_seconds.get(slot, 0.0))
            for slot in self.run_file.slots
        }
        if scenario.observer:
            self.start_guest("", "evaluator", observer=True)
        self.operate()

    @property
    def first_tick(self) -> int:
        """At which the run begins."""
        return self.parent.tick if self.parent is not None else 0

    # ------------------------------------------------------------ processes

    def new_store(self, number: int) -> MemoryStore:
        """An empty store, watched."""
        rng = self.sim.random(f"store {number} {self.sim.now}")
        keeps, clock = self.scenario.object_store, lambda: self.sim.now
        store = MemoryStore(rng, keeps_entries=keeps, clock=clock)

        def created(name: str, data: bytes) -> None:
            if name.startswith(LOG) and self.stores[number] is store:
                document = json.loads(data)
                if document["seq"] <= newest_position(store):
                    return  # it was collected: what a deposed process writes there counts nothing
                for record in document["records"]:
                    entry = from_document(record)
                    for each in entry.participants if isinstance(entry, Committed) else ():
                        self.merged[number].append((document["seq"], each.slot, each.cursor))
                    self.watchers.tell("entry_durable", number, entry, document)

        def deleted(name: str) -> None:
            if name.startswith(OBJECTS) and self.stores[number] is store:
                self.watchers.tell("object_deleted", number, name)

        store.on_create.append(created)
        store.on_delete.append(deleted)
        return store

    def start_shard(self, number: int, pod: str = "", *, after: float = 0.0) -> ShardProcess:
        """A new process of this pod, or of a new one."""
        if not pod:
            self.pods[number] += 1
            pod = f"shard{number}-pod{self.pods[number]}"
        self.starts += 1
        process = self.shard_kind(self, number, pod, f"{pod}-{self.starts}", self.stores[number])
        self.all_shards.append(process)
        self._shards_up.append(process)
        process.after(after + self.rng.uniform(0.0, 0.2), process.start)
        return process

    def start_learner(self, slot: str, uid: str, after: float = 0.0) -> LearnerProcess:
        """A new process of a slot."""
        self.starts += 1
        several = slot in self.scenario.ranks
        kind = HeadProcess if several else self.learner_kind
        process = kind(self, slot, uid, f"{uid}-{self.starts}")
        self.all_learners.append(process)
        self._training.append(process)
        self.instances[process.instance] = process
        process.after(after + self.rng.uniform(0.0, 0.5), process.start)
        if isinstance(process, HeadProcess):
            self.followers += process.followers
            for each in process.followers:
                each.after(after + process.rng.uniform(0.0, 0.5), each.start)
        return process

    def start_guest(self, slot: str, uid: str, *, observer: bool) -> LearnerProcess:
        """A process that is no learner of this job: an observer, or one of a former run."""
        self.starts += 1
        process = LearnerProcess(self, slot, uid, f"{uid}-{self.starts}", observer=observer)
        self.guests.append(process)
        self.instances[process.instance] = process
        process.after(self.rng.uniform(0.0, 0.5), process.start)
        return process

    def shard_begins(self, process: ShardProcess) -> None:
        """It takes the shard over: where two have a place, the other one is who waits now."""
        number = process.number
        if process is self.others[number]:
            self.shards[number], self.others[number] = process, self.shards[number]

    def shard_exited(self, process: ShardProcess) -> None:
        """One that has a place is started again in its pod, or as a new one if it is alone."""
        number, other = process.number, self.others[process.number]
        stays = other is not None or self.sim.random(f"exit {process.instance}").random() < 0.5
        pod = process.pod if stays else ""
        if self.shards[number] is process:
            self.shards[number] = self.start_shard(number, pod, after=1.0)
        elif other is process:
            self.others[number] = self.start_shard(number, pod, after=1.0)

    def retire(self, number: int, pod: str, *, in_order: bool) -> None:
        """The former one of a shard's two pods goes: it is told to end, or killed."""
        both = self.shards[number], self.others[number]
        gone = next((each for each in both if each is not None and each.pod == pod), None)
        if gone is None or both[1] is None:
            return
        if gone is self.shards[number]:
            self.shards[number] = both[1]
        self.others[number] = None
        if in_order:
            gone.do(gone.stopping.set)
        else:
            gone.kill("its pod is gone")

    def learner_exited(self, process: LearnerProcess) -> None:
        """A process that ended without having finished is started again."""
        slot = process.slot
        if self.learners.get(slot) is process:
            self.learners[slot] = self.start_learner(slot, process.uid, after=1.0)

    def payload(self, symbol: Symbol, byte_count: int) -> bytes:
        """Bytes that stand for a symbol on the wire, by its number, from 1."""
        self.symbols.append(symbol)
        return payloads.written(len(self.symbols), byte_count)

    def symbol(self, payload: bytes | bytearray) -> Symbol:
        """What a payload stands for: all of its bytes have to say the same, each in its place."""
        number = payloads.number_of(payload)
        self.watchers.tell("arrived", payload == payloads.written(number, len(payload)))
        assert 0 < number <= len(self.symbols), "bytes that stand for nothing"
        return self.symbols[number - 1]

    def seed_name(self, learner: LearnerProcess) -> str:
        """What the first values are a function of."""
        return f"seed {self.run_file.seed}"

    # ------------------------------------------------------------ network

    def serving(self, number: int) -> ShardProcess:
        """The newest process that answers, else the newest."""
        answering = [
            p
            for p in self._shards_up
            if p.number == number and p.alive and not p.paused and p.server.serving
            if p.cut_until <= self.sim.now
        ]
        return answering[-1] if answering else self.shards[number]

    def connected(self, connection: Connection) -> None:
        """A client has a new connection to a shard's process."""
        client, server = (each.process for each in connection.ends)
        self.connections.append(connection)
        self._between[client, server].append(connection)

    def is_broken(self, client: Process, server: Process) -> bool:
        """Whether something stands between them of which not both know."""
        return any(
            each.lost or max(each.silent_until) > self.sim.now
            for each in self._between[client, server]
            if not (each.ends[0].notified and each.ends[1].notified)
        )

    def set_owner(self, slot: str, uid: str, word: int | None = None) -> None:
        """The operator's word, with the number that Status shows now, or showed earlier."""
        process = self.shards[REGISTRAR_SHARD]
        if process.alive and not process.paused and process.server.serving:
            assert process.shard is not None
            owned = process.shard.state.history.owned.get(slot)
            shown = owned.generation if owned else 0
            number = shown if word is None else word
            request = pb.SetOwnerRequest(slot=slot, uid=uid, generation=number)
            self.watchers.tell("owner_named", slot, uid, number)
            handler = process.server.handler(SET_OWNER)
            process.do(partial(process.server.serve, handler.unary_unary(request, None)))

    def certificate_of(self, slot: str) -> Certificate | None:
        """What a learner that dials now shows; its files are renewed before they end.

        A region whose certificates are revoked gets others a moment later, and so does the machine
        that a slot is given to; until then the slot is dialled with those of the former one.
        """
        seconds, now = self.scenario.certificate_seconds, self.sim.now
        if not seconds or not slot:
            return None
        region, _ = split_slot(slot)
        given = [each for at, each in self.scenario.lists if at + (at > 0) <= now]
        generation = max((each.limit(region).generation for each in given), default=0)
        machines = [m.name for each in given for m in each.machines if slot in m.slots]
        until = (now // seconds + 1) * seconds + 1.0
        machine = machines[-1] if machines else ""
        return Certificate(region=region, machine=machine, generation=generation, until=until)

    def operate(self) -> None:
        """The operator's loop: a slot that it has spoken of follows its newest pod."""
        registrar = self.shards[REGISTRAR_SHARD].shard
        owned = registrar.state.history.owned if registrar is not None else {}
        for slot, learner in self.learners.items():
            if slot in owned and owned[slot].uid != learner.uid and learner.alive:
                self.set_owner(slot, learner.uid)
        self.sim.after(OPERATOR_SECONDS, self.operate)

    def pause(self, process: Process, seconds: float) -> None:
        """Keepalives end the connections of one that stands still for long."""
        process.pause(seconds)
        if seconds < KEEPALIVE_SECONDS:
            return
        for connection in self.connections:
            for side in (0, 1):
                if connection.ends[side].process is process and not connection.lost:
                    self.sim.after(self.rng.uniform(10.0, KEEPALIVE_SECONDS), connection.drop)

    def performed(self, effect: object) -> None:
        """A program performs an effect: what was to go wrong at that moment does so after it."""
        if not self.at_effects:
            return
        name = type(effect).__name__
        part = {"Append": "entry", "Command": "command"}.get(name)
        name = f"{name} {type(getattr(effect, part)).__name__}" if part else name
        for happen in self.at_effects.pop(name, ()):
            self.sim.after(0.0, happen)

    def trained(self) -> tuple[int, int]:
        """Steps and tokens of all learners' processes so far."""
        for each in [each for each in self._training if not each.alive]:
            self._training.remove(each)
            self._gone_steps += each.training.t_m
            self._gone_tokens += each.training.tokens
        steps, tokens = self._gone_steps, self._gone_tokens
        for each in self._training:
            steps += each.training.t_m
            tokens += each.training.tokens
        return steps, tokens

    # ------------------------------------------------------------ the end

    @property
    def complete(self) -> bool:
        """The job is over, and in every slot that is up a learner has finished."""
        if not self.closed:
            return False
        up = {process.slot for process in self.all_learners if process.alive}
        done = {process.slot for process in self.all_learners if process.training.finished}
        return up <= done

    @property
    def closed(self) -> bool:
        """Whether a registrar has ever said Complete."""
        if not self._closed:
            dead = []
            for process in self._shards_up:
                if process.number == REGISTRAR_SHARD and process.shard is not None:
                    self._closed = self._closed or process.shard.state.ending.complete
                if not process.alive:
                    dead.append(process)
            for process in dead:
                self._shards_up.remove(process)
        return self._closed

    @property
    def failed(self) -> bool:
        """A shard has said that the job has failed (rule 22)."""
        serving = [p for p in self._shards_up if p.alive and p.shard is not None]
        return any(p.shard.state.failed for p in serving if p.shard is not None)

    def close(self) -> None:
        """Let go of all processes, without another event."""
        everybody = (*self.all_shards, *self.all_learners, *self.followers, *self.guests)
        for process in everybody:
            process.alive = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of tasks that have not begun
            for process in everybody:
                process.loop.close()
