"""Which box of every tensor a rank says that it holds."""

from dataclasses import dataclass

import pytest
from torch import nn

from atoll_protos.errors import SpecError
from atoll_protos.layout import TensorSpec
from atoll_worker.ranks.boxes import held
from atoll_worker.ranks.parts import whole


@dataclass(frozen=True)
class Place:
    """See boxes.Placed."""

    module: nn.Module
    attribute: str
    spec: TensorSpec


def place(name: str, *, attribute: str = "weight") -> Place:
    module = nn.Linear(3, 2)
    shape = tuple(getattr(module, attribute).shape)
    spec = TensorSpec(name=name, shape=shape, dtype="float32", merge="rda")
    return Place(module, attribute, spec)


def test_a_plain_tensor_is_held_whole() -> None:
    first, second = held([place("a"), place("b", attribute="bias")])
    assert (first.box, second.box) == (whole((2, 3)), whole((2,)))


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match=r"model\.a: two tensors of this rank have this name"):
        held([place("a"), place("b"), place("a")])
