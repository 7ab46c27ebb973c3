"""Blocks: what the ranks hold makes up a slice exactly, up and down, for every sharding and N."""

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import AVERAGE, Layout, TensorSpec, build_layout
from atoll_protos.transfer.division import part_edges
from atoll_worker.ranks.blocks import (
    BlockTable,
    Box,
    Held,
    Moves,
    TensorBlock,
    boxes_between,
    downwards,
    strides,
    union,
    upwards,
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


def view(block: TensorBlock, table: BlockTable, part: torch.Tensor) -> torch.Tensor:
    return part.as_strided(block.box.sizes, strides(table.specs[block.tensor].shape), block.at)


def inside(
    block: TensorBlock, table: BlockTable, rank: int, shards: Sequence[dict[int, torch.Tensor]]
) -> torch.Tensor:
    own = table.tilings[block.tensor].of_rank[rank].box
    found = shards[rank][block.tensor]
    for dim, (offset, size) in enumerate(zip(block.box.offsets, block.box.sizes, strict=True)):
        found = found.narrow(dim, offset - own.offsets[dim], size)
    return found


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor.clone()


def shards_of(table: BlockTable, full: Sequence[torch.Tensor]) -> list[dict[int, torch.Tensor]]:
    return [
        {
            number: cut(tensor, table.tilings[number].of_rank[rank].box)
            for number, tensor in enumerate(full)
            if rank in table.tilings[number].of_rank
        }
        for rank in range(table.ranks)
    ]


def fit(all_moves: Sequence[Moves]) -> None:
    """What a rank gives to another is what that one takes from it, in the same order."""
    for giver, taker in product(range(len(all_moves)), repeat=2):
        assert all_moves[giver].gives[taker] == all_moves[taker].takes[giver]


@given(learners(), st.integers(1, 4))
def test_parts_make_up_a_slice_up_and_down(learner: tuple[BlockTable, Layout], parts: int) -> None:
    table, layout = learner
    owners = [part % table.ranks for part in range(min(parts, table.ranks))]
    ranks = range(table.ranks)
    full = [
        torch.arange(each.element_count).reshape(each.shape) + 1000 * number
        for number, each in enumerate(table.specs)
    ]
    shards = shards_of(table, full)
    written = [{n: torch.full_like(t, -1) for n, t in held.items()} for held in shards]
    for owned in layout.slices:
        want = torch.cat([full[p.tensor].flatten()[p.start : p.stop] for p in owned.pieces])
        edges = part_edges(owned.form, len(owners))
        up = [upwards(table, owned, owners, rank) for rank in ranks]
        down = [downwards(table, owned, owners, rank) for rank in ranks]
        fit(up)
        fit(down)
        for owner, (start, stop) in zip(owners, pairwise(edges), strict=True):
            part = torch.full((stop - start,), -1)
            for giver in ranks:
                for block in up[owner].takes[giver]:
                    assert bool((view(block, table, part) == -1).all())  # nobody gives it twice
                    view(block, table, part).copy_(inside(block, table, giver, shards))
            assert torch.equal(part, want[start:stop])
            for taker in ranks:
                for block in down[taker].takes[owner]:
                    inside(block, table, taker, written).copy_(view(block, table, part))
    for held, now in zip(shards, written, strict=True):
        assert all(torch.equal(held[number], now[number]) for number in held)


@given(st.lists(st.integers(1, 6), max_size=4), st.data())
def test_boxes_between_two_elements_are_in_order(shape: list[int], data: st.DataObject) -> None:
    count = prod(shape)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    full = torch.arange(count).reshape(shape)
    found = list(boxes_between(tuple(shape), start, stop))
    assert torch.cat([cut(full, box).flatten() for box in found]).tolist() == [*range(start, stop)]
    assert len(found) <= max(1, 2 * len(shape) - 1)


def test_the_nearest_replica_gives_and_the_lowest_rank_gives_buffers() -> None:
    weight, mean = spec("weight", 4, 600), spec("mean", 600, merge=AVERAGE)
    halves = [Box((0, 0), (2, 600)), Box((2, 0), (2, 600))]  # two replicas of two shards
    said = [[Held(weight, halves[rank % 2]), Held(mean, whole((600,)))] for rank in range(4)]
    table = union(said)
    owned = build_layout(table.specs, 1, 1).slices[0]
    up = [upwards(table, owned, (3, 0), rank) for rank in range(4)]
    givers = {
        (owner, table.specs[block.tensor].name): {
            giver
            for giver, blocks in enumerate(up[owner].takes)
            if any(each.tensor == block.tensor for each in blocks)
        }
        for owner in (0, 3)
        for block in (each for blocks in up[owner].takes for each in blocks)
    }
    assert givers == {(3, "mean"): {0}, (3, "weight"): {2}, (0, "weight"): {0, 1}}
    reached = [rank for rank, blocks in enumerate(downwards(table, owned, (0,), 0).gives) if blocks]
    assert reached == [0, 1, 2, 3]


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


def test_512_ranks_give_their_blocks_and_tensors_that_are_cut_alike_have_one_tiling() -> None:
    ranks, model = 512, [spec(f"h.{number}", 4096, 64, merge="mean") for number in range(8)]
    said = [
        [Held(each, box_of(each.shape, [ranks], [0], rank)) for each in model]
        for rank in range(ranks)
    ]
    table = union(said)
    assert len({id(tiling) for tiling in table.tilings}) == 1
    slices = build_layout(table.specs, 32, 1).slices
    takes = [blocks for owned in slices for blocks in upwards(table, owned, (0,), 0).takes]
    assert sum(map(len, takes)) == ranks * len(model)


def test_a_rank_may_hold_nothing_but_not_all_of_them() -> None:
    weight = Held(spec("weight", 4), whole((4,)))
    table = union([(), (weight,)])
    assert (table.ranks, [each.name for each in table.specs]) == (2, ["weight"])
    assert table.first_that_trains == 1
    mean = Held(spec("mean", 4, merge=AVERAGE), whole((4,)))  # of a stage that is frozen
    assert union([(mean,), (), (weight,)]).first_that_trains == 2
    assert union([(weight,), (weight,)]).first_that_trains == 0
    assert union([(), (mean,)]).first_that_trains == 0
    with pytest.raises(SpecError, match="model: has no trainable parameter; give the model that"):
        union([(), ()])
