"""Rules 20, 44 and 46: whose a shard is, and that it is heard and hears."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.model.effects import Effect, EndProcess, Send
from atoll_syncer.model.log import Ended, Entry, TermBegun
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World

SETTLING_SECONDS = 10.0
MINUTE, TERMS_MAX = 60.0, 3  # of one shard
HEARD_SECONDS = 1.01
CUT_SECONDS, CUT_SECONDS_MAX = 5.0, 30.0  # at most, until an owner gives a shard away
SLACK_SECONDS = 1.5  # until it has ended
FAULT_SECONDS = 70.0  # that the longest pause takes, until the next process has the shard


class FenceChecker(Watcher):
    """Rule 20: epochs grow, no process appends in another's term, and one process is left.

    Nobody ends as deposed whom no other process has followed.
    """

    rule = "20"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.terms: dict[int, tuple[int, str]] = {}  # epoch, instance
        self.since: dict[int, float] = {}

    def store_lost(self, shard: int) -> None:
        self.terms.pop(shard, None)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        epoch, _ = self.terms.get(shard, (0, ""))
        if isinstance(entry, TermBegun):
            self.require(entry.epoch > epoch, f"shard {shard}: epoch {entry.epoch} after {epoch}")
            self.terms[shard] = entry.epoch, entry.instance
            self.since[shard] = self.world.sim.now
        else:
            written = document["epoch"]
            self.require(written == epoch, f"shard {shard}: epoch {written} writes in {epoch}")

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, EndProcess) and effect.code is ExitCode.SUPERSEDED:
                _, owner = self.terms.get(shard.number, (0, ""))
                followed = owner != shard.instance
                self.require(followed, f"{shard.name} ends, and nobody has followed it")

    def run_ended(self) -> None:
        for process in self.world.all_shards:
            old_store = process.store is not self.world.stores[process.number]
            if process.number not in self.terms or old_store:
                continue
            begun = max(self.since[process.number], process.woke_at, process.began_at)
            settled = self.world.sim.now > begun + SETTLING_SECONDS
            owns = process.alive and not process.paused and process.has_begun
            deposed = process.instance != self.terms[process.number][1]
            self.require(
                not (settled and owns and deposed), f"{process.name} goes on, though deposed"
            )


class PeaceChecker(Watcher):
    """Rule 20: two processes do not take a shard from each other for ever; a fault has its term."""

    rule = "20 (peace)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.terms: dict[int, list[tuple[float, str]]] = {}  # of the last minute, with instances

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if not isinstance(entry, TermBegun):
            return
        now = self.world.sim.now
        terms = [each for each in self.terms.get(shard, []) if each[0] > now - MINUTE]
        if not terms or terms[-1][1] != entry.instance:
            terms.append((now, entry.instance))
        self.terms[shard] = terms
        faults = sum(now - MINUTE - FAULT_SECONDS < each.at for each in self.world.scenario.faults)
        self.require(len(terms) <= TERMS_MAX + faults, f"shard {shard}: terms begin at {terms}")


class HeardChecker(Watcher):
    """Rule 44: each session hears its shard at least once a second."""

    rule = "44"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.heard: dict[tuple[str, int], float] = {}  # since its Welcome, by process and session

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        now = self.world.sim.now
        for effect in effects:
            if isinstance(effect, Send):
                key = shard.name, effect.session
                if key in self.heard or effect.message.HasField("welcome"):
                    self.heard[key] = now
        for session, peer in shard.peers.items():
            since = max(self.heard.get((shard.name, session), now), shard.woke_at)
            silent = not peer.ended and now - since > HEARD_SECONDS
            self.require(not silent, f"{shard.name} is silent to {session} since {since:.2f}")


class CutOffChecker(Watcher):
    """Rule 46: where another process waits, an owner that hears its learners no more ends."""

    rule = "46"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.heard: dict[str, float] = {}  # a learner, since its first Welcome, by process
        self.leaves: set[str] = set()  # processes of which a learner has taken leave
        self.terms: dict[int, list[float]] = {}
        self.ended: set[int] = set()  # shards

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, TermBegun):
            self.terms.setdefault(shard, []).append(self.world.sim.now)
        if isinstance(entry, Ended):
            self.ended.add(shard)

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        if shard.name in self.heard and shard.peers[session].incarnation:
            self.heard[shard.name] = self.world.sim.now
            if message.HasField("leave"):
                self.leaves.add(shard.name)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        scenario, now = self.world.scenario, self.world.sim.now
        for effect in effects:
            if isinstance(effect, Send) and effect.message.welcome.incarnation:
                self.heard[shard.name] = now
        unasked = shard.name in self.leaves or shard.number in self.ended or scenario.slow
        if not scenario.standby or unasked or shard.name not in self.heard:
            return
        silent = now - max(self.heard[shard.name], shard.woke_at)
        terms = sum(now - each < MINUTE + silent for each in self.terms[shard.number])
        bound = min(CUT_SECONDS_MAX, CUT_SECONDS * 2.0**terms) + SLACK_SECONDS
        self.require(silent <= bound, f"{shard.name} has heard no learner for {silent:.1f} s")
