"""Which rank gives which elements of a slice to which rank: arithmetic of boxes, no torch.

Theory of operation
-------------------
A slice is a flat array: its pieces one after another, each a run of elements of a tensor in row-
major order. This is the *canonical order*. It is cut into N equal *parts* (`part_edges`, rule 32),
and each part has an *owner*, the rank that has it on its way to or from the wire. With one part the
owner is the head, and the part is the slice.

No rank holds a tensor in canonical order, unless it holds all of it. What FSDP2, tensor parallelism
and the like give to a rank is a *box*: in each dimension a range of indices. Ranks that hold the
same box are replicas of each other. `union` makes the table of all boxes from what every rank says
of its own, and refuses a table in which the boxes of a tensor do not tile it: an element that
nobody holds would never be trained, and one in two different boxes has two values.

What a rank gives to an owner is what both have in common, and the smallest thing that all copies
can be made of is a *block*: a box inside one rank's box and inside one part. A part begins and ends
anywhere in a tensor, so that the elements of it are several boxes (`boxes_between`): in two
dimensions the end of a row, whole rows, and the beginning of a row. Each is met with the boxes that
the ranks hold:

    part of a tensor      boxes of ranks 0|1      blocks
    . . . a a a           0 0 0|1 1 1             rank 1: 1 x 3
    a a a a a a           0 0 0|1 1 1             rank 0: 2 x 3, rank 1: 2 x 3
    a a a a a a           0 0 0|1 1 1
    a a . . . .           0 0 0|1 1 1             rank 0: 1 x 2

In the canonical array a block lies with the strides of its tensor, from `Block.at` on; in the
rank's shard it is a narrower view. So each block is one copy on either side, on any device.

Two ranks never tell each other what they send. Both list the blocks in the same order, which is
that of the pieces and, within one, the row-major order of the blocks; since a rank holds one box of
a tensor, the list of blocks of a pair of ranks is the same whichever of them computes it.

*Upwards*, from the ranks to the owners, one of the replicas gives a block: the owner itself if it
holds it, else the one nearest to it by number, which mostly lies on the same host. Floating-point
buffers, such as running means, are no replicas although every rank has them whole: the lowest rank
gives those, for every N alike. *Downwards* all holders of a block get it.

The boxes of a tensor are kept as a tree of cuts, so that a block is found by bisection and not by
looking at all ranks: a learner may have hundreds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Final, TypeAlias

from atoll_protos.errors import SpecError
from atoll_protos.layout import AVERAGE, Piece, Slice, TensorSpec
from atoll_protos.parts import part_edges

RANKS_NAMED_MAX: Final = 8  # of those that an error names


@dataclass(frozen=True, slots=True)
class Box:
    """Indices offsets[d] .. offsets[d] + sizes[d] in each dimension d of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def element_count(self) -> int:
        """Number of elements; 1 of a 0-dimensional tensor."""
        return prod(self.sizes)

    def meet(self, other: "Box") -> "Box | None":
        """What two boxes of a tensor have in common, if anything."""
        offsets, sizes = [], []
        for one, size, two, other_size in zip(
            self.offsets, self.sizes, other.offsets, other.sizes, strict=True
        ):
            start, stop = max(one, two), min(one + size, two + other_size)
            if start >= stop:
                return None
            offsets.append(start)
            sizes.append(stop - start)
        return Box(tuple(offsets), tuple(sizes))


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole tensor."""
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
class Share:
    """A box of a tensor, and the ranks that hold it, in ascending order."""

    box: Box
    ranks: tuple[int, ...]

    def giver(self, owner: int, merge: str) -> int:
        """The rank that gives the box to an owner."""
        ranks = self.ranks
        if merge == AVERAGE:
            return ranks[0]
        after = bisect_left(ranks, owner)
        return min(ranks[max(0, after - 1) : after + 1], key=lambda rank: (abs(rank - owner), rank))


@dataclass(frozen=True, slots=True)
class Cut:
    """A box of a tensor, cut along one dimension; `below[i]` are the shares from starts[i] on."""

    dim: int
    starts: tuple[int, ...]
    below: tuple["Shares", ...]


Shares: TypeAlias = Cut | Share


@dataclass(frozen=True, slots=True)
class Tiling:
    """All boxes of one tensor: as a tree, and by the ranks that hold one."""

    tree: Shares
    of_rank: Mapping[int, Share]


@dataclass(frozen=True, slots=True)
class Table:
    """The tensors of all ranks, sorted by name, and who holds what of each."""

    ranks: int
    specs: tuple[TensorSpec, ...]
    tilings: tuple[Tiling, ...]

    def is_replicated(self, tensor: int) -> bool:
        """Whether every rank holds the whole tensor."""
        tree = self.tilings[tensor].tree
        return isinstance(tree, Share) and len(tree.ranks) == self.ranks

    @property
    def first_that_trains(self) -> int:
        """The lowest rank that holds something of a parameter, and not of averaged buffers only."""
        holders = zip(self.specs, self.tilings, strict=True)
        return min((min(t.of_rank) for spec, t in holders if spec.merge != AVERAGE), default=0)


@dataclass(frozen=True, slots=True)
class Block:
    """A box of tensor number `tensor`, whose first element is at `at` of an owner's part."""

    tensor: int
    box: Box
    at: int


@dataclass(frozen=True, slots=True)
class Moves:
    """What one rank copies in one exchange: blocks by the rank to which and from which they go."""

    gives: tuple[tuple[Block, ...], ...]
    takes: tuple[tuple[Block, ...], ...]


# ---------------------------------------------------------------- the table


def union(said: Sequence[Sequence[Held]]) -> Table:
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
        shares = tuple(Share(box, tuple(ranks)) for box, ranks in boxes[spec.name].items())
        key = (spec.shape, shares)
        if key not in known:
            tree = _tree(shares, whole(spec.shape)) if shares else None
            if tree is None:
                raise _no_tiling(spec, shares)
            of_rank = {rank: share for share in shares for rank in share.ranks}
            known[key] = Tiling(tree, of_rank)
        tilings.append(known[key])
    return Table(len(said), table, tuple(tilings))


def untrained() -> SpecError:
    """The error for a learner without a tensor that travels."""
    return SpecError("model", "has no trainable parameter", "give the model that is trained")


def _disagreement(one: TensorSpec, rank: int, other: TensorSpec, other_rank: int) -> SpecError:
    if one.shape != other.shape:
        what, first, second = "shape", f"{one.shape}", f"{other.shape}"
    elif one.dtype != other.dtype:
        what, first, second = "dtype", one.dtype, other.dtype
    else:
        what, first, second = "way of merging", one.merge, other.merge
    return SpecError(
        f"model.{one.name}",
        f"the ranks disagree about its {what}: {first} on rank {rank}, {second} on {other_rank}",
        "build the same model on every rank; give different tensors different names",
    )


def _no_tiling(spec: TensorSpec, shares: Sequence[Share]) -> SpecError:
    def described(share: Share) -> str:
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


def _tree(shares: Sequence[Share], inside: Box) -> Shares | None:
    """The shares that tile `inside` as a tree of cuts; None if they do not.

    Every sharding by mesh dimensions can be cut through along some dimension, and the pieces again.
    """
    if len(shares) == 1:
        return shares[0] if shares[0].box == inside else None
    for dim, (start, size) in enumerate(zip(inside.offsets, inside.sizes, strict=True)):
        groups: dict[tuple[int, int], list[Share]] = {}
        for share in shares:
            first = share.box.offsets[dim]
            groups.setdefault((first, first + share.box.sizes[dim]), []).append(share)
        runs = sorted(groups)
        touch = all(one[1] == other[0] for one, other in pairwise(runs))
        if len(runs) == 1 or not touch or (runs[0][0], runs[-1][1]) != (start, start + size):
            continue
        below = []
        for run in runs:
            tree = _tree(groups[run], _replaced(inside, dim, run))
            if tree is None:
                return None
            below.append(tree)
        return Cut(dim, tuple(run[0] for run in runs), tuple(below))
    return None


def _replaced(box: Box, dim: int, run: tuple[int, int]) -> Box:
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dim], sizes[dim] = run[0], run[1] - run[0]
    return Box(tuple(offsets), tuple(sizes))


def _met(tree: Shares, box: Box) -> Iterator[tuple[Share, Box]]:
    """The shares that have elements of `box`, and which."""
    if isinstance(tree, Share):
        common = tree.box.meet(box)
        if common is not None:
            yield tree, common
        return
    start = box.offsets[tree.dim]
    first = bisect_right(tree.starts, start) - 1
    last = bisect_left(tree.starts, start + box.sizes[tree.dim])
    for below in tree.below[first:last]:
        yield from _met(below, box)


# ---------------------------------------------------------------- blocks and moves


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
        yield Box((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]))
    if last * row < stop:
        yield from _in_row(shape, last * row, stop)


def _in_row(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    row = prod(shape[1:])
    index = start // row
    for box in boxes_between(shape[1:], start - index * row, stop - index * row):
        yield Box((index, *box.offsets), (1, *box.sizes))


def upwards(table: Table, owned: Slice, owners: Sequence[int], rank: int) -> Moves:
    """What `rank` copies so that the owner of each part gets it whole. `owners[k]` has part k."""
    gives, takes = _lists(table.ranks), _lists(table.ranks)
    for owner, pieces in _parts(owned, owners):
        for block, share in _held(table, pieces, rank):
            if share.giver(owner, table.specs[block.tensor].merge) == rank:
                gives[owner].append(block)
        if owner == rank:
            for block, share in _all(table, pieces):
                takes[share.giver(owner, table.specs[block.tensor].merge)].append(block)
    return _moves(gives, takes)


def downwards(table: Table, owned: Slice, owners: Sequence[int], rank: int) -> Moves:
    """What `rank` copies so that everybody gets what it holds from the owners of the parts."""
    gives, takes = _lists(table.ranks), _lists(table.ranks)
    for owner, pieces in _parts(owned, owners):
        takes[owner].extend(block for block, _ in _held(table, pieces, rank))
        if owner == rank:
            for block, share in _all(table, pieces):
                for holder in share.ranks:
                    gives[holder].append(block)
    return _moves(gives, takes)


def _lists(ranks: int) -> list[list[Block]]:
    return [[] for _ in range(ranks)]


def _moves(gives: list[list[Block]], takes: list[list[Block]]) -> Moves:
    return Moves(tuple(map(tuple, gives)), tuple(map(tuple, takes)))


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


def _held(table: Table, pieces: Sequence[Piece], rank: int) -> Iterator[tuple[Block, Share]]:
    """The blocks of one rank."""
    for piece in pieces:
        share = table.tilings[piece.tensor].of_rank.get(rank)
        if share is not None:
            for box in boxes_between(table.specs[piece.tensor].shape, piece.start, piece.stop):
                common = share.box.meet(box)
                if common is not None:
                    yield _block(table, piece, common), share


def _all(table: Table, pieces: Sequence[Piece]) -> Iterator[tuple[Block, Share]]:
    """The blocks of all ranks, those of replicas once."""
    for piece in pieces:
        for box in boxes_between(table.specs[piece.tensor].shape, piece.start, piece.stop):
            for share, common in _met(table.tilings[piece.tensor].tree, box):
                yield _block(table, piece, common), share


def _block(table: Table, piece: Piece, box: Box) -> Block:
    steps = strides(table.specs[piece.tensor].shape)
    position = sum(offset * step for offset, step in zip(box.offsets, steps, strict=True))
    return Block(piece.tensor, box, piece.offset + position - piece.start)
