"""Rules 1, 2, 4 and 5: who starts a run, who is admitted, and which incarnation counts."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.model.effects import Append, Effect, MergeOffers
from atoll_syncer.model.log import Begun, Committed, Entry, Owned, RunStarted, Seeded, Taken
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.symbols import Key, Value, seed_value
from sim.watch import Watcher
from sim.world import World


class StartChecker(Watcher):
    """Rule 1: one version 0, and no commit above it before the mark is durable."""

    rule = "1"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.run = ""
        self.begun: set[int] = set()
        self.registrar_lost = False

    def store_lost(self, shard: int) -> None:
        """What the registrar had marked is gone with its store."""
        self.registrar_lost = self.registrar_lost or shard == 0

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        match entry:
            case RunStarted(run=run) if shard == 0:
                self.run = run
            case RunStarted(run=run):
                self.require(run == self.run, f"shard {shard} starts {run}, not {self.run}")
            case Begun(shard=begun):
                self.begun.add(begun)
            case Seeded() if self.world.parent is None:
                for fragment, digest in enumerate(entry.digests):
                    expected = seed_value((shard, fragment), f"seed {self.world.run_file.seed}")
                    self.require(digest == expected.digest, "another version 0")
            case Committed(number=number) if number > 0 and not self.registrar_lost:
                self.require(shard in self.begun, f"shard {shard} commits before it has begun")


class RunChecker(Watcher):
    """Rule 2: one run for all, also after the registrar has lost its store."""

    rule = "2"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.runs: list[str] = []
        self.holds: dict[int, str] = {}

    def store_lost(self, shard: int) -> None:
        self.holds.pop(shard, None)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, RunStarted):
            if entry.run not in self.runs:
                held = self._held_somewhere() if self.runs else ""
                self.require(not held, f"run {entry.run} is minted while {held}")
                self.runs.append(entry.run)
            self.holds[shard] = entry.run
        elif isinstance(entry, Committed):
            run = document["run"]
            self.require(run == self.runs[-1], f"a commit of run {run}, not {self.runs[-1]}")

    def adopted(self, learner: LearnerProcess, key: Key, publish: pb.Publish, value: Value) -> None:
        run = publish.version.version.run
        self.require(run == self.runs[-1], f"{learner.name} adopts a value of run {run}")

    def _held_somewhere(self) -> str:
        """Who holds the run at present, could say so, and has had 30 s for it."""
        for shard, run in self.holds.items():
            if self.world.shards[shard].alive and not self.world.shards[shard].paused:
                return f"shard {shard} holds {run}"
        blocked = self.world.weather.blocked_until
        for learner in self.world.learners.values():
            reachable = blocked.get(learner.slot, 0.0) <= self.world.sim.now
            if learner.alive and learner.training.begun and not learner.paused and reachable:
                return f"{learner.name} holds {self.runs[-1]}"
        return ""


class AdmissionChecker(Watcher):
    """Rule 4: an instance gets one incarnation, durably, and never beside a live session."""

    rule = "4"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.given: dict[str, tuple[str, int]] = {}  # instance: slot, incarnation
        self.highest: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self.lost = False  # then an instance may bring an incarnation that is not known any more

    def store_lost(self, shard: int) -> None:
        if shard == 0:
            self.lost = True
            self.given, self.highest, self.owners = {}, {}, {}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if shard == 0 and isinstance(entry, Owned):
            self.owners[entry.slot] = entry.uid
        if shard == 0 and isinstance(entry, Taken):
            highest = self.highest.get(entry.slot, 0)
            self.require(entry.incarnation > highest, f"{entry} after {highest}")
            self.require(entry.instance not in self.given, f"{entry.instance} is admitted twice")
            self.given[entry.instance] = entry.slot, entry.incarnation
            self.highest[entry.slot] = entry.incarnation

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if shard.number != 0 or self.lost:
            return
        for effect in effects:
            if isinstance(effect, Append) and isinstance(effect.entry, Taken):
                self._admits(shard, effect.entry)

    def learner_message(self, learner: LearnerProcess, shard: int, message: pb.ToLearner) -> None:
        if learner.observer:
            return
        if shard == 0 and message.HasField("welcome") and learner.instance in self.given:
            given = self.given[learner.instance]
            said = learner.slot, message.welcome.incarnation
            self.require(said == given, f"{learner.name} is welcomed as {said}, not {given}")
        elif shard == 0 and message.HasField("welcome"):
            lost = self.world.loses_a_store
            self.require(lost, f"{learner.name} is welcomed before it is admitted durably")

    def _admits(self, shard: ShardProcess, entry: Taken) -> None:
        if self.owners.get(entry.slot) == entry.uid:
            return
        for peer in shard.peers.values():
            other = peer.learner
            live = peer.incarnation > 0 and not peer.ended and other.slot == entry.slot
            self.require(
                not live or other.instance == entry.instance,
                f"{entry.instance} is admitted while {other.instance} has a session",
            )


class IncarnationChecker(Watcher):
    """Rule 5: every shard takes a higher incarnation durably, and lower ones end there.

    It takes only what the registrar has given.
    """

    rule = "5"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.taken: dict[tuple[int, str], int] = {}
        self.given: set[tuple[str, int, str]] = set()  # slot, incarnation, instance

    def store_lost(self, shard: int) -> None:
        self.taken = {key: n for key, n in self.taken.items() if key[0] != shard}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Taken):
            before = self.taken.get((shard, entry.slot), 0)
            self.require(entry.incarnation > before, f"shard {shard} goes back to {entry}")
            self.taken[shard, entry.slot] = entry.incarnation
            name = entry.slot, entry.incarnation, entry.instance
            if shard == REGISTRAR_SHARD:
                self.given.add(name)
            self.require(name in self.given, f"shard {shard} takes {entry}, which nobody gave")

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, MergeOffers) and self._has_its_shard(shard):
                for part in effect.participants:
                    highest = self._heard(shard, part.slot)
                    zombie = part.incarnation < highest
                    self.require(not zombie, f"{part} is merged after {highest} was taken")

    def learner_message(self, learner: LearnerProcess, shard: int, message: pb.ToLearner) -> None:
        lost = self.world.loses_a_store or learner.observer
        if message.HasField("welcome") and not lost:
            number = message.welcome.incarnation
            durable = self.taken.get((shard, learner.slot), 0)
            self.require(number <= durable, f"{learner.name} is welcomed as {number} too early")

    def stepped(self, learner: LearnerProcess) -> None:
        if learner.training.t_m > 1 or self.world.loses_a_store:
            return
        for shard in range(self.world.run_file.shards):
            taken = self.taken.get((shard, learner.slot), 0)
            self.require(
                taken >= learner.incarnation > 0,
                f"{learner.name} steps before shard {shard} has taken {learner.incarnation}",
            )

    def _heard(self, shard: ShardProcess, slot: str) -> int:
        """The highest incarnation that this process knows to be durable."""
        assert shard.shard is not None
        taken = shard.shard.state.history.taken.get(slot)
        return taken.incarnation if taken else 0

    def _has_its_shard(self, shard: ShardProcess) -> bool:
        """Else it is deposed and does not know: its entries cannot be created."""
        newest = [
            p.shard.state.history.epoch
            for p in self.world.all_shards
            if p.number == shard.number and p.shard is not None and p.store is shard.store
        ]
        return shard.shard is not None and shard.shard.state.history.epoch == max(newest)
