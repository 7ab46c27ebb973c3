"""The transport's numbers: what is sent is the base less theta, and the base stays what it is."""

import pytest
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import tensors
from atoll_protos.codecs import Wire
from atoll_protos.layout import Layout, TensorSpec, build_layout
from atoll_protos.run import Sync
from atoll_worker.link import memory
from atoll_worker.link.socket import memory_plan
from atoll_worker.transport.numbers import TorchNumbers

COUNT = 64


def layout() -> Layout:
    spec = TensorSpec(name="t", shape=(COUNT,), dtype="float32", merge="rda")
    return build_layout([spec], 1, 1)


def numbers(wire_down: Wire) -> tuple[TorchNumbers, memory.Memory]:
    sync = Sync(fragments=1, period=4, wire_up=Wire.F32, wire_down=wire_down)
    plan = memory_plan(layout(), sync, observer=False)
    shared = memory.attach(plan, memory.create(plan))
    return TorchNumbers(shared, sync), shared


@pytest.mark.parametrize("wire_down", [Wire.F32, Wire.BF16])
def test_an_offer_leaves_the_base_as_it_is_so_that_it_can_be_offered_again(wire_down: Wire) -> None:
    made, shared = numbers(wire_down)
    base = torch.arange(COUNT).to(tensors.base_dtype(wire_down))
    before = tensors.digest(base)
    shared.capture(0, 0).copy_(torch.full((COUNT,), 2.0))
    first = made.difference(0, 0, base)
    assert tensors.digest(base) == before
    assert torch.equal(first, torch.arange(COUNT) - 2.0)
    assert torch.equal(made.difference(0, 0, base), first)


def test_a_difference_is_added_to_the_base_that_is_held() -> None:
    made, _ = numbers(Wire.INT8)
    held = torch.ones(COUNT, dtype=torch.bfloat16)
    data = tensors.encode(torch.full((COUNT,), 3.0), pb.INT8)
    decoded = made.decode(pb.Publish(difference=True), pb.INT8, data, held)
    assert decoded.dtype == torch.bfloat16
    assert torch.allclose(decoded.float(), torch.full((COUNT,), 4.0))
    assert torch.equal(held, torch.ones(COUNT, dtype=torch.bfloat16))


def test_a_base_and_a_seed_go_bit_for_bit() -> None:
    made, shared = numbers(Wire.BF16)
    base = torch.rand(COUNT).to(torch.bfloat16)
    encoding, data = made.encode_base(base)
    assert encoding == pb.BF16
    again = made.decode(pb.Publish(), encoding, bytearray(data), None)
    assert torch.equal(again, base)
    made.place(0, 0, base)
    assert torch.equal(shared.adopt(0, 0), base)
    shared.capture(0, 0).copy_(base)
    encoding, data = made.encode_seed(0, 0)
    assert encoding == pb.F32
    assert torch.equal(made.decode(pb.Publish(), encoding, bytearray(data), None), base.float())
