"""A shard whose merges are recorded, without its rules."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Recorded, RunFile, Sync
from atoll_syncer.checkpoints.places import FolderPlace, Place
from atoll_syncer.duties.keeping_merges import KeepingMerges
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.model.log import Committed, Participant
from atoll_syncer.numbers.values import StoredVersion
from atoll_syncer.storage.checksums import with_checksum, without_checksum
from unit.syncer.checkpoint_side import table
from unit.syncer.values_side import LAYOUT, SLOTS, Bench


async def in_no_thread(_: object, work: Callable[[], Any]) -> Any:
    return work()


class RecordedBench(Bench):
    """`place` has the record of its shard 0 of 1."""

    def __init__(
        self,
        folder: Path,
        sync: Sync,
        layout: Layout = LAYOUT,
        commits: int = 100,
        place: Place | None = None,
    ) -> None:
        super().__init__(folder / "store", sync, layout)
        self.history.run = "run"
        self.place = place or FolderPlace(folder / "place")
        self.recorded_in = folder / "place/record/0"
        self.metrics = ShardMetrics(CollectorRegistry())
        self.plan = Recorded(url=self.place.url, commits=commits)
        self.begin_process(1)
        self.before_write: Callable[[], None] = lambda: None

    def begin_process(self, epoch: int) -> None:
        """Another process of the shard, which knows what the log says."""
        self.history.epoch = epoch
        run_file = RunFile(job="j", regions=(), steps=1, sync=self.sync, recorded=self.plan)
        machine: Any = SimpleNamespace(
            run_file=run_file,
            store=self.store,
            metrics=self.metrics,
            journal=SimpleNamespace(clock=lambda: 7.0),
            open_place=lambda url: self.place,
        )
        state: Any = SimpleNamespace(
            run_file=run_file, history=self.history, number=0, layout=self.layout
        )
        background: Any = SimpleNamespace(run=in_no_thread)
        self.keeping = KeepingMerges(state, machine, background)

    def seed(self) -> list[Any]:
        seeds = super().seed()
        self.history.tensors = table(self.layout.tensors)
        return seeds

    def make(self, merge: MergeOffers) -> StoredVersion:
        self.keeping.take(self.values, merge)
        made = super().make(merge)
        self.before_write()
        asyncio.run(self.keeping.write(made))
        return made

    def commit(
        self, fragment: int, participants: Sequence[Participant], *, last: bool = False
    ) -> Committed:
        entry = super().commit(fragment, participants, last=last)
        self.history.heads[fragment] = dataclasses.replace(
            self.history.heads[fragment], epoch=self.history.epoch
        )
        return entry

    def rounds(self, count: int, fragment: int = 0) -> None:
        for _ in range(count):
            self.round(fragment, self.history.heads[fragment].number + 1)

    def file(self, slice_: int, number: int, epoch: int = 1) -> Path:
        return self.recorded_in / f"log/{slice_}-{number}-{epoch}.json"

    def offer_of(self, slice_: int, number: int, slot: str = SLOTS[0]) -> Path:
        """The file of an offer that was merged."""
        found = json.loads(self.file(slice_, number).read_text())["offers"]
        names = {each["participant"]["slot"]: each["object"] for each in found}
        return self.recorded_in / str(names[slot])


def rewrite(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    """Change a document as a program would that computes wrongly: its checksum is right."""
    document = without_checksum(path.read_bytes())
    path.write_bytes(with_checksum(change(document) or document))
