"""Rules 20 and 44: whose a shard is, and that it is heard."""

from typing import Any

from atoll_protos.exits import ExitCode
from atoll_syncer.model.effects import Effect, EndProcess, Send
from atoll_syncer.model.log import Entry, TermBegun
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World

SETTLING_SECONDS = 10.0
MINUTE, TERMS_MAX = 60.0, 0  # taken from a process that lives, but for faults
HEARD_SECONDS = 1.01
OF_SHARDS = (  # after which another term begins
    *("kill shard", "pause shard", "stop", "replace", "successor", "partition", "store", "lose"),
    "damage everywhere",
)
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
        self.owners: dict[int, str] = {}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if not isinstance(entry, TermBegun):
            return
        now, former = self.world.sim.now, self.owners.get(shard, entry.instance)
        self.owners[shard] = entry.instance
        terms = [term for term in self.terms.get(shard, []) if term[0] > now - MINUTE]
        lives = any(
            process.alive for process in self.world.all_shards if process.instance == former
        )
        if former != entry.instance and lives:  # who has ended loses no shard
            terms.append((now, entry.instance))
        self.terms[shard] = terms
        faults = sum(
            now - MINUTE - FAULT_SECONDS < fault.at <= now
            for fault in self.world.scenario.faults
            if fault.kind.startswith(OF_SHARDS)
        )
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
