"""A shard's values with a store and a log's worth of history, driven by hand."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import AVERAGE, Layout, TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import Wire, encoding_of
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Participant, TermBegun
from atoll_syncer.model.roster import momentum
from atoll_syncer.numbers.commit import Arrived
from atoll_syncer.numbers.values import StoredVersion, TensorValues
from atoll_syncer.storage.files import FileStore, Store, StoreCorrupt, StoreMissing
from unit.syncer.log_side import a_commit, a_participant, a_seed

WIRES = list(Wire)
TENSORS = [
    TensorSpec(name="embedding", shape=(301, 17), dtype="float32", merge="mean"),
    TensorSpec(name="first.weight", shape=(93, 71), dtype="float32", merge="rda"),
    TensorSpec(name="first.bias", shape=(93,), dtype="float32", merge="mean"),
    TensorSpec(name="second.weight", shape=(37, 93), dtype="float32", merge="rda"),
    TensorSpec(name="scale", shape=(), dtype="float32", merge="rda"),
    TensorSpec(name="second.running_mean", shape=(37,), dtype="float32", merge=AVERAGE),
    TensorSpec(name="second.running_var", shape=(37,), dtype="float32", merge=AVERAGE),
]
LAYOUT = build_layout(TENSORS, fragments=2, shards=1)
SLOTS = ("a-0", "a-1", "b-0")
STEPS = 24_000  # length of the job: 1,000 merges of each slice


class Bench:
    """Values with a store and a log's worth of history, driven by hand."""

    def __init__(self, folder: Path, sync: Sync, layout: Layout = LAYOUT, seed: int = 1) -> None:
        self.store = FileStore(folder)
        self.store.open()
        self.sync = sync
        self.layout = layout
        self.values = TensorValues.allocate(layout, 0, sync)
        self.history = History()
        self.history.apply(TermBegun(epoch=1, pod="p", instance="p1"))
        self.generator = np.random.default_rng(seed)
        self.entries: list[Committed] = []
        self.recorded: dict[tuple[int, str, int, int], bytes] = {}

    def random(self, fragment: int, scale: float = 1.0) -> Array:
        count = self.layout.slice(0, fragment).element_count
        return self.generator.standard_normal(count, F32) * F32.type(scale)

    def seed(self) -> list[Arrived]:
        arrived = [
            self.examined(pb.Transfer(seed=pb.Seed(slice=f)), self.random(f), Wire.F32)
            for f in range(self.layout.fragments)
        ]
        for fragment, seed in enumerate(arrived):
            self.values.keep(9, fragment, seed)
        outcomes: list[StoredVersion] = []
        for making in self.values.begin_seed(StoreSeed(9), "run", 1):
            making.compute()
            outcomes.append(making.write(self.store))
            self.values.committed(making.origin.slice)
        digests, objects = zip(*((each.digest, each.object) for each in outcomes), strict=True)
        digest = self.layout.digest
        self.history.apply(a_seed(digests, objects, tensors=(), layout_digest=digest))
        return arrived

    def examined(self, head: pb.Transfer, values: Array, wire: Wire) -> Arrived:
        head.encoding = encoding_of(wire)
        form = self.layout.slice(0, _slice_of(head)).form
        data = arrays.pack(values, head.encoding, form)
        return self.values.examine(head, bytearray(data))

    def offer(self, fragment: int, slot: str, capture: int, scale: float = 0.01) -> Participant:
        head = pb.Transfer(offer=pb.Offer(slice=fragment, capture=capture))
        arrived = self.examined(head, self.random(fragment, scale), self.sync.wire_up)
        self.values.stage(Stage(slot, 1, fragment, capture), arrived)
        self.recorded[fragment, slot, 1, capture] = bytes(arrived.values.data)
        return a_participant(
            slot,
            capture,
            base=self.history.heads[fragment].number,
            steps=capture,
            tokens=100 * capture,
            cursor=capture,
            weight=float(10_000 * capture),
        )

    def commit(
        self, fragment: int, participants: Sequence[Participant], *, last: bool = False
    ) -> Committed:
        mu = momentum(self.sync, self.history.heads[fragment].merges, STEPS)
        outcome = self.make(MergeOffers(fragment, tuple(participants), mu, last=last))
        participants = [p for p in participants if p.slot not in outcome.found.left_out]
        entry = committed(outcome, self.history.heads[fragment].number, participants)
        merges = self.history.heads[fragment].merges + bool(participants)
        entry = dataclasses.replace(entry, last=last, momentum=mu, merges=merges)
        self.history.apply(entry)
        self.entries.append(entry)
        self.values.committed(fragment)
        return entry

    def make(self, merge: MergeOffers) -> StoredVersion:
        making = self.values.begin_merge(merge, "run", self.history.epoch)
        making.compute()
        return making.write(self.store)

    def round(self, fragment: int, capture: int) -> Committed:
        return self.commit(fragment, [self.offer(fragment, slot, capture) for slot in SLOTS])

    def restored(self) -> TensorValues:
        values = TensorValues.allocate(self.layout, 0, self.sync)
        assert restore(values, self.history, self.store) == {}
        return values


def restore(
    values: TensorValues, history: History, store: Store
) -> dict[int, StoreCorrupt | StoreMissing]:
    """Read the head of every slice back; what is lost, by slice."""
    lost: dict[int, StoreCorrupt | StoreMissing] = {}
    for fragment, head in history.heads.items():
        try:
            values.restore(fragment, head, store)
        except (StoreCorrupt, StoreMissing) as trouble:
            lost[fragment] = trouble
    return lost


def committed(outcome: StoredVersion, base: int, participants: Sequence[Participant]) -> Committed:
    return a_commit(
        outcome.number,
        outcome.slice,
        digest=outcome.digest,
        object=outcome.object,
        base=base,
        participants=tuple(participants),
    )


def bits(values: TensorValues, fragment: int) -> tuple[bytes, bytes, bytes]:
    part = values.slices[fragment]
    base = values.bases()[fragment]
    return (
        part.master.tobytes(),
        part.momentum.tobytes(),
        bytes(base.data),
    )


def whole(base: arrays.Base) -> Array:
    """The values of a base as f32[n]."""
    return np.concatenate((base.exact, base.coded.astype(F32)))


def _slice_of(head: pb.Transfer) -> int:
    return head.offer.slice if head.HasField("offer") else head.seed.slice


def same(one: Array, other: Array) -> bool:
    """In type, shape and every bit but the sign of zeros."""
    return one.dtype == other.dtype and np.array_equal(one, other)
