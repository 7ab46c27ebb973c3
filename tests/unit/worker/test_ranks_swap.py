"""Two ranks of one process, a thread each, exchange the values of a model that is cut in two."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from atoll_protos.layout import TensorSpec, build_layout
from atoll_worker.ranks import exchange
from atoll_worker.ranks.exchange import Exchange
from atoll_worker.ranks.parts import Box, Held, union, whole

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


@dataclass(frozen=True)
class Place:
    """See boxes.Placed: the attribute is this rank's shard."""

    module: nn.Module
    attribute: str
    spec: TensorSpec


def test_what_two_ranks_hold_is_gathered_by_its_owners_and_dealt_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"cut": torch.arange(4.0 * COLUMNS).view(4, -1), "equal": -torch.ones(2)}
    boxes = [Box((0, 0), (1, COLUMNS)), Box((1, 0), (3, COLUMNS))]  # one row, and three
    table = union([[Held(CUT, box), Held(EQUAL, whole((2,)))] for box in boxes])
    (owned,) = build_layout(table.specs, 1, 1).slices
    collectives = Collectives()
    monkeypatch.setattr(exchange, "dist", collectives)

    def rank(number: int) -> tuple[Tensor, list[Tensor]]:
        collectives.own.rank = number
        module = nn.Module()
        shard = values["cut"][:1] if number == 0 else values["cut"][1:]
        module.cut, module.equal = nn.Buffer(shard.clone()), nn.Buffer(values["equal"].clone())
        found = Exchange(
            places={n: Place(module, s.name, s) for n, s in enumerate(table.specs)},
            table=table,
            sharded=(),
            group=None,
            rank=number,
            owners=(0, 1),
            device=torch.device("cpu"),
        )
        gathered = found.gather(owned)
        assert gathered is not None
        pairs, averaged = found.deal(owned, gathered + 100)
        assert not any(averaged)
        for held, value in pairs:
            held.copy_(value)
        return gathered, [module.cut, module.equal]

    with ThreadPoolExecutor(RANKS) as pool:
        ends = list(pool.map(rank, range(RANKS)))
    assert all(len(each) for each, _ in ends)
    assert torch.equal(torch.cat([each for each, _ in ends])[:-2], values["cut"].view(-1))
    assert torch.equal(torch.cat([cut for _, (cut, _) in ends]), values["cut"] + 100)
    for _, (_, equal) in ends:
        assert torch.equal(equal, values["equal"] + 100)
