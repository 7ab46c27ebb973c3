"""Rule 36: the companion of the export is one learner's, stays, and is waited for."""

from typing import TYPE_CHECKING, Any

from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.model.effects import Effect, WriteIndex
from atoll_syncer.model.log import Companion, Entry, ShardFinal
from atoll_syncer.rules.companions import EXPORT_WAITS_SECONDS
from atoll_syncer.storage.objects import decode
from sim.learner_process import companion_of
from sim.watch import Watcher

if TYPE_CHECKING:
    from sim.shard_process import ShardProcess
    from sim.world import World


class CompanionChecker(Watcher):
    """What an entry names is in the store, whole, for as long as the job lasts."""

    rule = "36"

    def __init__(self, world: "World") -> None:
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
        if not isinstance(entry, Companion):
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

    def shard_did(self, shard: "ShardProcess", effects: list[Effect]) -> None:
        if not any(isinstance(effect, WriteIndex) for effect in effects) or shard.shard is None:
            return
        sessions = shard.shard.sessions.values()
        there = [each.slot for each in sessions if each.welcomed and each.slot]
        waited_seconds = self.world.sim.now - self.whole_at
        if there and waited_seconds < EXPORT_WAITS_SECONDS - 1.0:
            both = len(self.kept) == 2
            self.require(both, f"the export does not wait for {', '.join(there)}")
