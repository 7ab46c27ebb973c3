"""A shard's values: commits, what a Publish carries, versions taken back, staged memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Merge as MergeKind
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import Array
from atoll_protos.transfer.codecs import Wire, encoding_of
from atoll_syncer.model.effects import Drop, MergeOffers, Stage, StoreHeld
from atoll_syncer.model.log import Participant
from atoll_syncer.numbers.commit import TransferError
from atoll_syncer.numbers.values import StoredVersion, TensorValues
from atoll_syncer.storage.files import FileStore
from unit.syncer.values_side import LAYOUT, SLOTS, Bench, bits, same, whole

torch.set_num_threads(1)


def published(values: TensorValues, fragment: int, number: int, base: int | None) -> Array:
    """What a learner holds after this Publish, given base `base`."""
    payload = values.publish_payload(fragment, number, base)
    assert not payload.difference
    form = values.slices[fragment].recipe.form
    return whole(arrays.packed(payload.data, payload.encoding, form))


def test_one_commit_is_merge_then_outer_step_then_rounding(tmp_path: Path) -> None:
    """The blockwise pass against the same arithmetic on whole tensors; buffers take the mean."""
    sync = Sync(fragments=2, wire_up=Wire.F32, merge=MergeKind.MEAN, outer_momentum=0.9)
    bench = Bench(tmp_path, sync)
    seeds = bench.seed()
    master = arrays.from_bytes(seeds[0].values.data, pb.F32)
    exact = LAYOUT.slice(0, 0).form.exact
    assert exact
    average = master[:exact].copy()
    parameter = torch.nn.Parameter(torch.from_numpy(master[exact:].copy()))
    peer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for capture in range(1, 6):
        entry = bench.round(0, capture)
        offers = [arrays.from_bytes(bench.recorded[0, slot, 1, capture], pb.F32) for slot in SLOTS]
        third = np.float32(1 / 3)
        mean = offers[0] * third + offers[1] * third + offers[2] * third
        parameter.grad = torch.from_numpy(mean[exact:])
        peer.step()
        average -= mean[:exact]
        part, base = bench.values.slices[0], bench.values.bases()[0]
        np.testing.assert_allclose(part.master[exact:], parameter.detach(), rtol=0, atol=2e-6)
        assert same(part.master[:exact], average)
        assert same(base.exact, average)
        assert same(base.coded, part.master[exact:].astype(arrays.BF16))
        assert entry.digest == codecs.digest(average.tobytes() + base.coded.tobytes())


@pytest.mark.parametrize("wire_down", [Wire.INT8, Wire.INT4])
def test_a_difference_and_the_full_value_give_the_same_bits(
    tmp_path: Path, wire_down: Wire
) -> None:
    """base(n+1) = bf16(base(n) + decoded difference) (rule 17)."""
    bench = Bench(tmp_path, Sync(fragments=2, wire_down=wire_down))
    bench.seed()
    form = LAYOUT.slice(0, 0).form
    held = arrays.packed(bytes(bench.values.bases()[0].data), pb.BF16, form)
    for capture in range(1, 5):
        entry = bench.round(0, capture)
        payload = bench.values.publish_payload(0, entry.number, entry.base)
        assert payload.difference
        assert payload.encoding == encoding_of(wire_down)
        held = arrays.moved(held, payload.data, payload.encoding)
        assert held.digest == entry.digest
        assert held.data == bench.values.bases()[0].data
        assert same(bench.values.slices[0].master[: form.exact], held.exact)
        for base in (None, entry.base - 1):
            values = published(bench.values, 0, entry.number, base)
            assert same(values, whole(bench.values.bases()[0]))


@pytest.mark.parametrize("wire_down", [Wire.BF16, Wire.INT8, Wire.INT4])
def test_what_rounding_left_over_stays_in_the_master(tmp_path: Path, wire_down: Wire) -> None:
    """Steps far below the base's resolution still add up (rule 16)."""
    sync = Sync(fragments=2, wire_down=wire_down, wire_up=Wire.F32, outer_momentum=0.0)
    bench = Bench(tmp_path, sync)
    bench.seed()
    count = LAYOUT.slice(0, 0).element_count
    before = bench.values.slices[0].master.copy()
    for capture in range(1, 41):
        head = pb.Transfer(offer=pb.Offer(slice=0, capture=capture))
        arrived = bench.examined(head, np.full(count, 2e-4, np.float32), Wire.F32)
        bench.values.stage(Stage("a-0", 1, 0, capture), arrived)
        part = replace(bench.offer(0, "b-0", 99), slot="a-0", capture=capture)
        bench.commit(0, [part])
    moved = before - bench.values.slices[0].master
    step = np.full(count, 0.7)
    step[: LAYOUT.slice(0, 0).form.exact] = 1.0  # the average itself
    assert np.allclose(moved, 40 * 2e-4 * step, atol=2e-5)
    off = np.abs(whole(bench.values.bases()[0]) - bench.values.slices[0].master)
    assert float(off.max()) < 0.03  # half a step of bf16 at 4, and of the block's scale
    assert float(off.mean()) < 0.003


def test_a_version_taken_back_from_a_learner_has_its_bits_and_no_momentum(tmp_path: Path) -> None:
    """Rule 22: the next number, zero momentum, digest checked."""
    bench = Bench(tmp_path / "old", Sync(fragments=2))
    bench.seed()
    bench.round(0, 3)
    entry = bench.round(0, 4)
    held = bytearray(bench.values.bases()[0].data)
    version = pb.Version(run="run", number=entry.number, epoch=1, digest=entry.digest)
    head = pb.Transfer(
        held=pb.Held(version=pb.SliceVersion(slice=0, version=version)), encoding=pb.BF16
    )
    store = FileStore(tmp_path / "new")
    store.open()
    values = TensorValues.allocate(LAYOUT, 0, bench.sync)
    values.keep(4, 0, values.examine(head, held))
    making = values.begin_held(StoreHeld(0, 4, entry.number + 1), "run", 2)
    making.compute()
    outcome = making.write(store)
    values.committed(0)
    assert (outcome.number, outcome.digest) == (entry.number + 1, entry.digest)
    assert values.bases()[0].data == bench.values.bases()[0].data
    assert same(values.slices[0].master, whole(bench.values.bases()[0]))
    assert not values.slices[0].momentum.any()
    head.held.version.version.digest = "0" * 64
    with pytest.raises(TransferError, match="digest"):
        values.examine(head, held)


def test_a_version_that_nothing_shows_to_be_lost_moves_no_further_than_steps_do_rule_47(
    tmp_path: Path,
) -> None:
    """The store is put back by three versions; an offer of 777 in place of each value is none."""
    bench = Bench(tmp_path / "now", Sync(fragments=2))
    bench.seed()
    bench.round(0, 1)
    older = bench.restored()
    for capture in (2, 3, 4):
        bench.round(0, capture)
    held = bench.values.bases()[0].data

    def examine(data: bytes, steps: int, values: TensorValues = older) -> None:
        version = pb.Version(run="run", number=4, digest=codecs.digest(data))
        name = pb.Held(version=pb.SliceVersion(slice=0, version=version))
        values.examine(pb.Transfer(held=name, encoding=pb.BF16), bytearray(data), steps)

    form = LAYOUT.slice(0, 0).form
    far = bytes(arrays.pack(np.full(form.element_count, 777.0, np.float32), pb.BF16, form))
    examine(bytes(held), 3)
    with pytest.raises(TransferError, match="times as far"):
        examine(far, 3)
    examine(far, 0)  # what the store has lost may be anything
    bench.sync = replace(bench.sync, norm_limit=0.0)
    examine(far, 3, bench.restored())
    bench = Bench(tmp_path / "seeded", Sync(fragments=2))
    bench.seed()
    examine(bytes(held), 3, bench.values)  # nothing is known of its steps
    with pytest.raises(TransferError, match="times as far"):
        examine(far, 3, bench.values)
    bench.values.slices[0].master[:] = 0
    examine(far, 3, bench.values)


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
    making = bench.values.begin_merge(MergeOffers(0, (offer,), 0.9), "run", 1)
    making.compute()
    early = bytes(bench.values.publish_payload(0, 1, None).data)
    assert bytes(bench.values.publish_payload(0, 0, None).data) == head
    making.write(bench.store)
    bench.values.committed(0)
    assert bytes(bench.values.publish_payload(0, 1, None).data) == early
    with pytest.raises(KeyError):
        bench.values.publish_payload(0, 0, None)


def test_staged_memory_is_counted_and_given_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2))
    bench.seed()
    assert bench.values.staged_bytes == 0
    offer = bench.offer(0, "a-0", 1)
    bench.offer(0, "a-1", 1)
    size = LAYOUT.slice(0, 0).form.byte_count(pb.BF16)
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


# ------------------------------------------------------------ values that are finite but absurd

ABSURD = 7e37  # the largest of so many normal values is still finite in f32


def merge_outcome(bench: Bench, participants: list[Participant]) -> StoredVersion:
    making = bench.values.begin_merge(MergeOffers(0, tuple(participants), 0.9), "run", 1)
    making.compute()
    return making.write(bench.store)


@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16, Wire.INT8])
@pytest.mark.parametrize("kind", list(MergeKind))
def test_an_offer_that_would_make_the_version_infinite_is_left_out_rule_12(
    kind: MergeKind, wire_down: Wire, tmp_path: Path
) -> None:
    sync = Sync(fragments=2, wire_up=Wire.F32, wire_down=wire_down, merge=kind)
    bench, healthy = Bench(tmp_path / "one", sync), Bench(tmp_path / "two", sync)
    bench.seed()
    healthy.seed()
    bench.round(0, 1)
    healthy.round(0, 1)
    offers = [bench.offer(0, slot, 1) for slot in SLOTS[:2]]
    same = [healthy.offer(0, slot, 1) for slot in SLOTS[:2]]
    outcome = merge_outcome(bench, [*offers, bench.offer(0, SLOTS[2], 997, ABSURD)])
    assert outcome.found.left_out.keys() == {SLOTS[2]}
    assert not merge_outcome(healthy, same).found.left_out
    bench.values.committed(0)
    healthy.values.committed(0)
    assert bits(bench.values, 0) == bits(healthy.values, 0)


def test_with_no_offer_left_the_version_has_the_old_values_rule_12(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=Wire.F32))
    bench.seed()
    bench.round(0, 1)
    before = bits(bench.values, 0)
    assert bench.commit(0, []).number == 2  # a last round without offers
    assert bits(bench.values, 0) == bits(bench.restored(), 0) == before
    outcome = merge_outcome(bench, [bench.offer(0, SLOTS[0], 1, ABSURD)])
    assert outcome.found.left_out.keys() == {SLOTS[0]}
    bench.values.committed(0)
    assert bits(bench.values, 0) == before


@pytest.mark.parametrize("size", [1e-39, 1e-44, 1e-31])
def test_a_tiny_scalar_is_merged_without_an_error_rule_12(size: float, tmp_path: Path) -> None:
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=Wire.F32))
    bench.seed()
    fragment = next(
        owned.fragment
        for owned in LAYOUT.shard_slices(0)
        if any(LAYOUT.tensors[piece.tensor].name == "scale" for piece in owned.pieces)
    )
    participants = [bench.offer(fragment, slot, 1, size) for slot in SLOTS]
    bench.commit(fragment, participants)
    for values in (bench.values.slices[fragment].master, whole(bench.values.bases()[fragment])):
        assert np.isfinite(values).all()


def test_a_model_that_can_never_fit_is_refused_before_any_memory_is_taken() -> None:
    """Also where the kernel promises more memory than there is, as on every Kubernetes node."""
    huge = TensorSpec(name="a", shape=(1 << 41,), dtype="float32", merge="mean")
    with pytest.raises(MemoryError, match="this process can have"):
        TensorValues.allocate(build_layout([huge], 1, 1), 0, Sync(fragments=1, period=4, overlap=1))
