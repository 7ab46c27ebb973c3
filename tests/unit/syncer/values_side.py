"""A shard's values with a store and a log's worth of history, driven by hand."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays, tensors
from atoll_protos.codecs import Packed, Wire, encoding_of
from atoll_protos.layout import AVERAGE, Layout, TensorSpec, build_layout
from atoll_protos.run import Sync
from atoll_syncer.model.effects import Merge, Stage, StoreSeed
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Participant, Seeded, TermBegun
from atoll_syncer.model.momentum import momentum
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.values import Outcome, Values
from atoll_syncer.storage.store import FileStore

WIRES = [Wire.F32, Wire.BF16, Wire.INT8, Wire.INT4]
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
        self.values = Values.allocate(layout, 0, sync)
        self.history = History()
        self.history.apply(TermBegun(epoch=1, pod="p", instance="p1"))
        self.generator = torch.Generator().manual_seed(seed)
        self.entries: list[Committed] = []
        self.recorded: dict[tuple[int, str, int, int], bytes] = {}

    def random(self, fragment: int, scale: float = 1.0) -> torch.Tensor:
        count = self.layout.slice(0, fragment).element_count
        return torch.randn(count, generator=self.generator) * scale

    def seed(self) -> list[Arrived]:
        arrived = [
            self.examined(pb.Transfer(seed=pb.Seed(slice=f)), self.random(f), Wire.F32)
            for f in range(self.layout.fragments)
        ]
        for fragment, seed in enumerate(arrived):
            self.values.keep(9, fragment, seed)
        outcomes: list[Outcome] = []
        for making in self.values.begin_seed(StoreSeed(9), "run", 1):
            making.compute()
            outcomes.append(making.write(self.store))
            self.values.committed(making.origin.slice)
        self.history.apply(
            Seeded(
                tensors=(),
                layout_digest=self.layout.digest,
                epoch=1,
                digests=tuple(outcome.digest for outcome in outcomes),
                objects=tuple(outcome.object for outcome in outcomes),
            )
        )
        return arrived

    def examined(self, head: pb.Transfer, values: torch.Tensor, wire: Wire) -> Arrived:
        head.encoding = encoding_of(wire)
        form = self.layout.slice(0, _slice_of(head)).form
        data = arrays.pack(values.numpy(), head.encoding, form)
        return self.values.examine(head, bytearray(data))

    def offer(self, fragment: int, slot: str, capture: int, scale: float = 0.01) -> Participant:
        head = pb.Transfer(offer=pb.Offer(slice=fragment, capture=capture))
        arrived = self.examined(head, self.random(fragment, scale), self.sync.wire_up)
        self.values.stage(Stage(slot, 1, fragment, capture), arrived)
        self.recorded[fragment, slot, 1, capture] = bytes(arrived.values.data)
        return Participant(
            slot=slot,
            incarnation=1,
            capture=capture,
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
        merge = Merge(fragment, tuple(participants), mu, last=last)
        making = self.values.begin_merge(merge, "run", 1)
        making.compute()
        outcome = making.write(self.store)
        entry = committed(outcome, self.history.heads[fragment].number, participants)
        merges = self.history.heads[fragment].merges + bool(participants)
        entry = dataclasses.replace(entry, last=last, momentum=mu, merges=merges)
        self.history.apply(entry)
        self.entries.append(entry)
        self.values.committed(fragment)
        return entry

    def round(self, fragment: int, capture: int) -> Committed:
        return self.commit(fragment, [self.offer(fragment, slot, capture) for slot in SLOTS])

    def restored(self) -> Values:
        values = Values.allocate(self.layout, 0, self.sync)
        assert values.restore(self.history, self.store) == {}
        return values


def committed(outcome: Outcome, base: int, participants: Sequence[Participant]) -> Committed:
    return Committed(
        slice=outcome.slice,
        number=outcome.number,
        epoch=1,
        digest=outcome.digest,
        object=outcome.object,
        base=base,
        tick=1,
        due=1,
        reason="test",
        last=False,
        recovered=False,
        participants=tuple(participants),
    )


def bits(values: Values, fragment: int) -> tuple[bytes, bytes, bytes]:
    part = values.slices[fragment]
    base = values.bases()[fragment]
    return (
        bytes(tensors.byte_view(part.master)),
        bytes(tensors.byte_view(part.momentum)),
        bytes(base.data),
    )


def whole(base: Packed[torch.Tensor]) -> torch.Tensor:
    """The values of a base as f32[n]."""
    return torch.cat((base.exact, base.coded.float()))


def _slice_of(head: pb.Transfer) -> int:
    return head.offer.slice if head.HasField("offer") else head.seed.slice


def a_participant(slot: str, capture: int) -> Participant:
    return Participant(
        slot=slot,
        incarnation=1,
        capture=capture,
        base=0,
        steps=1,
        tokens=1,
        cursor=1,
        weight=1.0,
    )


def exact_of(base: arrays.Base) -> torch.Tensor:
    """The averaged buffers that a learner holds."""
    return torch.from_numpy(base.exact.copy())
