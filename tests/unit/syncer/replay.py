"""Recomputes commits bit for bit from the tape and recorded offers (rule 29).

It runs the code of the shard itself (values, commit, merge, outer), with the tape in place of the
rules. A digest that differs means that a commit was not what the tape says it was.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.arrays import empty_packed
from atoll_syncer.model.effects import MergeOffers, Stage, StoreHeld, StoreSeed
from atoll_syncer.model.log import Committed, Participant
from atoll_syncer.model.slices import round_master
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.values import TensorValues, VersionInMaking

Recorded = Callable[[int, Participant], Arrived]  # a slice's offer of a participant


class ReplayError(Exception):
    """A recomputed version has another digest than the one that was published."""


def from_tape(line: Mapping[str, Any]) -> Committed:
    """The commit that a line of the tape with the event "commit" describes.

    Raises KeyError and TypeError for any other line.
    """
    same = {name: line[name] for name in ("slice", "epoch", "digest", "base", "tick", "due")}
    return Committed(
        **same,
        number=line["version"],
        object="",
        reason=line["reason"],
        last=line["last"],
        recovered=line.get("recovered", False),
        participants=tuple(Participant(**each) for each in line["participants"]),
        momentum=line["momentum"],
    )


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
        """The version that an entry or a tape line names; raises ReplayError when it differs."""
        fragment = committed.slice
        for p in committed.participants:
            name = Stage(p.slot, p.incarnation, fragment, p.capture)
            self.values.stage(name, recorded(fragment, p))
        merge = MergeOffers(
            fragment, committed.participants, committed.momentum, last=committed.last
        )
        making = self.values.begin_merge(merge, "", 0)
        found = self._finish(fragment, making)
        self._check(committed, found if found == committed.digest else self._as_last(fragment))

    def recover(self, committed: Committed, held: Arrived) -> None:
        """A version taken back from a learner (rule 22); raises ReplayError when it differs."""
        self.values.keep(0, committed.slice, held)
        making = self.values.begin_held(StoreHeld(committed.slice, 0, committed.number), "", 0)
        self._check(committed, self._finish(committed.slice, making))

    def _finish(self, fragment: int, making: VersionInMaking) -> str:
        making.compute()
        self.values.committed(fragment)
        return self.values.bases()[fragment].digest

    def _as_last(self, fragment: int) -> str:
        """The digest of the version if it was made as the last of its slice.

        The entry may not say so: in lock-step, or where the job became longer in that moment.
        """
        part = self.values.slices[fragment]
        assert part.head is not None, "it was just committed"
        base = empty_packed(part.recipe.final, part.recipe.form)
        round_master(part.master, base)
        part.head = replace(part.head, base=base, difference=None)
        return base.digest

    def _check(self, committed: Committed, found: str) -> None:
        if found != committed.digest:
            name = f"slice {committed.slice} version {committed.number}"
            raise ReplayError(f"{name}: digest {found}, published {committed.digest}")
