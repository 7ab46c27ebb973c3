"""The transport's numbers: what is sent is the base less theta, and the base stays what it is."""

import os

import ml_dtypes
import numpy as np
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.codecs import Wire, base_encoding
from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.run import Sync
from atoll_worker.link import memory
from atoll_worker.link.socket import memory_plan
from atoll_worker.transport.numbers import ArrayNumbers

COUNT = 64


def layout() -> Layout:
    spec = TensorSpec(name="t", shape=(COUNT,), dtype="float32", merge="rda")
    return build_layout([spec], 1, 1)


def numbers(wire_down: Wire) -> tuple[ArrayNumbers, memory.Memory]:
    sync = Sync(fragments=1, period=4, wire_up=Wire.F32, wire_down=wire_down)
    plan = memory_plan(layout(), sync, observer=False)
    descriptor = memory.create()
    memory.resize(descriptor, plan)
    shared = memory.attach(plan, descriptor)
    os.close(descriptor)
    return ArrayNumbers(shared, sync), shared


@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_an_offer_leaves_the_base_as_it_is_so_that_it_can_be_offered_again(wire_down: Wire) -> None:
    made, shared = numbers(wire_down)
    base = np.arange(COUNT).astype(arrays.FLOATS[base_encoding(wire_down)])
    before = base.tobytes()
    shared.capture(0, 0)[:] = np.full(COUNT, 2.0, np.float32).tobytes()
    first = made.difference(0, 0, base)
    assert base.tobytes() == before
    assert first.tolist() == [number - 2.0 for number in range(COUNT)]
    assert made.difference(0, 0, base).tobytes() == first.tobytes()


def test_a_difference_keeps_its_values_when_the_region_is_captured_again() -> None:
    made, shared = numbers(Wire.F32)
    difference = made.difference(0, 0, np.zeros(COUNT, np.float32))
    shared.capture(0, 0)[:] = np.ones(COUNT, np.float32).tobytes()
    assert not difference.any()


def test_a_difference_is_added_to_the_base_that_is_held() -> None:
    made, _ = numbers(Wire.INT8)
    held = np.ones(COUNT, ml_dtypes.bfloat16)
    data = bytearray(arrays.encode(np.full(COUNT, 3.0, np.float32), pb.INT8))
    decoded = made.decode(pb.Publish(difference=True), pb.INT8, data, held)
    assert decoded.dtype == ml_dtypes.bfloat16
    assert decoded.tolist() == [4.0] * COUNT
    assert held.tolist() == [1.0] * COUNT


def test_a_base_and_a_seed_go_bit_for_bit() -> None:
    made, shared = numbers(Wire.BF16)
    base = np.random.default_rng(0).random(COUNT).astype(ml_dtypes.bfloat16)
    encoding, data = made.encode_base(base)
    assert encoding == pb.BF16
    again = made.decode(pb.Publish(), encoding, bytearray(data), None)
    assert again.tobytes() == base.tobytes()
    made.place(0, 0, base)
    assert shared.adopt(0, 0) == base.tobytes()
    shared.capture(0, 0)[:] = base.astype(np.float32).tobytes()
    encoding, data = made.encode_seed(0, 0)
    assert encoding == pb.F32
    seed = made.decode(pb.Publish(), encoding, bytearray(data), None)
    assert seed.tobytes() == base.astype(np.float32).tobytes()
