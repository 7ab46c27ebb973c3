"""Tensors over bytes without a copy, and torch's types as files name them."""

import gc
import struct
import weakref

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
