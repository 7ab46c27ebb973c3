"""Rule 19: what the momentum of each version has taken in."""

from typing import Any

from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.model.log import Committed, Entry, Seeded
from sim.checkers.values import OF_STORE
from sim.shard_process import ShardProcess
from sim.symbols import Difference, Key
from sim.watch import Watcher
from sim.world import World


class MomentumChecker(Watcher):
    """Rule 19: the momentum follows the merges that the head's momentum holds, and no others."""

    rule = "19 (momentum)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.merges: dict[Key, int] = {}  # in the momentum of the newest version
        self.earlier: dict[Key, int] = {}  # likewise, of the version before it
        self.used: dict[Key, set[float]] = {}  # by any process, since the newest version

    def merging(
        self, shard: ShardProcess, merge: MergeOffers, offers: tuple[Difference | None, ...]
    ) -> None:
        self.used.setdefault((shard.number, merge.slice), set()).add(merge.momentum)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Seeded):  # nobody had a version of a former run
            self.merges = {key: each for key, each in self.merges.items() if key[0] != shard}
            self.merges |= {(shard, p): each for p, each in enumerate(entry.merges)}  # rule 43
        if not isinstance(entry, Committed):
            return
        key, before = (shard, entry.slice), self.merges.get((shard, entry.slice), 0)
        if entry.recovered:  # a learner holds no momentum
            before = self.earlier.get(key, 0) if OF_STORE in entry.reason else 0
        else:
            used, said = self.used.pop(key, set()), entry.momentum
            self.require(said in used, f"{key} v{entry.number} says {said}, {used} was used")
            grows = (said > 0) == (before > 0)
            self.require(grows, f"{key} v{entry.number}: {said} after {before} merges")
        after = before + bool(entry.participants)
        self.require(
            entry.merges == after, f"{key} v{entry.number} says {entry.merges} merges of {after}"
        )
        self.earlier[key], self.merges[key] = self.merges.get(key, 0), after
