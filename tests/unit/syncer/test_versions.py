"""A version's object: read back to the bit, refused when damaged, kept as long as it counts."""

import hashlib
from pathlib import Path

import pytest

from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire
from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.storage.files import StoreCorrupt, StoreFull, StoreMissing
from atoll_syncer.storage.versions import Collector
from unit.syncer.values_side import LAYOUT, WIRES, Bench, bits, committed, restore


@pytest.mark.parametrize("wire_up", WIRES)
@pytest.mark.parametrize("wire_down", WIRES_DOWN)
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


def test_a_damaged_or_missing_object_costs_its_slice_and_no_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    name = bench.history.heads[0].object
    path = bench.store.root / name
    path.chmod(0o644)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    values = TensorValues.allocate(LAYOUT, 0, bench.sync)
    lost = restore(values, bench.history, bench.store)
    assert {f: type(trouble) for f, trouble in lost.items()} == {0: StoreCorrupt}
    path.unlink()
    lost = restore(values, bench.history, bench.store)
    assert {f: type(trouble) for f, trouble in lost.items()} == {0: StoreMissing}
    assert bits(values, 1) == bits(bench.values, 1)
    heads = bench.history.heads
    heads[0], heads[1] = heads[1], heads[1]  # an object of another layout
    lost = restore(TensorValues.allocate(LAYOUT, 0, bench.sync), bench.history, bench.store)
    assert ["another layout" in str(trouble) for trouble in lost.values()] == [True]


def test_objects_of_the_newest_two_versions_stay(tmp_path: Path) -> None:
    """Rule 19."""
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    collector = Collector(bench.store)
    collector.note(bench.history.live_objects())
    collector.sweep(bench.history.live_objects(), epoch=1)
    for capture in range(1, 5):
        bench.round(0, capture)
        collector.note(bench.history.live_objects())
        collector.remove()
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
        making = values.begin_merge(MergeOffers(0, (offer,), 0.9), "run", epoch)
        making.compute()
        names[epoch] = making.write(bench.store).object
    foreign = "objects/not-ours"
    assert bench.store.create(foreign, b"")
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


def test_a_full_disk_delays_a_commit_and_changes_nothing_else(small_disk: Path) -> None:
    """Rule 23: trailers wait, the head is served on, staged work is not lost."""
    bench = Bench(small_disk, Sync(fragments=2, wire_up=Wire.BF16))
    bench.seed()
    head = bytes(bench.values.publish_payload(0, 0, None).data)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)) == 1 << 20:
            pass
    making = bench.values.begin_merge(MergeOffers(0, (bench.offer(0, "a-0", 1),), 0.9), "run", 1)
    making.compute()
    for _ in range(3):
        with pytest.raises(StoreFull, match="make room there; training continues, commits wait"):
            making.write(bench.store)
        assert bytes(bench.values.publish_payload(0, 0, None).data) == head
    filler.unlink()
    outcome = making.write(bench.store)
    bench.history.apply(committed(outcome, 0, []))
    bench.values.committed(0)
    assert bits(bench.restored(), 0) == bits(bench.values, 0)
