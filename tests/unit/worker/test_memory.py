from dataclasses import replace

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import Wire
from atoll_worker.link import shared_memory
from atoll_worker.link.shared_memory import ALIGN_BYTES
from atoll_worker.model.parameters import from_bytes
from unit.worker.fixtures import both_ends

LAYOUT = build_layout(
    [TensorSpec(name=f"t{i}", shape=(i + 1, 7), dtype="float32", merge="rda") for i in range(6)],
    fragments=2,
    shards=2,
)
SYNC = Sync(wire_down=Wire.BF16)
PLAN = shared_memory.memory_plan(LAYOUT, SYNC)


def test_both_ends_see_the_same_regions_and_no_two_regions_overlap() -> None:
    ours, theirs = both_ends(PLAN)
    for number, key in enumerate(PLAN.slices):
        from_bytes(ours.capture(*key), torch.float32).fill_(number + 1)
        from_bytes(ours.adopt(*key), torch.bfloat16).fill_(-number - 1)
    for number, (key, each) in enumerate(zip(PLAN.slices, LAYOUT.slices, strict=True)):
        captured = arrays.from_bytes(theirs.capture(*key), pb.F32)
        assert captured.tolist() == [number + 1] * each.element_count
        adopted = arrays.from_bytes(theirs.adopt(*key), pb.BF16)
        assert adopted.tolist() == [-number - 1] * each.element_count
    for count in (1, 2):  # counters belong to their slice
        ours.turn(1, 0)
        assert [theirs.counter(*key) for key in PLAN.slices] == [0, 0, count, 0]


def test_an_adopt_region_has_room_for_a_last_version_in_f32_and_says_what_is_in_it() -> None:
    ours, theirs = both_ends(PLAN)
    for number, (key, each) in enumerate(zip(PLAN.slices, LAYOUT.slices, strict=True)):
        assert theirs.adopt_encoding(*key) == pb.BF16
        for encoding in (pb.F32, pb.BF16, pb.F32):
            data = memoryview(bytes([number + 1]) * each.form.byte_count(encoding))
            ours.place(*key, encoding, data)
            assert theirs.adopt_encoding(*key) == encoding
            assert theirs.adopt(*key) == data
    for number, key in enumerate(PLAN.slices):
        assert set(theirs.adopt(*key)) == {number + 1}


def test_regions_begin_on_pages_and_there_is_none_that_nothing_needs() -> None:
    plan = shared_memory.memory_plan(LAYOUT, Sync(wire_down=Wire.F32))
    assert all(each % ALIGN_BYTES == 0 for each in (*plan.capture_offsets, *plan.adopt_offsets))
    assert plan.byte_count == plan.adopt_offsets[-1] + ALIGN_BYTES
    narrow = build_layout([replace(spec, dtype="bfloat16") for spec in LAYOUT.tensors], 2, 2)
    for layout, final in ((LAYOUT, pb.F32), (narrow, pb.BF16)):
        plan = shared_memory.memory_plan(layout, SYNC, observer=True)
        assert plan.final_encodings == (final,) * 4
        assert (plan.capture_offsets, len(plan.adopt_offsets)) == ((), 4)  # as of an observer
