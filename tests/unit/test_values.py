import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import tensors
from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.run import Merge as MergeKind
from atoll_protos.run import Sync, Wire
from atoll_protos.wire import ENCODINGS
from atoll_syncer.arrivals import Arrived, TransferError
from atoll_syncer.effects import Drop, Merge, Stage, StoreHeld, StoreSeed
from atoll_syncer.log import (
    Committed,
    History,
    Participant,
    Reign,
    Seeded,
    to_document,
)
from atoll_syncer.replay import Replay, ReplayError, from_tape
from atoll_syncer.slices import Collector
from atoll_syncer.store import FileStore, StoreCorrupt, StoreFull, StoreMissing
from atoll_syncer.tape import Tape
from atoll_syncer.values import Outcome, Values

torch.set_num_threads(1)

WIRES = [Wire.F32, Wire.BF16, Wire.INT8, Wire.INT4]
TENSORS = [
    TensorSpec(name="embedding", shape=(301, 17), dtype="float32", merge="mean"),
    TensorSpec(name="first.weight", shape=(93, 71), dtype="float32", merge="rda"),
    TensorSpec(name="first.bias", shape=(93,), dtype="float32", merge="mean"),
    TensorSpec(name="second.weight", shape=(37, 93), dtype="float32", merge="rda"),
    TensorSpec(name="scale", shape=(), dtype="float32", merge="rda"),
]
LAYOUT = build_layout(TENSORS, fragments=2, shards=1)
SLOTS = ("a-0", "a-1", "b-0")


class Bench:
    """Values with a store and a log's worth of history, driven by hand."""

    def __init__(self, folder: Path, sync: Sync, layout: Layout = LAYOUT, seed: int = 1) -> None:
        self.store = FileStore(folder)
        self.store.open()
        self.sync = sync
        self.layout = layout
        self.values = Values.allocate(layout, 0, sync)
        self.history = History()
        self.history.apply(Reign(epoch=1, pod="p", instance="p1"))
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
        head.encoding = ENCODINGS[wire]
        return self.values.examine(head, tensors.encode(values, head.encoding))

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

    def commit(self, fragment: int, participants: Sequence[Participant]) -> Committed:
        making = self.values.begin_merge(Merge(fragment, tuple(participants)), "run", 1)
        making.compute()
        outcome = making.write(self.store)
        entry = committed(outcome, self.history.heads[fragment].number, participants)
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
        bytes(tensors.byte_view(base)),
    )


def published(values: Values, fragment: int, number: int, base: int | None) -> torch.Tensor:
    """What a learner holds after this Publish, given base `base`."""
    payload = values.publish_payload(fragment, number, base)
    count = values.slices[fragment].recipe.element_count
    out = torch.empty(count)
    assert not payload.difference
    return tensors.decode(bytearray(payload.data), payload.encoding, out)


def test_one_commit_is_merge_then_outer_step_then_rounding(tmp_path: Path) -> None:
    """The blockwise pass against the same arithmetic on whole tensors."""
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=Wire.F32, merge=MergeKind.MEAN))
    seeds = bench.seed()
    master = torch.empty(LAYOUT.slice(0, 0).element_count)
    tensors.decode(seeds[0].values.data, pb.F32, master)
    parameter = torch.nn.Parameter(master.clone())
    peer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for capture in range(1, 6):
        entry = bench.round(0, capture)
        offers = [
            torch.frombuffer(bytearray(bench.recorded[0, slot, 1, capture]), dtype=torch.float32)
            for slot in SLOTS
        ]
        mean = offers[0] * (1 / 3)
        for offer in offers[1:]:
            mean.add_(offer, alpha=1 / 3)
        parameter.grad = mean
        peer.step()
        part = bench.values.slices[0]
        assert torch.equal(part.master, parameter.detach())
        assert torch.equal(bench.values.bases()[0], parameter.detach().bfloat16())
        assert entry.digest == tensors.digest(parameter.detach().bfloat16())


@pytest.mark.parametrize("wire_up", WIRES)
@pytest.mark.parametrize("wire_down", WIRES)
def test_a_restored_shard_is_the_same_to_the_bit(
    tmp_path: Path, wire_up: Wire, wire_down: Wire
) -> None:
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=wire_up, wire_down=wire_down))
    bench.seed()
    for capture in range(1, 4):
        bench.round(capture % 2, capture)
    restored = bench.restored()
    for fragment in range(2):
        assert bits(restored, fragment) == bits(bench.values, fragment)
        head = bench.history.heads[fragment]
        digest = hashlib.sha256(bits(restored, fragment)[2]).hexdigest()
        assert digest == head.digest


@pytest.mark.parametrize("wire_down", [Wire.INT8, Wire.INT4])
def test_a_difference_and_the_full_value_give_the_same_bits(
    tmp_path: Path, wire_down: Wire
) -> None:
    """base(n+1) = bf16(base(n) + decoded difference) (rule 17)."""
    bench = Bench(tmp_path, Sync(fragments=2, wire_down=wire_down))
    bench.seed()
    held = bench.values.bases()[0].clone()
    for capture in range(1, 5):
        entry = bench.round(0, capture)
        payload = bench.values.publish_payload(0, entry.number, entry.base)
        assert payload.difference
        assert payload.encoding == ENCODINGS[wire_down]
        difference = torch.empty(held.numel())
        tensors.decode(bytearray(payload.data), payload.encoding, difference)
        held = (held.float() + difference).bfloat16()
        assert torch.equal(held, bench.values.bases()[0])
        assert torch.equal(held.float(), published(bench.values, 0, entry.number, None))
        assert torch.equal(held.float(), published(bench.values, 0, entry.number, entry.base - 1))


@pytest.mark.parametrize("wire_down", [Wire.BF16, Wire.INT8, Wire.INT4])
def test_what_rounding_left_over_stays_in_the_master(tmp_path: Path, wire_down: Wire) -> None:
    """Steps far below the base's resolution still add up (rule 16)."""
    sync = Sync(fragments=2, wire_down=wire_down, wire_up=Wire.F32, outer_momentum=0.0)
    bench = Bench(tmp_path, sync)
    bench.seed()
    count = LAYOUT.slice(0, 0).element_count
    before = bench.values.slices[0].master.clone()
    for capture in range(1, 41):
        head = pb.Transfer(offer=pb.Offer(slice=0, capture=capture))
        arrived = bench.examined(head, torch.full((count,), 2e-4), Wire.F32)
        bench.values.stage(Stage("a-0", 1, 0, capture), arrived)
        part = replace(bench.offer(0, "b-0", 99), slot="a-0", capture=capture)
        bench.commit(0, [part])
    moved = before - bench.values.slices[0].master
    assert torch.allclose(moved, torch.full((count,), 40 * 0.7 * 2e-4), atol=2e-5)
    off = (bench.values.bases()[0].float() - bench.values.slices[0].master).abs()
    assert float(off.max()) < 0.03  # half a step of bf16 at 4, and of the block's scale
    assert float(off.mean()) < 0.003


@pytest.mark.parametrize("wire_up", WIRES)
@pytest.mark.parametrize("wire_down", [Wire.BF16, Wire.INT4])
@pytest.mark.parametrize("merge", list(MergeKind))
def test_a_tape_and_recorded_offers_give_every_commit_again(
    tmp_path: Path, wire_up: Wire, wire_down: Wire, merge: MergeKind
) -> None:
    """Rule 29."""
    sync = Sync(fragments=2, wire_up=wire_up, wire_down=wire_down, merge=merge)
    bench = Bench(tmp_path, sync)
    seeds = bench.seed()
    for capture in range(1, 6):
        bench.round(capture % 2, capture)
    replay = Replay(LAYOUT, 0, sync)

    def recorded(fragment: int, p: Participant) -> Arrived:
        head = pb.Transfer(offer=pb.Offer(slice=fragment), encoding=ENCODINGS[wire_up])
        data = bench.recorded[fragment, p.slot, p.incarnation, p.capture]
        return replay.values.examine(head, bytearray(data))

    assert replay.seed(seeds) == [
        tensors.digest(torch.empty_like(seed_base).copy_(seed_base))
        for seed_base in (base_of(seed) for seed in seeds)
    ]
    tape = Tape(tmp_path / "syncer" / "0.tape.jsonl", lambda: 0.0)
    tape.open()
    for entry in bench.entries:
        record = {**to_document(entry), "event": "commit", "version": entry.number}
        tape.write("run", {**record, "grace_seconds": 0.1})
    tape.close()
    for line in tape.path.read_text().splitlines():
        replay.commit(from_tape(json.loads(line)), recorded)
    assert bits(replay.values, 0) == bits(bench.values, 0)
    with pytest.raises(ReplayError, match="version"):
        replay.commit(replace(bench.entries[-1], digest="0"), recorded)


def base_of(seed: Arrived) -> torch.Tensor:
    count = seed.values.element_count
    return tensors.decode(seed.values.data, seed.values.encoding, torch.empty(count)).bfloat16()


def test_a_version_taken_back_from_a_learner_has_its_bits_and_no_momentum(tmp_path: Path) -> None:
    """Rule 22: the next number, zero momentum, digest checked."""
    bench = Bench(tmp_path / "old", Sync(fragments=2))
    bench.seed()
    bench.round(0, 3)
    entry = bench.round(0, 4)
    held = bytearray(bytes(tensors.byte_view(bench.values.bases()[0])))
    version = pb.Version(run="run", number=entry.number, epoch=1, digest=entry.digest)
    head = pb.Transfer(
        held=pb.Held(version=pb.SliceVersion(slice=0, version=version)), encoding=pb.BF16
    )
    store = FileStore(tmp_path / "new")
    store.open()
    values = Values.allocate(LAYOUT, 0, bench.sync)
    values.keep(4, 0, values.examine(head, held))
    making = values.begin_held(StoreHeld(0, 4, entry.number + 1), "run", 2)
    making.compute()
    outcome = making.write(store)
    values.committed(0)
    assert (outcome.number, outcome.digest) == (entry.number + 1, entry.digest)
    assert torch.equal(values.bases()[0], bench.values.bases()[0])
    assert torch.equal(values.slices[0].master, bench.values.bases()[0].float())
    assert not values.slices[0].momentum.any()
    head.held.version.version.digest = "0" * 64
    with pytest.raises(TransferError, match="digest"):
        values.examine(head, held)


def test_a_last_round_without_offers_moves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    bench.round(0, 1)
    before = bits(bench.values, 0)
    entry = bench.commit(0, [])
    assert bits(bench.values, 0) == before
    assert entry.number == 2
    assert bits(bench.restored(), 0) == before


def test_a_publish_under_way_keeps_its_bytes_through_later_commits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    entry = bench.round(0, 1)
    payload = bench.values.publish_payload(0, entry.number, None)
    copy = bytes(payload.data)
    for capture in range(2, 6):
        bench.round(0, capture)
    assert bytes(payload.data) == copy
    with pytest.raises(KeyError):
        bench.values.publish_payload(0, entry.number, None)


def test_the_coming_version_can_leave_early_while_the_head_is_still_served(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    head = bytes(bench.values.publish_payload(0, 0, None).data)
    offer = bench.offer(0, "a-0", 1)
    making = bench.values.begin_merge(Merge(0, (offer,)), "run", 1)
    making.compute()
    early = bytes(bench.values.publish_payload(0, 1, None).data)
    assert bytes(bench.values.publish_payload(0, 0, None).data) == head
    making.write(bench.store)
    bench.values.committed(0)
    assert bytes(bench.values.publish_payload(0, 1, None).data) == early
    with pytest.raises(KeyError):
        bench.values.publish_payload(0, 0, None)


def test_a_full_disk_delays_a_commit_and_changes_nothing_else(small_disk: Path) -> None:
    """Rule 23: trailers wait, the head is served on, staged work is not lost."""
    bench = Bench(small_disk, Sync(fragments=2, wire_up=Wire.BF16))
    bench.seed()
    head = bytes(bench.values.publish_payload(0, 0, None).data)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)) == 1 << 20:
            pass
    making = bench.values.begin_merge(Merge(0, (bench.offer(0, "a-0", 1),)), "run", 1)
    making.compute()
    for _ in range(3):
        with pytest.raises(StoreFull, match="make room there; training goes on, commits wait"):
            making.write(bench.store)
        assert bytes(bench.values.publish_payload(0, 0, None).data) == head
    filler.unlink()
    outcome = making.write(bench.store)
    bench.history.apply(committed(outcome, 0, []))
    bench.values.committed(0)
    assert bits(bench.restored(), 0) == bits(bench.values, 0)


def test_staged_memory_is_counted_and_given_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    assert bench.values.staged_bytes == 0
    offer = bench.offer(0, "a-0", 1)
    bench.offer(0, "a-1", 1)
    size = 2 * LAYOUT.slice(0, 0).element_count
    assert bench.values.staged_bytes == 2 * size
    bench.values.drop(Drop("a-1", 1, 0, 1))
    assert bench.values.staged_bytes == size
    bench.commit(0, [offer])
    assert bench.values.staged_bytes == 0
    bench.values.drop(Drop("a-0", 1, 0, 1))
    head = pb.Transfer(seed=pb.Seed(slice=0))
    bench.values.keep(7, 0, bench.examined(head, bench.random(0), Wire.F32))
    bench.values.forget(7)
    assert bench.values.staged_bytes == 0


def test_a_damaged_or_missing_object_costs_its_slice_and_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    name = bench.history.heads[0].object
    path = bench.store.root / name
    path.chmod(0o644)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    values = Values.allocate(LAYOUT, 0, bench.sync)
    lost = values.restore(bench.history, bench.store)
    assert {f: type(trouble) for f, trouble in lost.items()} == {0: StoreCorrupt}
    path.unlink()
    lost = values.restore(bench.history, bench.store)
    assert {f: type(trouble) for f, trouble in lost.items()} == {0: StoreMissing}
    assert bits(values, 1) == bits(bench.values, 1)


def test_an_object_of_another_layout_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    heads = bench.history.heads
    heads[0], heads[1] = heads[1], heads[0]
    lost = Values.allocate(LAYOUT, 0, bench.sync).restore(bench.history, bench.store)
    assert all("another layout" in str(trouble) for trouble in lost.values())
    assert sorted(lost) == [0, 1]


def test_objects_of_the_newest_two_versions_stay(tmp_path: Path) -> None:
    """Rule 19."""
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    collector = Collector(bench.store)
    collector.sweep(bench.history.live_objects(), epoch=1)
    for capture in range(1, 5):
        bench.round(0, capture)
        collector.advance(bench.history.live_objects())
        kept = set(bench.store.names("objects/"))
        assert kept == bench.history.live_objects()
    assert len(kept) == 3
    bench.restored()


def test_a_sweep_spares_what_may_yet_get_an_entry(tmp_path: Path) -> None:
    """A deposed process that wakes up late must not remove its successor's objects."""
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    live = bench.history.live_objects()
    names = {}
    for epoch in (1, 2, 3):
        values = bench.restored()
        bench.values = values
        offer = bench.offer(0, "a-0", 1)
        making = values.begin_merge(Merge(0, (offer,)), "run", epoch)
        making.compute()
        names[epoch] = making.write(bench.store).object
    foreign = bench.store.put([b"not ours"])
    assert Collector(bench.store).sweep(live, epoch=2) == 1
    assert set(bench.store.names("objects/")) == live | {names[2], names[3], foreign}


def test_equal_values_of_two_versions_are_two_objects(tmp_path: Path) -> None:
    """Else collecting the older would take the newer."""
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    first = bench.commit(0, [])
    second = bench.commit(0, [])
    assert first.digest == second.digest
    assert first.object != second.object
