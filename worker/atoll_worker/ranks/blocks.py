"""Which rank gives which elements of a slice to which rank: arithmetic of boxes, no torch.

A slice is a flat array: its pieces one after another, each a run of elements of a tensor in row-
major order. It is cut into N equal *parts* (`part_edges`, rule 32), each with an *owner*, the rank
that has it on its way to or from the wire.

What FSDP2, tensor parallelism and the like give to a rank is a *box*: in each dimension a range of
indices. Ranks that hold the same box are replicas. The boxes of a tensor must tile it: an element
that nobody holds would never be trained, and one in two boxes has two values.

A *block* is a box inside one rank's box and inside one part. The elements of a part are several
boxes (`boxes_between`), each of which is met with those of the ranks:

    part of a tensor      boxes of ranks 0|1      blocks
    . . . a a a           0 0 0|1 1 1             rank 1: 1 x 3
    a a a a a a           0 0 0|1 1 1             rank 0: 2 x 3, rank 1: 2 x 3
    a a a a a a           0 0 0|1 1 1
    a a . . . .           0 0 0|1 1 1             rank 0: 1 x 2

In the canonical array a block lies with the strides of its tensor, from `TensorBlock.at` on; in the
rank's shard it is a narrower view. So each block is one copy on either side, on any device.

Two ranks never tell each other what they send: both list the blocks in the order of the pieces and
within one in row-major order, and so find the same list for the pair.

*Upwards*, one of the replicas gives a block: the owner itself if it holds it, else the nearest by
number, which mostly lies on the same host. Floating-point buffers, such as running means, are no
replicas: the lowest rank gives those. *Downwards* all holders of a block get it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from operator import mul
from typing import Final

import numpy as np
from numpy.typing import NDArray

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import AVERAGE, Piece, Slice, TensorSpec
from atoll_protos.transfer.division import part_edges

RANKS_NAMED_MAX: Final = 8  # of those that an error names


@dataclass(frozen=True, slots=True)
class Box:
    """Indices offsets[d] .. offsets[d] + sizes[d] in each dimension d of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def element_count(self) -> int:
        return prod(self.sizes)


def whole(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


@cache
def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a row-major tensor, in elements."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Held:
    """What one rank says of one tensor: `box` is None where its shard has no elements."""

    spec: TensorSpec
    box: Box | None


@dataclass(frozen=True, slots=True)
class HeldBox:
    """A box of a tensor, and the ranks that hold it, in ascending order."""

    box: Box
    ranks: tuple[int, ...]

    def giver(self, owner: int, merge: str) -> int:
        ranks = self.ranks
        if merge == AVERAGE:
            return ranks[0]
        after = bisect_left(ranks, owner)
        return min(ranks[max(0, after - 1) : after + 1], key=lambda rank: (abs(rank - owner), rank))


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """All boxes of one tensor, as arrays: a learner may have hundreds of ranks."""

    shares: tuple[HeldBox, ...]
    of_rank: Mapping[int, HeldBox]
    starts: NDArray[np.int64]  # of the boxes [share, dimension]
    stops: NDArray[np.int64]

    def met(self, box: Box, rank: int | None = None) -> Iterator[tuple[HeldBox, Box]]:
        """The shares that have elements of `box`, and which; of `rank` alone, if it is given."""
        starts = np.maximum(self.starts, box.offsets)
        sizes = np.minimum(self.stops, np.add(box.offsets, box.sizes)) - starts
        for number in np.flatnonzero((sizes > 0).all(axis=1)).tolist():
            share = self.shares[number]
            if rank is None or rank in share.ranks:
                yield share, Box(tuple(starts[number].tolist()), tuple(sizes[number].tolist()))


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The tensors of all ranks, sorted by name, and who holds what of each."""

    ranks: int
    specs: tuple[TensorSpec, ...]
    tilings: tuple[Tiling, ...]

    def is_replicated(self, tensor: int) -> bool:
        shares = self.tilings[tensor].shares
        return len(shares) == 1 and len(shares[0].ranks) == self.ranks

    @property
    def first_that_trains(self) -> int:
        """The lowest rank that holds something of a parameter, and not of averaged buffers only."""
        holders = zip(self.specs, self.tilings, strict=True)
        return min((min(t.of_rank) for spec, t in holders if spec.merge != AVERAGE), default=0)


@dataclass(frozen=True, slots=True)
class TensorBlock:
    """A box of tensor number `tensor`, whose first element is at `at` of an owner's part."""

    tensor: int
    box: Box
    at: int


@dataclass(frozen=True, slots=True)
class Moves:
    """What one rank copies in one exchange: blocks by the rank to which and from which they go."""

    gives: list[list[TensorBlock]]
    takes: list[list[TensorBlock]]


def union(said: Sequence[Sequence[Held]]) -> BlockTable:
    """The table of a learner from what each rank says; `said[rank]` has each name at most once.

    Raises SpecError that names a tensor and ranks, if they disagree about it or if their boxes do
    not tile it, and if there is no tensor at all.
    """
    if not any(said):
        raise untrained()
    specs: dict[str, tuple[TensorSpec, int]] = {}  # and the first rank that has it
    boxes: dict[str, dict[Box, list[int]]] = {}
    for rank, tensors in enumerate(said):
        for held in tensors:
            name = held.spec.name
            first, first_rank = specs.setdefault(name, (held.spec, rank))
            if first != held.spec:
                raise _disagreement(first, first_rank, held.spec, rank)
            holders = boxes.setdefault(name, {})
            if held.box is not None:
                holders.setdefault(held.box, []).append(rank)
    known: dict[object, Tiling] = {}  # most tensors of a model are held like some other
    tilings = []
    table = tuple(specs[name][0] for name in sorted(specs))
    for spec in table:
        shares = tuple(HeldBox(box, tuple(ranks)) for box, ranks in boxes[spec.name].items())
        key = (spec.shape, shares)
        if key not in known:
            known[key] = _tiling(spec, shares)
        tilings.append(known[key])
    return BlockTable(len(said), table, tuple(tilings))


def untrained() -> SpecError:
    return SpecError("model", "has no trainable parameter", "give the model that is trained")


def _disagreement(one: TensorSpec, rank: int, other: TensorSpec, other_rank: int) -> SpecError:
    attributes = {"shape": "shape", "dtype": "dtype", "merge": "way of merging"}
    key = next(each for each in attributes if getattr(one, each) != getattr(other, each))
    said = f"{getattr(one, key)} on rank {rank}, {getattr(other, key)} on {other_rank}"
    problem = f"the ranks disagree about its {attributes[key]}: {said}"
    remedy = "build the same model on every rank; give different tensors different names"
    return SpecError(f"model.{one.name}", problem, remedy)


def _no_tiling(spec: TensorSpec, shares: Sequence[HeldBox]) -> SpecError:
    def described(share: HeldBox) -> str:
        box = zip(share.box.offsets, share.box.sizes, strict=True)
        ranges = ", ".join(f"{start}:{start + size}" for start, size in box)
        return f"[{ranges}] on rank {', '.join(map(str, share.ranks[:RANKS_NAMED_MAX]))}"

    shown = "; ".join(described(share) for share in shares[:RANKS_NAMED_MAX])
    return SpecError(
        f"model.{spec.name}",
        f"the shards of the ranks do not make up the tensor {spec.shape} ({shown or 'none'})",
        "shard it by DTensor placements that divide it, and give the Learner all modules that a"
        " rank has; or freeze it",
    )


def _tiling(spec: TensorSpec, shares: tuple[HeldBox, ...]) -> Tiling:
    """Raises SpecError if the shares do not tile the tensor."""
    of_rank = {rank: share for share in shares for rank in share.ranks}
    starts = np.array([each.box.offsets for each in shares], dtype=np.int64)
    stops = starts + np.array([each.box.sizes for each in shares], dtype=np.int64)
    tiling = Tiling(shares, of_rank, starts, stops)
    if sum(each.box.element_count for each in shares) != prod(spec.shape):
        raise _no_tiling(spec, shares)
    if (stops > spec.shape).any() or any(len([*tiling.met(each.box)]) > 1 for each in shares):
        raise _no_tiling(spec, shares)
    return tiling


def boxes_between(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Elements start..stop of a row-major tensor as boxes, in that order; start < stop."""
    if not shape:
        yield Box((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if first > last:
        yield from _in_row(shape, start, stop)
        return
    if start < first * row:
        yield from _in_row(shape, start, first * row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    if last * row < stop:
        yield from _in_row(shape, last * row, stop)


def _in_row(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    row = prod(shape[1:])
    index = start // row
    for box in boxes_between(shape[1:], start - index * row, stop - index * row):
        yield Box((index, *box.offsets), (1, *box.sizes))


def upwards(table: BlockTable, owned: Slice, owners: Sequence[int], rank: int) -> Moves:
    """What `rank` copies so that the owner of each part gets it whole. `owners[k]` has part k."""
    moves = Moves([[] for _ in range(table.ranks)], [[] for _ in range(table.ranks)])
    for owner, pieces in _parts(owned, owners):
        for block, share in _blocks(table, pieces, rank):
            if share.giver(owner, table.specs[block.tensor].merge) == rank:
                moves.gives[owner].append(block)
        if owner == rank:
            for block, share in _blocks(table, pieces):
                giver = share.giver(owner, table.specs[block.tensor].merge)
                moves.takes[giver].append(block)
    return moves


def downwards(table: BlockTable, owned: Slice, owners: Sequence[int], rank: int) -> Moves:
    """What `rank` copies so that everybody gets what it holds from the owners of the parts."""
    moves = Moves([[] for _ in range(table.ranks)], [[] for _ in range(table.ranks)])
    for owner, pieces in _parts(owned, owners):
        moves.takes[owner].extend(block for block, _ in _blocks(table, pieces, rank))
        if owner == rank:
            for block, share in _blocks(table, pieces):
                for holder in share.ranks:
                    moves.gives[holder].append(block)
    return moves


def _parts(owned: Slice, owners: Sequence[int]) -> Iterator[tuple[int, Sequence[Piece]]]:
    """(owner, what its part has of each piece), with offsets in the part."""
    edges = part_edges(owned.form, len(owners))
    for owner, (start, stop) in zip(owners, pairwise(edges), strict=True):
        pieces = []
        for piece in owned.pieces:
            first = max(start, piece.offset)
            last = min(stop, piece.offset + piece.element_count)
            if first < last:
                begin = piece.start - piece.offset
                pieces.append(Piece(piece.tensor, begin + first, begin + last, first - start))
        yield owner, pieces


def _blocks(
    table: BlockTable, pieces: Sequence[Piece], rank: int | None = None
) -> Iterator[tuple[TensorBlock, HeldBox]]:
    """The blocks of the pieces, in order; only those that `rank` holds, if it is given."""
    for piece in pieces:
        shape, tiling = table.specs[piece.tensor].shape, table.tilings[piece.tensor]
        if rank is not None and rank not in tiling.of_rank:
            continue
        for box in boxes_between(shape, piece.start, piece.stop):
            for share, common in tiling.met(box, rank):
                position = sum(map(mul, common.offsets, strides(shape)))
                at = piece.offset + position - piece.start
                yield TensorBlock(piece.tensor, common, at), share
