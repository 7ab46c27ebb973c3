"""What a rank holds, and how two ranks (threads of one process) exchange it."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_worker.ranks import redistribution
from atoll_worker.ranks.redistribution import (
    Box,
    Held,
    Redistribution,
    TravellingTensor,
    held,
    union,
    whole,
)

RANKS = 2
COLUMNS = 500
CUT = TensorSpec(name="cut", shape=(4, COLUMNS), dtype="float32", merge="rda")
EQUAL = TensorSpec(name="equal", shape=(2,), dtype="float32", merge="rda")


class Collectives:
    """What `torch.distributed` does between processes, between the threads of a test."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=60)
        self.given: dict[int, list[Tensor]] = {}
        self.own = threading.local()

    def all_to_all_single(
        self, out: Tensor, data: Tensor, takes: Sequence[int], gives: Sequence[int], **_: object
    ) -> None:
        """Each gives the other its share of `data`."""
        self.given[self.own.rank] = list(torch.split(data, list(gives)))
        self.barrier.wait()
        arrived = [self.given[rank][self.own.rank] for rank in range(RANKS)]
        if [len(each) for each in arrived] != list(takes):
            self.barrier.abort()  # the other one does not wait
        out.copy_(torch.cat(arrived))
        self.barrier.wait()


def test_what_two_ranks_hold_is_gathered_and_dealt_back(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"cut": torch.arange(4.0 * COLUMNS).view(4, -1), "equal": -torch.ones(2)}
    boxes = [Box((0, 0), (1, COLUMNS)), Box((1, 0), (3, COLUMNS))]  # one row, and three
    table = union([[Held(CUT, box), Held(EQUAL, whole((2,)))] for box in boxes])
    (owned,) = build_layout(table.specs, 1, 1).slices
    collectives = Collectives()
    monkeypatch.setattr(redistribution, "dist", collectives)

    def rank(number: int) -> tuple[Tensor | None, list[Tensor]]:
        collectives.own.rank = number
        module = nn.Module()
        shard = values["cut"][:1] if number == 0 else values["cut"][1:]
        module.cut, module.equal = nn.Buffer(shard.clone()), nn.Buffer(values["equal"].clone())
        found = Redistribution(
            places={
                n: TravellingTensor(module=module, attribute=s.name, spec=s)
                for n, s in enumerate(table.specs)
            },
            table=table,
            sharded=(),
            group=None,
            rank=number,
            device=torch.device("cpu"),
        )
        gathered = found.gather(owned)
        for mine, value in found.deal(owned, None if gathered is None else gathered + 100):
            mine.copy_(value)
        return gathered, [module.cut, module.equal]

    with ThreadPoolExecutor(RANKS) as pool:
        ends = list(pool.map(rank, range(RANKS)))
    (head, _), (other, _) = ends
    assert head is not None
    assert other is None
    assert torch.equal(head[:-2], values["cut"].view(-1))
    assert torch.equal(torch.cat([cut for _, (cut, _) in ends]), values["cut"] + 100)
    for _, (_, equal) in ends:
        assert torch.equal(equal, values["equal"] + 100)


def test_a_plain_tensor_is_held_whole_and_each_name_comes_once() -> None:
    module = nn.Module()
    module.cut, module.equal = nn.Buffer(torch.ones(4, COLUMNS)), nn.Buffer(torch.ones(2))
    first, second = (
        TravellingTensor(module=module, attribute=s.name, spec=s) for s in (CUT, EQUAL)
    )
    assert [each.box for each in held([first, second])] == [whole(CUT.shape), whole(EQUAL.shape)]
    with pytest.raises(SpecError, match=r"model\.cut: two tensors of this rank have this name"):
        held([first, second, first])


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_a_rank_with_nothing_that_travels_has_a_device_of_the_others_kind(kind: str) -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).to("meta"))
    for model in (mixed, nn.Identity(), nn.Linear(2, 2)):
        assert redistribution._device_among([model], kind) == torch.device(kind)
