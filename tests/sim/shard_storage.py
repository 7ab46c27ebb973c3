"""The durable side of a shard's process: its log's queue, and symbols in place of tensors."""

import abc
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atoll_syncer.model.effects import Effect, Merge, Reply
from atoll_syncer.model.log import Committed, Entry, History, Seeded
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.journal import DeposedError, Journal
from atoll_syncer.storage.store import StoreMissing, StoreUnavailable
from sim.clock import Process
from sim.memory_store import MemoryStore
from sim.symbols import Difference, Value, merge

if TYPE_CHECKING:
    from sim.world import World

RETRY_SECONDS = 1.0


class ShardStorage(Process, abc.ABC):
    """As driver.py: one thread appends to the log, one merges; trouble delays, nothing more."""

    def __init__(
        self, world: "World", number: int, pod: str, instance: str, store: MemoryStore
    ) -> None:
        super().__init__(world.sim, f"{pod}/{instance.rpartition('-')[2]}")
        self.world, self.number, self.pod, self.instance = world, number, pod, instance
        self.store = store
        self.rng = world.sim.random(f"shard {instance}")
        self.journal = Journal(store, lambda: world.sim.now)
        self.shard: Shard | None = None
        self.heads: dict[int, Value] = {}
        self.coming: dict[int, Value] = {}
        self.staged: dict[tuple[str, int, int, int], Difference] = {}
        self.queue: list[Entry | Reply] = []
        self.writing = False
        self.replies: dict[int, Callable[[Any], None]] = {}
        self.live: set[str] = set()

    @abc.abstractmethod
    def feed(self, effects: list[Effect]) -> None:
        """Perform what the rules answer."""

    # ------------------------------------------------------------ the log

    def write(self) -> None:
        """Go on with the queue: entries become durable one after the other."""
        if self.writing or not self.queue:
            return
        first = self.queue[0]
        if isinstance(first, Reply):
            self.queue.pop(0)
            self.replies.pop(first.token)(first.message)
            self.write()
            return
        self.writing = True
        self.after(self.world.scenario.disk_seconds * self.rng.uniform(0.2, 2.0), self.create)

    def create(self) -> None:
        """The moment in which an entry comes to be; its writer hears of it a little later."""
        entry = self.queue[0]
        assert not isinstance(entry, Reply)
        try:
            self.journal.append(entry)
        except StoreUnavailable:
            self.after(RETRY_SECONDS, self.create)
        except DeposedError:
            assert self.shard is not None
            self.feed(self.shard.deposed(self.sim.now))
        else:
            self.after(self.rng.uniform(0.0, 0.01), lambda: self.created(entry))

    def created(self, entry: Entry) -> None:
        """The answer of the store."""
        assert self.shard is not None
        self.queue.pop(0)
        self.writing = False
        match entry:
            case Seeded():
                self.heads, self.coming = self.coming, {}
            case Committed():
                self.heads[entry.slice] = self.coming.pop(entry.slice)
        self.sim.note(self.name, f"durable {self.journal.position}: {type(entry).__name__}")
        self.feed(self.shard.appended(entry, self.sim.now))
        if isinstance(entry, Committed | Seeded):
            self.collect()
        self.write()

    def collect(self) -> None:
        """Remove what was live and is no more (slices.Collector.advance)."""
        assert self.shard is not None
        live = self.shard.history.live_objects()
        try:
            for name in sorted(self.live - live):
                self.store.delete(name)
                self.live.discard(name)
        except StoreUnavailable:
            return
        self.live |= live

    # ------------------------------------------------------------ values

    def merge(self, effect: Merge) -> None:
        """Begin a merge with what is staged."""
        names = [(p.slot, p.incarnation, effect.slice, p.capture) for p in effect.participants]
        offers = tuple(self.staged.pop(name, None) for name in names)
        self.world.watchers.tell("merging", self, effect, offers)
        works = tuple(each.theta.work for each in offers if each and each.theta.work)
        value = merge(self.heads[effect.slice], works)
        self.coming[effect.slice] = value
        self.sim.note(self.name, f"merges slice {effect.slice}: {[(*n[:2], n[3]) for n in names]}")
        seconds = self.world.scenario.merge_seconds * self.rng.uniform(0.3, 2.0)
        self.after(seconds, lambda: self.store_merged(effect.slice, value))

    def restore(self, history: History) -> set[int]:
        """Read the heads back; returns the slices whose object is gone."""
        lost = set()
        for fragment, head in history.heads.items():
            try:
                digest = json.loads(self.store.read(head.object))["digest"]
            except StoreMissing:
                lost.add(fragment)
            else:
                self.heads[fragment] = self.world.values[digest]
        return lost

    def store_merged(self, fragment: int, value: Value, number: int | None = None) -> None:
        """Write the object, then let the entry name it."""
        assert self.shard is not None
        try:
            name = self.store_value(fragment, value, number)
        except StoreUnavailable:
            self.after(RETRY_SECONDS, lambda: self.store_merged(fragment, value, number))
            return
        self.feed(self.shard.merged(fragment, value.digest, name, self.sim.now))

    def store_seed(self) -> None:
        """Version 0 of all slices."""
        assert self.shard is not None
        values = [value for _, value in sorted(self.coming.items())]
        try:
            names = [self.store_value(fragment, each) for fragment, each in enumerate(values)]
        except StoreUnavailable:
            self.after(RETRY_SECONDS, self.store_seed)
            return
        self.feed(self.shard.seeded(tuple(each.digest for each in values), tuple(names)))

    def store_value(self, fragment: int, value: Value, number: int | None = None) -> str:
        """An object of its own for each version, as slices.Origin makes it."""
        assert self.shard is not None
        self.world.values[value.digest] = value
        head = self.shard.history.heads.get(fragment)
        if number is None:
            number = head.number + 1 if head else 0
        origin = [self.number, fragment, number, self.shard.history.epoch]
        return self.store.put([json.dumps({"digest": value.digest, "origin": origin}).encode()])

    def part_written(self) -> None:
        """The export of this shard."""
        assert self.shard is not None
        self.feed(self.shard.part_written(f"part-{self.number}", "digest"))

    def exported(self) -> None:
        """The index of the export."""
        assert self.shard is not None
        self.feed(self.shard.exported())
