"""Tensors over bytes without a copy, and torch's types as files name them."""

import gc
import struct
import weakref

import pytest
import torch

from atoll_worker.model import parameters


def test_a_view_keeps_its_tensor_alive() -> None:
    values = torch.randn(1000)
    expected, alive = values.tolist(), weakref.ref(values)
    assert len(parameters.byte_view(torch.empty(0))) == 0
    view = parameters.byte_view(values)
    del values
    gc.collect()
    assert alive() is not None
    assert list(struct.unpack("<1000f", view)) == expected
    del view
    gc.collect()
    assert alive() is None


def test_views_share_memory_and_begin_at_their_part() -> None:
    values = torch.arange(8, dtype=torch.bfloat16)
    assert parameters.byte_view(values[4:]) == bytes(parameters.byte_view(values))[8:]
    view = parameters.byte_view(values)
    values[0] = 1.0
    assert bytes(view[:2]) == b"\x80\x3f"
    with pytest.raises(AssertionError):
        parameters.byte_view(torch.zeros(4, 4).t()[1:])
    data = bytearray(8)
    parameters.from_bytes(data, torch.float32)[1] = 1.0
    assert data == struct.pack("<2f", 0, 1)
    assert parameters.from_bytes(bytearray(), torch.float32).shape == (0,)
