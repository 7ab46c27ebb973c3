"""Checks of values: what a rank captures and adopts is what full_tensor says, bit for bit."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from atoll_protos.job.layout import AVERAGE, Layout, Slice, build_layout
from atoll_worker.model.parameters import travelling_of
from atoll_worker.model.staging import assign
from atoll_worker.ranks.control import HEAD
from atoll_worker.ranks.redistribution import (
    Redistribution,
    TravellingTensor,
    open_exchange,
    reshard,
    sharded_modules,
)
from local.ranks import models
from local.ranks.models import Case

FRAGMENTS = 3

Full = Mapping[str, Tensor]


def places_of(case: Case) -> list[TravellingTensor]:
    """All tensors of this rank that travel."""
    assert case.model is not None
    return list(travelling_of(case.parts or (case.model,)))


def full_of(places: list[TravellingTensor], group: dist.ProcessGroup) -> Full:
    """Every tensor as torch itself puts it together; of buffers that of the lowest rank."""
    mine = {}
    for place in places:
        tensor = place.tensor
        mine[place.spec.name] = (
            tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
        )
    everybody: list[Full] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everybody, mine, group=group)
    return {name: full for said in reversed(everybody) for name, full in said.items()}


def flat(full: Full, layout: Layout, owned: Slice) -> Tensor:
    """The values of a slice in canonical order, f32."""
    pieces = [
        full[layout.tensors[each.tensor].name].flatten()[each.start : each.stop].float()
        for each in owned.pieces
    ]
    return torch.cat(pieces)


def check_both_ways(case: Case, blend: float = 0.0) -> None:
    """Captured and adopted values are those of full_tensor, on every rank."""
    group = models.group_of(case.ranks)
    if case.model is None:
        return
    places = places_of(case)
    exchange = open_exchange(case.parts or (case.model,), places, group=group, control=group)
    layout = build_layout(exchange.table.specs, FRAGMENTS, 1)
    before = full_of(places, group)
    after = {}
    for tensor in layout.tensors:
        torch.manual_seed(len(tensor.name))
        value = before[tensor.name]
        after[tensor.name] = torch.randn(tensor.shape)
        assert sorted(before) == [each.name for each in layout.tensors]
        assert tuple(value.shape) == tensor.shape
    for owned in layout.slices:
        found = exchange.gather(owned)
        assert (found is None) == (exchange.rank != HEAD)
        assert found is None or torch.equal(found, flat(before, layout, owned)), owned
    for owned in layout.slices:
        values = flat(after, layout, owned) if exchange.rank == HEAD else None
        assign(exchange.deal(owned, values), blend)
        exchange.written()
    now = full_of(places, group)
    for name, value in now.items():
        wanted = before[name].clone()
        assign([(wanted, after[name])], blend)
        assert torch.equal(value, wanted), name
    for place in places:  # floating buffers are equal on every rank from now on
        if place.spec.merge == AVERAGE and not blend:
            assert torch.equal(place.tensor, now[place.spec.name]), place.spec.name
    for owned in layout.slices:
        found = exchange.gather(owned)
        assert found is None or torch.equal(found, flat(now, layout, owned)), owned


def both_ways(make: Callable[[], Case]) -> Callable[[], None]:
    """A check of what the head gets and gives."""
    return lambda: check_both_ways(make())


def check_what_is_written_after_an_evaluation() -> None:
    """Parameters that a forward has left whole are shards again, and the next forward sees them."""
    case = models.fully_sharded(2)
    group = models.group_of(case.ranks)
    if case.model is None:
        return
    assert case.inputs is not None
    model, inputs = case.model.eval(), case.inputs
    with torch.no_grad():
        model(inputs)
    left_whole = [name for name, each in model.named_parameters() if not isinstance(each, DTensor)]
    assert "scale" in left_whole
    reshard(sharded_modules([model]))
    places = places_of(case)
    exchange = open_exchange([model], places, group=group, control=group)
    layout = build_layout(exchange.table.specs, 1, 1)
    (owned,) = layout.slices
    with torch.no_grad():
        model(inputs)
    exchange.deal(owned, exchange.gather(owned))
    with torch.no_grad():
        model(inputs)
    assign(exchange.deal(owned, _zeros(exchange, owned)), 0.0)
    with torch.no_grad():
        assert not model(inputs).any()


def _zeros(exchange: Redistribution, owned: Slice) -> Tensor | None:
    values = exchange.empty(owned)
    return None if values is None else values.zero_()
