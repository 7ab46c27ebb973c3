"""The end: every finished learner has the exported values, in all bits; the companion (rule 36)."""

from collections.abc import Mapping
from typing import Any

from atoll_protos.job.companion import WAITS_SECONDS
from atoll_protos.names import REGISTRAR_SHARD
from atoll_protos.transfer.codecs import base_encoding
from atoll_syncer.model.effects import Effect, WriteIndex
from atoll_syncer.model.log import CompanionStored, Entry, ShardFinal
from atoll_syncer.storage.objects import decode
from atoll_worker.link.messages import Finished
from sim.learner_process import LearnerProcess, companion_of
from sim.shard_process import ShardProcess
from sim.symbols import Key, Value
from sim.watch import Watcher
from sim.world import World


class FinalChecker(Watcher):
    """Rules 17 and 27: one final value of each slice, and nothing of it is rounded by the wire.

    What a shard exports is what it has exported before, and what learners are finished with. Where
    committed data was lost, learners that left before had another one.
    """

    rule = "27 (values)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.finals: dict[Key, Value] = {}
        self.lost: set[int] = set()

    def store_lost(self, shard: int) -> None:
        self.lost.add(shard)

    def object_lost(self, shard: int, name: str) -> None:
        self.lost.add(shard)

    def exported(self, shard: int, values: Mapping[int, Value]) -> None:
        self.require(len(values) == self.world.layout.fragments, f"shard {shard}: {values}")
        for fragment, value in values.items():
            self._final((shard, fragment), value, f"shard {shard} exports")

    def commanded(self, learner: LearnerProcess, command: Any) -> None:
        if not isinstance(command, Finished):
            return
        if not learner.observer:
            again = sorted(command.again)
            self.require(again == sorted(learner.regions), f"{learner.name} takes only {again}")
        for key, (_, value) in learner.placed.items():
            self._final(key, value, f"{learner.name} is finished with")

    def _final(self, key: Key, value: Value, who: str) -> None:
        if key[0] in self.lost:
            return
        base = base_encoding(self.world.run_file.sync.wire_down)
        rounded = self.world.layout.final_encoding(self.world.layout.slice(*key), base) != base
        self.require(value.exact == rounded, f"{who} {key} as the wire rounds it")
        known = self.finals.setdefault(key, value)
        self.require(known.digest == value.digest, f"{who} {key} {value}, not {known}")


class CompanionChecker(Watcher):
    """What an entry names is in the store, whole, for as long as the job lasts."""

    rule = "36"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kept: dict[bool, tuple[str, ...]] = {}  # by whether it is what has changed
        self.finals: set[int] = set()
        self.whole_at = 0.0  # when the last shard's part was known

    def store_lost(self, shard: int) -> None:
        if shard == REGISTRAR_SHARD:
            self.kept.clear()
            self.finals.clear()

    def object_lost(self, shard: int, name: str) -> None:
        """A fault, not a bug: it is looked for no more."""
        self.kept = {which: names for which, names in self.kept.items() if name not in names}

    def object_deleted(self, shard: int, name: str) -> None:
        named = {each for names in self.kept.values() for each in names}
        self.require(shard != REGISTRAR_SHARD or name not in named, f"{name} is collected")

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, ShardFinal) and shard == REGISTRAR_SHARD:
            self.finals.add(entry.shard)
            self.whole_at = self.world.sim.now
        if not isinstance(entry, CompanionStored):
            return
        self.require(shard == REGISTRAR_SHARD, f"shard {shard} keeps a companion")
        store = self.world.stores[shard].data
        self.require(all(name in store for name in entry.objects), "a part is not stored")
        parts = [decode(bytearray(store[name]))[0]["bytes"] for name in entry.objects]
        found = b"".join(bytes(each.tolist()) for each in parts)
        slots = self.world.run_file.slots
        known = {companion_of(slot, changed=entry.changed) for slot in slots}
        self.require(found in known, f"{found!r} is no learner's")
        self.kept[entry.changed] = entry.objects

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if not any(isinstance(effect, WriteIndex) for effect in effects) or shard.shard is None:
            return
        sessions = shard.shard.state.sessions.open.values()
        there = [each.slot for each in sessions if each.welcomed and each.slot]
        waited_seconds = self.world.sim.now - self.whole_at
        if there and waited_seconds < WAITS_SECONDS - 1.0:
            both = len(self.kept) == 2
            self.require(both, f"the export does not wait for {', '.join(there)}")
