"""The shards of a run that was trained, as far as their stores show it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from atoll_protos.job.layout import Layout, TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import base_encoding
from atoll_syncer.checkpoints import copies
from atoll_syncer.checkpoints.copies import Attempt, Place
from atoll_syncer.model.history import HeadVersion, History
from atoll_syncer.model.log import Merged, SliceTensors, Trained, round_master
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.storage import versions
from atoll_syncer.storage.files import FileStore
from atoll_syncer.storage.journal import LogSnapshot
from atoll_syncer.storage.versions import VersionOrigin, write_slice
from unit.syncer.values_side import TENSORS

RUN = "parent"
STATE = b"a place in the data"


def table(tensors: Iterable[TensorSpec]) -> tuple[dict[str, object], ...]:
    return tuple(
        {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "merge": t.merge}
        for t in tensors
    )


class Parent:
    """Each shard has a store and a history; `whole` are master and momentum of each tensor."""

    def __init__(
        self, folder: Path, shards: int = 2, fragments: int = 3, sync: Sync | None = None
    ) -> None:
        self.sync = (sync or Sync()).with_fragments(fragments)
        self.layout: Layout = build_layout(TENSORS, fragments, shards)
        draw = np.random.default_rng(3)
        self.whole = {
            name: [draw.standard_normal(t.element_count).astype(F32) for t in self.layout.tensors]
            for name in ("master", "momentum")
        }
        self.stores = [FileStore(folder / str(n)) for n in range(shards)]
        for store in self.stores:
            store.open()
        self.histories = [self._history(n, store) for n, store in enumerate(self.stores)]

    def _history(self, shard: int, store: FileStore) -> History:
        history = History(run=RUN, run_hash="h", key="secret", epoch=2, tick=40 + shard)
        history.tensors, history.layout_digest = table(self.layout.tensors), self.layout.digest
        for owned in self.layout.shard_slices(shard):
            cut = {name: self.cut(owned.fragment, shard, name) for name in self.whole}
            base = arrays.empty_packed(base_encoding(self.sync.wire_down), owned.form)
            round_master(cut["master"], base)
            origin = VersionOrigin(run=RUN, shard=shard, slice=owned.fragment, number=7, epoch=2)
            state = SliceTensors(master=cut["master"], momentum=cut["momentum"], base=base)
            digest, name = write_slice(store, origin, state, self.sync.wire_down)
            merges = 7 + owned.fragment + shard
            head = HeadVersion(number=7, epoch=2, digest=digest, object=name, merges=merges)
            history.heads[owned.fragment] = head
        history.cursors = {"a-0": 100 + shard, "a-1": 200 - shard}
        origin = VersionOrigin(run=RUN, shard=shard, slice=0, number=7, epoch=2)
        name = versions.write_data_states(store, origin, {"a-0": STATE + bytes([shard])})
        history.data_states = {"a-0": name}
        history.trained = {"a-0": Trained(incarnation=4, before=10, now=5 + shard, said=9)}
        history.merged = {
            0: {"a-0": Merged(slot="a-0", incarnation=4, base=6, capture=1, cursor=9)}
        }
        return history

    def cut(self, fragment: int, shard: int, name: str) -> Array:
        pieces = self.layout.slice(shard, fragment).pieces
        return np.concatenate([self.whole[name][p.tensor][p.start : p.stop] for p in pieces])

    def attempt(self, shard: int, step: int, *, run: str = RUN, **job: str) -> Attempt:
        """`job`: restore_from and uid."""
        history = replace(self.histories[shard].copy(), run=run)
        return Attempt(
            step=step,
            shard=shard,
            shards=len(self.stores),
            layout=self.layout,
            snapshot=LogSnapshot(position=30 + shard, checksum="c", history=history),
            **job,
        )

    def take(self, place: Place, shard: int, step: int, *, run: str = RUN, **job: str) -> Attempt:
        """One shard's part, as its process takes it."""
        attempt = self.attempt(shard, step, run=run, **job)
        if not copies.is_taken(place, attempt):
            for work in copies.works(place, self.stores[shard], attempt, lambda: 7.0):
                work()
        return attempt

    def checkpoint(
        self,
        place: Place,
        step: int = 40,
        *,
        run: str = RUN,
        time: float | None = None,
        **job: str,
    ) -> None:
        """A whole one."""
        taken = [self.take(place, shard, step, run=run, **job) for shard in range(len(self.stores))]
        assert not copies.finish(place, taken[0], lambda: step if time is None else time)


def gathered(layout: Layout, shards: list[TensorValues], name: str) -> list[Array]:
    """Each tensor of a model that is cut by `layout`; `name` is master or momentum."""
    found = [np.zeros(t.element_count, F32) for t in layout.tensors]
    for owned in layout.slices:
        values = getattr(shards[owned.shard].slices[owned.fragment], name)
        for piece in owned.pieces:
            part = values[piece.offset : piece.offset + piece.element_count]
            found[piece.tensor][piece.start : piece.stop] = part
    return found


def a_place(folder: Path) -> FileStore:
    return FileStore(folder / "checkpoints")
