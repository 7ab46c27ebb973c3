import os
from dataclasses import replace

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.layout import TensorSpec, build_layout
from atoll_protos.parts import Share
from atoll_protos.tensors import from_bytes
from atoll_worker.link import memory
from atoll_worker.link.memory import ALIGN_BYTES, Memory, Plan

LAYOUT = build_layout(
    [TensorSpec(name=f"t{i}", shape=(i + 1, 7), dtype="float32", merge="rda") for i in range(6)],
    fragments=2,
    shards=2,
)


def both_ends(plan: Plan) -> tuple[Memory, Memory]:
    descriptor = memory.create()
    memory.resize(descriptor, plan)
    try:
        return memory.attach(plan, descriptor), memory.attach(plan, descriptor)
    finally:
        os.close(descriptor)


def test_both_ends_see_the_same_regions_and_no_two_regions_overlap() -> None:
    plan = memory.plan(LAYOUT, adopt_encoding=pb.BF16, captures=True)
    ours, theirs = both_ends(plan)
    for number, key in enumerate(plan.slices):
        from_bytes(ours.capture(*key), torch.float32).fill_(number + 1)
        from_bytes(ours.adopt(*key), torch.bfloat16).fill_(-number - 1)
    for number, (key, each) in enumerate(zip(plan.slices, LAYOUT.slices, strict=True)):
        captured = arrays.from_bytes(theirs.capture(*key), pb.F32)
        assert captured.tolist() == [number + 1] * each.element_count
        adopted = arrays.from_bytes(theirs.adopt(*key), pb.BF16)
        assert adopted.tolist() == [-number - 1] * each.element_count
        assert theirs.counter(*key) == 0


def test_an_adopt_region_has_room_for_a_last_version_in_f32_and_says_what_is_in_it() -> None:
    ours, theirs = both_ends(memory.plan(LAYOUT, adopt_encoding=pb.BF16, captures=True))
    for number, (key, each) in enumerate(zip(ours.plan.slices, LAYOUT.slices, strict=True)):
        assert theirs.adopt_encoding(*key) == pb.BF16
        for encoding in (pb.F32, pb.BF16, pb.F32):
            data = memoryview(bytes([number + 1]) * each.form.byte_count(encoding))
            ours.place(*key, encoding, data)
            assert theirs.adopt_encoding(*key) == encoding
            assert theirs.adopt(*key) == data
    for number, key in enumerate(ours.plan.slices):
        assert set(theirs.adopt(*key)) == {number + 1}


def test_regions_of_a_bf16_model_have_no_room_that_nothing_needs() -> None:
    narrow = build_layout([replace(spec, dtype="bfloat16") for spec in LAYOUT.tensors], 2, 2)
    wide = memory.plan(LAYOUT, adopt_encoding=pb.BF16, captures=False)
    assert wide.final_encodings == (pb.F32,) * 4
    assert (
        memory.plan(narrow, adopt_encoding=pb.BF16, captures=False).final_encodings
        == (pb.BF16,) * 4
    )


def test_regions_begin_on_pages() -> None:
    plan = memory.plan(LAYOUT, adopt_encoding=pb.F32, captures=True)
    assert all(each % ALIGN_BYTES == 0 for each in (*plan.capture_offsets, *plan.adopt_offsets))
    assert plan.byte_count == plan.adopt_offsets[-1] + ALIGN_BYTES


def test_counters_belong_to_their_slice() -> None:
    plan = memory.plan(LAYOUT, adopt_encoding=pb.F32, captures=True)
    ours, theirs = both_ends(plan)
    ours.turn(1, 0)
    assert [theirs.counter(*key) for key in plan.slices] == [0, 0, 1, 0]
    ours.turn(1, 0)
    assert theirs.counter(1, 0) == 2


def test_an_observer_has_no_capture_regions() -> None:
    plan = memory.plan(LAYOUT, adopt_encoding=pb.F32, captures=False)
    assert plan.capture_offsets == ()
    assert len(plan.adopt_offsets) == len(LAYOUT.slices)


def test_the_memory_of_a_share_has_the_size_of_what_is_held_also_of_nothing() -> None:
    whole = memory.plan(LAYOUT, adopt_encoding=pb.BF16, captures=True)
    shares = [Share(lane, lane + 1, 64) for lane in range(64)]
    plans = [memory.plan(LAYOUT, adopt_encoding=pb.BF16, captures=True, share=s) for s in shares]
    for index, form in enumerate(whole.forms):
        held = [plan.forms[index] for plan in plans]
        assert sum(each.element_count for each in held) == form.element_count
        assert min(each.element_count for each in held) == 0
    for plan in plans:
        ours, theirs = both_ends(plan)
        for number, key in enumerate(plan.slices):
            form = ours.form(*key)
            assert len(ours.capture(*key)) == 4 * form.element_count
            data = memoryview(bytes([number + 1]) * form.byte_count(pb.BF16))
            ours.place(*key, pb.BF16, data)
            assert theirs.adopt(*key) == data
            arrays.packed(theirs.adopt(*key), pb.BF16, form)  # also of nothing
