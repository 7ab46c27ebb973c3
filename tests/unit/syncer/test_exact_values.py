"""Buffers and last versions are what the shard computed in f32 (rules 17, 18 and 22)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import AVERAGE, TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire
from atoll_syncer.model.effects import Stage, StoreHeld
from atoll_syncer.numbers.values import TensorValues
from unit.syncer.log_side import a_participant
from unit.syncer.values_side import LAYOUT, SLOTS, TENSORS, Bench, bits, same


def down(wire: Wire) -> Wire:
    """The wire itself, or int4 below what is for offers alone."""
    return wire if wire in WIRES_DOWN else Wire.INT4


def test_a_buffer_takes_the_average_without_the_outer_optimizer_rule_18(tmp_path: Path) -> None:
    """A step of Nesterov would carry a variance past the average, and below zero."""
    specs = [
        TensorSpec(name="running_var", shape=(40,), dtype="float32", merge=AVERAGE),
        TensorSpec(name="weight", shape=(40,), dtype="float32", merge="rda"),
    ]
    layout = build_layout(specs, fragments=1, shards=1)
    sync = Sync(fragments=1, wire_up=Wire.F32, wire_down=Wire.F32)
    bench = Bench(tmp_path, sync, layout)
    bench.seed()
    variance = bench.values.slices[0].master[:40]
    variance[:] = 1.0
    for capture in range(1, 6):
        head = pb.Transfer(offer=pb.Offer(slice=0, capture=capture))
        goal = np.float32(0.01)  # where both learners' statistics are by now
        arrived = bench.examined(head, bench.values.slices[0].master - goal, Wire.F32)
        for slot in SLOTS[:2]:
            bench.values.stage(Stage(slot, 1, 0, capture), arrived)
        parts = [replace(a_participant(slot, capture), base=capture - 1) for slot in SLOTS[:2]]
        bench.commit(0, parts)
        assert np.allclose(variance, 0.01)
    assert not bool(bench.values.slices[0].momentum[:40].any())


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8, Wire.INT4, Wire.INT2])
def test_buffers_are_what_the_shard_computed_in_f32_everywhere_whatever_the_wire_rule_18(
    wire: Wire, tmp_path: Path
) -> None:
    """A constant keeps its bits; a variance that changes is held with the bits of the master."""
    specs = [
        TensorSpec(name="rotary.frequencies", shape=(64,), dtype="float32", merge=AVERAGE),
        TensorSpec(name="running_var", shape=(64,), dtype="float32", merge=AVERAGE),
        TensorSpec(name="weight", shape=(64,), dtype="float32", merge="rda"),
    ]
    layout = build_layout(specs, fragments=1, shards=1)
    bench = Bench(tmp_path, Sync(fragments=1, wire_up=wire, wire_down=down(wire)), layout)
    bench.seed()
    master = bench.values.slices[0].master
    constant, variance = master[:64].copy(), master[64:128].copy()
    held = arrays.packed(bytes(bench.values.bases()[0].data), pb.BF16, layout.slices[0].form)
    for capture in range(1, 6):
        theta = np.concatenate([constant, np.abs(bench.random(0)[:64]), bench.random(0)[:64]])
        found = arrays.difference(held, theta)
        head = pb.Transfer(offer=pb.Offer(slice=0, capture=capture))
        arrived = bench.examined(head, found, wire)
        for slot in SLOTS[:2]:
            bench.values.stage(Stage(slot, 1, 0, capture), arrived)
        parts = [replace(a_participant(slot, capture), base=capture - 1) for slot in SLOTS[:2]]
        entry = bench.commit(0, parts)
        payload = bench.values.publish_payload(0, entry.number, entry.base)
        if payload.difference:
            held = arrays.moved(held, payload.data, payload.encoding)
        else:
            held = arrays.packed(bytes(payload.data), payload.encoding, held.form)
        assert same(held.exact, master[:128])
        assert np.allclose(master[64:128], theta[64:128], rtol=0, atol=1e-6)
    assert same(master[:64], constant)
    assert not same(master[64:128], variance)
    exported = bench.values.exported()[0]
    assert same(exported[:128], master[:128])
    assert same(exported[128:], bench.values.bases()[0].coded.astype(np.float32))
    assert same(bench.restored().bases()[0].exact, master[:128])


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("offers", [0, 2])
def test_the_last_version_of_a_slice_is_what_the_shard_computed_in_f32_rule_17(
    wire: Wire, offers: int, tmp_path: Path
) -> None:
    """Learners, the export and a shard that starts again have it in all its bits."""
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=wire, wire_down=down(wire)))
    bench.seed()
    bench.round(0, 1)
    parts = [bench.offer(0, slot, 2) for slot in SLOTS[:offers]]
    entry = bench.commit(0, parts, last=True)
    master = bench.values.slices[0].master
    payload = bench.values.publish_payload(0, entry.number, entry.base)
    assert (payload.encoding, payload.difference) == (pb.F32, False)
    held = arrays.packed(bytes(payload.data), payload.encoding, LAYOUT.slice(0, 0).form)
    assert held.digest == entry.digest
    assert bytes(payload.data) == master.tobytes()
    assert same(bench.values.exported()[0], master)
    assert bits(bench.restored(), 0) == bits(bench.values, 0)
    prolonged = bench.round(0, 3)  # the job may become longer after all
    if wire in (Wire.INT8, Wire.INT4, Wire.INT2):
        change = bench.values.publish_payload(0, prolonged.number, prolonged.base)
        assert change.difference
        after = arrays.moved(held, change.data, change.encoding, to=pb.BF16)
        assert after.digest == prolonged.digest
    assert bits(bench.restored(), 0) == bits(bench.values, 0)


@pytest.mark.parametrize("wire", list(Wire))
def test_a_last_version_that_is_taken_back_from_a_learner_keeps_all_its_bits_rule_22(
    wire: Wire, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, Sync(fragments=2, wire_up=wire, wire_down=down(wire)))
    bench.seed()
    entry = bench.commit(0, [bench.offer(0, slot, 2) for slot in SLOTS], last=True)
    master = bench.values.slices[0].master.copy()
    version = pb.Version(run="run", number=entry.number, epoch=1, digest=entry.digest)
    held = pb.Held(version=pb.SliceVersion(slice=0, version=version))
    data = bytearray(bench.values.bases()[0].data)
    head = pb.Transfer(held=held, encoding=pb.F32)
    again = TensorValues.allocate(LAYOUT, 0, bench.sync)
    again.keep(4, 0, again.examine(head, data))
    again.begin_held(StoreHeld(0, 4, entry.number + 1), "run", 2).compute()
    again.committed(0)
    assert again.bases()[0].digest == entry.digest
    assert same(again.exported()[0], master)
    assert again.publish_payload(0, entry.number + 1, None).encoding == pb.F32


def test_the_last_version_of_a_bf16_model_travels_as_all_others_do(tmp_path: Path) -> None:
    specs = [replace(spec, dtype="bfloat16") for spec in TENSORS if spec.merge != AVERAGE]
    bench = Bench(tmp_path, Sync(fragments=2, wire_down=Wire.INT8), build_layout(specs, 2, 1))
    bench.seed()
    entry = bench.commit(0, [bench.offer(0, slot, 1) for slot in SLOTS], last=True)
    assert bench.values.publish_payload(0, entry.number, entry.base).difference
    assert bench.values.publish_payload(0, entry.number, None).encoding == pb.BF16


def test_without_buffers_the_export_is_made_of_the_bases_themselves(tmp_path: Path) -> None:
    layout = build_layout([spec for spec in TENSORS if spec.merge != AVERAGE], 2, 1)
    bench = Bench(tmp_path, Sync(fragments=2, wire_down=Wire.BF16), layout)
    bench.seed()
    exported = bench.values.exported()
    for fragment, base in bench.values.bases().items():
        assert exported[fragment] is base.coded
