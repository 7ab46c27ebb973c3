"""Recomputes commits from entries of a log and offers that can be made again."""

from collections.abc import Callable, Iterable

from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Sync
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed
from atoll_syncer.model.log import Committed, Participant
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.values import TensorValues, VersionInMaking

Recorded = Callable[[int, Participant], Arrived]  # a slice's offer of a participant


class Replay:
    """One shard's versions, computed again from its seeds. For one thread at a time."""

    def __init__(self, layout: Layout, shard: int, sync: Sync) -> None:
        self.values = TensorValues.allocate(layout, shard, sync)

    def seed(self, seeds: Iterable[Arrived]) -> list[str]:
        """Version 0 of all slices, given by fragment; returns the digests."""
        for fragment, seed in enumerate(seeds):
            self.values.keep(0, fragment, seed)
        makings = self.values.begin_seed(StoreSeed(0), "", 0)
        return [self._finish(fragment, making) for fragment, making in enumerate(makings)]

    def commit(self, committed: Committed, recorded: Recorded) -> None:
        """The version that an entry names."""
        fragment = committed.slice
        for p in committed.participants:
            name = Stage(p.slot, p.incarnation, fragment, p.capture)
            self.values.stage(name, recorded(fragment, p))
        merge = MergeOffers(
            fragment, committed.participants, committed.momentum, last=committed.last
        )
        found = self._finish(fragment, self.values.begin_merge(merge, "", 0))
        assert found == committed.digest, committed

    def _finish(self, fragment: int, making: VersionInMaking) -> str:
        making.compute()
        self.values.committed(fragment)
        return self.values.bases()[fragment].digest
