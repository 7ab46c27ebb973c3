import pytest
import torch
from torch import nn

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Layout, Slice, build_layout
from atoll_protos.transfer.codecs import Packed
from atoll_worker.model.parameters import (
    byte_view,
    device_of,
    packed,
    pairs,
    travelling,
    travelling_of,
)
from atoll_worker.ranks.redistribution import TravellingTensor


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.norm = nn.BatchNorm1d(6)
        self.inner = nn.Linear(6, 4)
        self.frozen = nn.Linear(4, 6).requires_grad_(False)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("cache", torch.ones(5), persistent=False)


def merges(places: tuple[TravellingTensor, ...]) -> dict[str, str]:
    return {place.spec.name: place.spec.merge for place in places}


def layout_of(places: tuple[TravellingTensor, ...], fragments: int = 2) -> Layout:
    return build_layout([place.spec for place in places], fragments, 1)


def test_tied_once_frozen_and_integers_not_buffers_by_average() -> None:
    assert merges(travelling(Everything())) == {
        "embedding.weight": "mean",
        "inner.bias": "rda",
        "inner.weight": "rda",
        "norm.bias": "rda",
        "norm.running_mean": "average",
        "norm.running_var": "average",
        "norm.weight": "rda",
        "scale": "rda",
    }


def test_a_head_tied_to_a_later_embedding_is_merged_by_mean_too() -> None:
    model = nn.Sequential()
    model.add_module("head", nn.Linear(3, 5, bias=False))
    model.add_module("table", nn.Embedding(5, 3))
    model.get_submodule("head").weight = model.get_submodule("table").weight
    assert merges(travelling(model)) == {"head.weight": "mean"}


def test_the_users_patterns_choose_the_plain_mean() -> None:
    found = merges(travelling(Everything(), ["inner.*"]))
    assert found["inner.weight"] == found["inner.bias"] == "mean"
    assert found["scale"] == "rda"


def test_the_order_is_the_layouts() -> None:
    places = travelling(Everything())
    assert tuple(place.spec for place in places) == layout_of(places).tensors


class Odd(nn.Module):
    """A layer, and one tensor of another kind."""

    def __init__(self, tensor: torch.Tensor, *, buffer: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        if buffer:
            self.register_buffer("odd", tensor)
        else:
            self.odd = nn.Parameter(tensor)


@pytest.mark.parametrize(
    ("buffer", "stays"),
    [(False, "give it requires_grad_(False)"), (True, "register it with persistent=False")],
)
def test_a_dtype_that_does_not_travel_is_named_with_its_remedy(buffer: bool, stays: str) -> None:
    table = torch.ones(3, dtype=torch.float64)
    model = Odd(table, buffer=buffer)
    with pytest.raises(SpecError) as caught:
        travelling(model)
    assert str(caught.value) == (
        "model.odd: is torch.float64, not float32 or bfloat16 or float16; "
        f"make it float32, as model.float() does, or {stays}"
    )
    if buffer:
        model.register_buffer("odd", table, persistent=False)
    else:
        model.odd.requires_grad_(False)
    assert "odd" not in merges(travelling(model))
    expected = "average" if buffer else "rda"
    assert merges(travelling(Odd(table, buffer=buffer).float()))["odd"] == expected


def test_a_complex_parameter_is_told_to_train_its_parts_and_a_complex_buffer_stays() -> None:
    values = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(SpecError, match=r"is torch\.complex64; train its real and imaginary parts"):
        travelling(Odd(values))
    assert "odd" in merges(travelling(Odd(torch.view_as_real(values).clone())))
    assert "odd" not in merges(travelling(Odd(values, buffer=True)))  # rotary frequencies


@pytest.mark.parametrize("buffer", [False, True])
def test_a_sparse_tensor_is_told_to_be_dense(buffer: bool) -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(SpecError, match=r"model\.odd: is sparse \(.*\); make it dense by to_dense"):
        travelling(Odd(sparse, buffer=buffer))
    assert "odd" in merges(travelling(Odd(sparse.to_dense(), buffer=buffer)))


def test_a_stage_may_have_nothing_that_travels_but_not_a_model() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert travelling_of([frozen]) == ()
    assert list(merges(travelling_of([frozen, nn.Linear(2, 2)]))) == ["bias", "weight"]
    with pytest.raises(SpecError, match="no trainable parameter"):
        travelling(frozen)


def over(region: torch.Tensor, owned: Slice) -> Packed[torch.Tensor]:
    return packed(byte_view(region), pb.F32, owned.form)


@pytest.mark.parametrize("make", [Everything, lambda: nn.Embedding(10, 4)])
def test_slices_together_are_every_element_of_every_tensor_in_order(make: type[nn.Module]) -> None:
    """Also where an embedding is cut: a slice has some of its rows."""
    places = travelling(make())
    values = [torch.randn(place.spec.shape) for place in places]
    for each in layout_of(places).slices:
        region = torch.cat([values[p.tensor].flatten()[p.start : p.stop] for p in each.pieces])
        for theta, part in pairs(places, each, over(region, each)):
            assert theta.shape == part.shape
            theta.copy_(part)
    for place, value in zip(places, values, strict=True):
        assert torch.equal(place.tensor, value), place.spec.name


def test_a_tensor_need_not_be_contiguous() -> None:
    model = nn.Linear(3, 4, bias=False)
    model.weight.data = torch.arange(12.0).view(3, 4).t()
    places = travelling(model)
    layout = layout_of(places, fragments=1)
    region = torch.zeros(12)
    for theta, part in pairs(places, layout.slices[0], over(region, layout.slices[0])):
        part.copy_(theta)
    assert torch.equal(region.view(4, 3), model.weight.detach())


def test_a_replaced_tensor_is_the_one_that_is_used() -> None:
    model = nn.Linear(3, 4, bias=False)
    (place,) = travelling(model)
    model.weight.data = torch.full((4, 3), 7.0)
    assert torch.equal(place.tensor, torch.full((4, 3), 7.0))


def test_a_model_on_two_devices_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(SpecError, match="several devices"):
        device_of(travelling(model))


def test_a_buffer_that_is_not_finite_stays_rule_18() -> None:
    """The usual causal mask: it is a constant, and could never be seeded."""
    model = nn.Linear(4, 4)
    model.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    model.register_buffer("scale", torch.ones(4))
    assert [place.spec.name for place in travelling(model)] == ["bias", "scale", "weight"]
