"""Which parts of a slice ranks hold, and how these are gathered and dealt."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import AVERAGE, Layout, Piece, TensorSpec, build_layout
from atoll_worker.ranks import redistribution
from atoll_worker.ranks.control import HEAD
from atoll_worker.ranks.redistribution import (
    Block,
    BlockTable,
    Box,
    Held,
    Redistribution,
    TravellingTensor,
    held,
    plan_of,
    union,
    whole,
)


def spec(name: str, *shape: int, merge: str = "rda", dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, merge=merge)


def chunk(box: Box, dim: int, count: int, index: int) -> Box | None:
    """The `index`-th of `count` pieces of a box along a dimension, as torch.chunk cuts it."""
    full = -(-box.sizes[dim] // count)
    start = min(index * full, box.sizes[dim])
    size = min(full, box.sizes[dim] - start)
    if not size:
        return None
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dim], sizes[dim] = box.offsets[dim] + start, size
    return Box(tuple(offsets), tuple(sizes))


def box_of(
    shape: tuple[int, ...], mesh: Sequence[int], dims: Sequence[int | None], rank: int
) -> Box | None:
    """What `rank` of a mesh holds of a tensor; a dimension of the mesh shards one of it or none."""
    box: Box | None = whole(shape)
    for number, (count, dim) in enumerate(zip(mesh, dims, strict=True)):
        index = rank // prod(mesh[number + 1 :]) % count
        if dim is not None and box is not None:
            box = chunk(box, dim, count, index)
    return box


@st.composite
def learners(draw: st.DrawFn) -> tuple[BlockTable, Layout]:
    """A model, a mesh, every tensor sharded in some way over it, or only on some ranks."""
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    ranks = prod(mesh)
    said: list[list[Held]] = [[] for _ in range(ranks)]
    for number in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
        merge = draw(st.sampled_from(["rda", "mean", AVERAGE]))
        tensor = spec(f"t{number}", *shape, merge=merge)
        dims = [draw(st.sampled_from([None, *range(len(shape))])) for _ in mesh]
        only = draw(st.sampled_from([None, *range(ranks)]))  # one stage of a pipeline
        for rank in range(ranks):
            if only is None:
                said[rank].append(Held(tensor, box_of(shape, mesh, dims, rank)))
            elif rank == only:
                said[rank].append(Held(tensor, whole(shape)))
    table = union(said)
    fragments = draw(st.integers(1, len(table.specs)))
    return table, build_layout(table.specs, fragments, 1)


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def blocks(by_rank: Sequence[Sequence[Block]]) -> list[tuple[Piece, Box]]:
    return [(each.piece, each.box) for theirs in by_rank for each in theirs]


@given(learners())
def test_every_element_goes_up_once_and_down_to_all_who_hold_it(
    learner: tuple[BlockTable, Layout],
) -> None:
    table, layout = learner
    ranks = range(table.ranks)
    for owned in layout.slices:
        plans = [plan_of(table, owned, rank) for rank in ranks]
        head = plans[HEAD]
        for rank in ranks[1:]:
            for ours, theirs in ((head.up, plans[rank].up), (head.down, plans[rank].down)):
                assert ours[rank] == theirs[HEAD]
                assert not any(theirs[1:])
        got = {piece: torch.zeros(table.specs[piece.tensor].shape) for piece in owned.pieces}
        for piece, box in [*blocks([head.own]), *blocks(head.up)]:
            cut(got[piece], box).add_(1)
        for piece, count in got.items():
            flat = count.flatten()
            assert bool((flat[piece.start : piece.stop] == 1).all())
            assert int(flat.sum()) == piece.element_count
        for rank in ranks:
            down = blocks([head.own] if rank == HEAD else [head.down[rank]])
            assert down == blocks([plans[rank].own])
            for block in plans[rank].own:
                assert table.holders[block.piece.tensor][block.held] == block.ranks
                assert rank in block.ranks


def test_the_head_gives_what_it_holds_and_else_the_lowest_rank() -> None:
    weight, mean = spec("weight", 4, 600), spec("mean", 600, merge=AVERAGE)
    halves = [Box((0, 0), (2, 600)), Box((2, 0), (2, 600))]  # two replicas of two shards
    said = [[Held(weight, halves[rank % 2]), Held(mean, whole((600,)))] for rank in range(4)]
    table = union(said)
    plan = plan_of(table, build_layout(table.specs, 1, 1).slices[0], HEAD)
    assert [each.box.sizes for each in plan.own] == [(600,), (2, 600)]
    assert [len(each) for each in plan.up] == [0, 1, 0, 0]
    assert [len(each) for each in plan.down] == [0, 2, 2, 2]
    assert not plan.replicated


def test_the_table_has_the_tensors_of_all_stages_by_name() -> None:
    first, last = spec("b.first", 3), spec("a.last", 2)
    table = union([[Held(first, whole((3,)))], [Held(last, whole((2,)))]])
    assert table.specs == (last, first)
    assert not table.is_replicated(0)
    assert union([[Held(first, whole((3,)))]] * 2).is_replicated(0)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (spec("w", 3, 2), "disagree about its shape: (2, 3) on rank 0, (3, 2) on 1"),
        (spec("w", 2, 3, dtype="bfloat16"), "dtype: float32 on rank 0, bfloat16 on 1"),
        (spec("w", 2, 3, merge="mean"), "way of merging: rda on rank 0, mean on 1"),
    ],
)
def test_ranks_that_disagree_are_named_with_the_tensor(other: TensorSpec, words: str) -> None:
    said = [[Held(each, whole(each.shape))] for each in (spec("w", 2, 3), other)]
    with pytest.raises(SpecError, match=r"model\.w: the ranks disagree") as caught:
        union(said)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "boxes",
    [
        [Box((0, 0), (2, 4)), Box((3, 0), (1, 4))],  # a row that nobody has
        [Box((0, 0), (3, 4)), Box((2, 0), (2, 4))],  # a row that two have
        [Box((0, 0), (4, 4)), Box((0, 0), (2, 4))],  # whole here, a part there
        [Box((0, 0), (2, 4)), Box((2, 0), (2, 3))],  # a corner is missing
        [Box((0, 0), (2, 4)), Box((1, 0), (2, 4))],  # as many elements, but one row twice
        [Box((0, 0), (2, 4)), Box((3, 0), (2, 4))],  # beyond the end
        [Box((0, 0), (2, 4)), None],  # the other has nothing
        [None, None],
    ],
)
def test_shards_that_do_not_tile_are_refused_by_name(boxes: list[Box | None]) -> None:
    with pytest.raises(
        SpecError, match=r"model\.w: the shards of the ranks do not make up"
    ) as caught:
        union([[Held(spec("w", 4, 4), box)] for box in boxes])
    words = str(caught.value)
    assert boxes[0] is None or f"(4, 4) ([0:{boxes[0].sizes[0]}, 0:4] on rank 0" in words


def test_a_rank_may_hold_nothing_but_not_all_of_them() -> None:
    weight = Held(spec("weight", 4), whole((4,)))
    table = union([(), (weight,)])
    assert (table.ranks, [each.name for each in table.specs]) == (2, ["weight"])
    with pytest.raises(SpecError, match="model: has no trainable parameter; give the model that"):
        union([(), ()])


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
