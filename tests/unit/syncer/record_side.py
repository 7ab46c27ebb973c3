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
from atoll_protos.job.run_file import RunFile, Sync
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.duties.recording import MergeRecorder
from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.model.log import Committed, Participant
from atoll_syncer.numbers.values import StoredVersion
from atoll_syncer.storage.journal import with_checksum, without_checksum
from unit.syncer.checkpoint_side import table
from unit.syncer.values_side import LAYOUT, SLOTS, Bench


async def in_no_thread(_: object, work: Callable[[], Any]) -> Any:
    return work()


class RecordedBench(Bench):
    """`folder` is of a run, with the record of its shard 0 of 1."""

    def __init__(
        self, folder: Path, sync: Sync, layout: Layout = LAYOUT, merges: int = 100
    ) -> None:
        super().__init__(folder / "store", sync, layout)
        self.history.run = "run"
        self.folder, self.merges = folder, merges
        self.recorded_in = folder / "record/0"
        self.metrics = ShardMetrics(CollectorRegistry())
        self.begin_process(1)
        self.before_write: Callable[[], None] = lambda: None

    def begin_process(self, epoch: int) -> None:
        """Another process of the shard, which knows what the log says."""
        self.history.epoch = epoch
        run_file = RunFile(job="j", regions=(), steps=1, sync=self.sync)
        machine: Any = SimpleNamespace(
            run_file=run_file,
            store=self.store,
            metrics=self.metrics,
            journal=SimpleNamespace(clock=lambda: 7.0),
            record=(self.folder / "record", self.merges),
        )
        state: Any = SimpleNamespace(
            run_file=run_file, history=self.history, number=0, layout=self.layout
        )
        background: Any = SimpleNamespace(run=in_no_thread)
        self.recorder = MergeRecorder(state, machine, background)

    def seed(self) -> list[Any]:
        seeds = super().seed()
        self.history.tensors = table(self.layout.tensors)
        return seeds

    def make(self, merge: MergeOffers) -> StoredVersion:
        self.recorder.take(self.values, merge)
        made = super().make(merge)
        self.before_write()
        asyncio.run(self.recorder.write(made))
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
