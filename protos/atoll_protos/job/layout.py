"""Which part of which tensor belongs to which slice: balanced tensor fragmentation, no torch.

Tensors are spread over P *fragments*, which take turns, and each fragment over the shards: the part
that one shard owns is a *slice*, a list of pieces without gaps. Pieces of averaged buffers, which
travel in f32 on any wire (`codecs.Form`), come first, then the others, both in the order of names.
Every element is in exactly one slice, and no slice is empty.

The layout is a pure function of the table of tensors, the number of fragments and of shards; only
its digest is compared when a learner joins. So nothing here may differ between machines: no hash
order, no float arithmetic, no clock.

docs/algorithm.md (Fragments and shards) has the balance of fragments. A tensor that is merged by
RDA stays whole: the merge needs its norm. Parts that are just enough go to fragments that lack
some. A fragment's largest slice goes to the shard with the least, so that shards are balanced over
the whole model. Each slice gets one run of consecutive elements of each of its tensors.
"""

import hashlib
import heapq
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError, require
from atoll_protos.transfer.codecs import Form

AVERAGE: Final = "average"  # of buffers: plain mean in f32, which no outer optimizer extrapolates
MERGES: Final = ("rda", "mean", AVERAGE)
DTYPES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
TENSORS_MAX: Final = 100_000
DIMENSIONS_MAX: Final = 512  # of a tensor; its elements are their product
ELEMENTS_MAX: Final = 1 << 42  # of a model, 4.4e12: more is a mistake or an attack
PARTS_OF_A_SLICE: Final = 8  # how finely tensors that may be cut fill up the others


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the model. `merge` is one of MERGES (rule 18). Raises SpecError."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    merge: str

    def __post_init__(self) -> None:
        field, dimensions, dtypes = f"tensor {self.name}", len(self.shape), ", ".join(DTYPES)
        merges = f"use one of {', '.join(MERGES)}"
        require(self.merge in MERGES, field, f"merge {self.merge!r}", merges)
        require(self.dtype in DTYPES, field, f"dtype {self.dtype} is unknown", f"use {dtypes}")
        fits = dimensions <= DIMENSIONS_MAX
        require(fits, field, f"has {dimensions} dimensions", f"use at most {DIMENSIONS_MAX}")
        leave = "leave it out of the model"
        require(min(self.shape, default=1) > 0, field, "has no elements", leave)

    @property
    def element_count(self) -> int:
        return math.prod(self.shape)

    @property
    def row_elements(self) -> int:
        """Elements of one index of the first dimension: where the tensor may be cut."""
        may_be_cut = self.merge != "rda" and len(self.shape) > 1
        return self.element_count // self.shape[0] if may_be_cut else self.element_count


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Elements start..stop of tensor number `tensor`, at `offset` in its slice."""

    tensor: int
    start: int
    stop: int
    offset: int

    @property
    def element_count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a fragment that one shard owns: pieces of averaged buffers, then the others."""

    fragment: int
    shard: int
    pieces: tuple[Piece, ...]
    form: Form

    @property
    def element_count(self) -> int:
        return self.form.element_count


@dataclass(frozen=True)
class Layout:
    """The model's tensors spread over fragments and shards; equal in every process."""

    tensors: tuple[TensorSpec, ...]
    fragments: int
    shards: int
    slices: tuple[Slice, ...]  # by shard, then fragment

    def slice(self, shard: int, fragment: int) -> Slice:
        return self.slices[shard * self.fragments + fragment]

    def final_encoding(self, owned: Slice, base: pb.Encoding) -> pb.Encoding:
        """How a slice's last version travels: F32 if wider than bf16, else `base` (rule 17)."""
        wide = any(self.tensors[piece.tensor].dtype != "bfloat16" for piece in owned.pieces)
        return pb.F32 if wide else base

    def shard_slices(self, shard: int) -> tuple[Slice, ...]:
        return self.slices[shard * self.fragments : (shard + 1) * self.fragments]

    @cached_property
    def digest(self) -> str:
        slices = [
            [s.fragment, s.shard, [[p.tensor, p.start, p.stop] for p in s.pieces]]
            for s in self.slices
        ]
        table = [[t.name, t.shape, t.dtype, t.merge] for t in self.tensors]
        form = [table, self.fragments, self.shards, slices]
        return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode()).hexdigest()

    def to_model(self) -> pb.Model:
        tensors = [
            pb.Tensor(name=t.name, shape=t.shape, dtype=t.dtype, merge=t.merge)
            for t in self.tensors
        ]
        return pb.Model(tensors=tensors, layout_digest=self.digest)


def from_model(model: pb.Model, lay_out: Callable[[Sequence[TensorSpec]], Layout]) -> Layout:
    """Return the layout that `lay_out` (RunFile.layout) gives to a table. Raises SpecError."""
    if len(model.tensors) > TENSORS_MAX:
        raise SpecError(
            "model", f"{len(model.tensors)} tensors", f"use at most {TENSORS_MAX} tensors"
        )
    tensors = [
        TensorSpec(
            name=t.name, shape=tuple(t.shape[: DIMENSIONS_MAX + 1]), dtype=t.dtype, merge=t.merge
        )
        for t in model.tensors
    ]
    elements = sum(tensor.element_count for tensor in tensors)
    if elements > ELEMENTS_MAX:
        raise SpecError("model", f"{elements} elements", f"use at most {ELEMENTS_MAX} elements")
    layout = lay_out(tensors)
    if layout.digest != model.layout_digest:
        raise SpecError("model", "the layout digest differs", "run one version of Atoll everywhere")
    return layout


def specs_of(table: Iterable[Mapping[str, Any]]) -> list[TensorSpec]:
    """Return the tensors of a table as a log has it. Raises SpecError."""
    try:
        specs = [TensorSpec(**{**each, "shape": tuple(each["shape"])}) for each in table]
        if all(isinstance(n, int) for spec in specs for n in spec.shape):
            return sorted(specs, key=lambda each: each.name)
    except (TypeError, KeyError) as error:
        raise SpecError("model", f"no table of tensors: {error!r}", "restore the log") from error
    raise SpecError("model", "a shape that is no whole numbers", "restore the log")


def build_layout(tensors: Iterable[TensorSpec], fragments: int, shards: int) -> Layout:
    """Raise SpecError where the model has too few parts for that many slices."""
    table = tuple(sorted(tensors, key=lambda tensor: tensor.name))
    if any(one.name == other.name for one, other in pairwise(table)):
        raise SpecError("model", "two tensors have one name", "name each tensor once")
    parts = _parts(table, fragments * shards)
    if len(parts) < shards:
        raise SpecError(
            "syncer.shards",
            f"{shards} shards need {shards} parts, the model has {len(parts)}",
            "use fewer syncer.shards",
        )
    if len(parts) < fragments * shards:
        raise SpecError(
            "sync.fragments",
            f"{fragments} fragments on {shards} shards need {fragments * shards} parts, "
            f"the model has {len(parts)}",
            "use auto, which takes as many as fit, or fewer fragments or syncer.shards",
        )
    bins: dict[tuple[int, int], list[_Part]] = {}
    loads = [0] * shards
    for fragment, in_fragment in enumerate(_spread(parts, fragments, shards)):
        by_load = sorted(range(shards), key=lambda shard: loads[shard])
        by_size = sorted(_spread(in_fragment, shards, 1), key=_size, reverse=True)
        for shard, on_shard in zip(by_load, by_size, strict=True):  # largest to the least loaded
            bins[shard, fragment] = on_shard
            loads[shard] += _size(on_shard)
    return Layout(table, fragments, shards, _cut(bins, table))


def fragments_that_fit(tensors: Iterable[TensorSpec], shards: int, fragments_max: int) -> int:
    """At most `fragments_max`; 1 where not even that fits, and `build_layout` says so."""
    table = tuple(sorted(tensors, key=lambda tensor: tensor.name))
    return next(
        (
            fragments
            for fragments in range(fragments_max, 1, -1)
            if len(_parts(table, fragments * shards)) >= fragments * shards
        ),
        1,
    )


class _Part(NamedTuple):
    """Some rows of a tensor, not yet which. Sorts as the greedy balance takes it."""

    minus_elements: int
    tensor: int  # by name


def _size(parts: Iterable[_Part]) -> int:
    return -sum(part.minus_elements for part in parts)


def _parts(table: Sequence[TensorSpec], bins: int) -> list[_Part]:
    fine = max(1, sum(tensor.element_count for tensor in table) // (bins * PARTS_OF_A_SLICE))
    parts = []
    for number, tensor in enumerate(table):
        row = tensor.row_elements
        rows = tensor.element_count // row
        cuts = min(rows, -(-tensor.element_count // fine))
        edges = (rows * cut // cuts * row for cut in range(cuts + 1))
        parts += [_Part(start - stop, number) for start, stop in pairwise(edges)]
    return sorted(parts)


def _spread(parts: Sequence[_Part], bins: int, parts_min: int) -> list[list[_Part]]:
    """Greedy balance, largest part first, ties by name; each bin gets at least `parts_min`."""
    filled: list[list[_Part]] = [[] for _ in range(bins)]
    heap = [(0, number) for number in range(bins)]
    missing = bins * parts_min
    for left, part in zip(range(len(parts), 0, -1), parts, strict=True):
        while left == missing and len(filled[heap[0][1]]) >= parts_min:
            heapq.heappop(heap)  # what is left is just enough for the bins that lack some
        size, number = heap[0]
        filled[number].append(part)
        missing -= len(filled[number]) <= parts_min
        heapq.heapreplace(heap, (size - part.minus_elements, number))
    return filled


def _cut(
    bins: Mapping[tuple[int, int], Iterable[_Part]], table: Sequence[TensorSpec]
) -> tuple[Slice, ...]:
    """Say which rows: each slice gets one run of each of its tensors, averaged ones first."""
    cut = [0] * len(table)  # elements given away, by tensor
    slices = []
    for (shard, fragment), parts in sorted(bins.items()):
        elements: dict[int, int] = {}
        for part in parts:
            elements[part.tensor] = elements.get(part.tensor, 0) - part.minus_elements
        averaged = [tensor for tensor in sorted(elements) if table[tensor].merge == AVERAGE]
        others = [tensor for tensor in sorted(elements) if table[tensor].merge != AVERAGE]
        offset, pieces = 0, []
        for tensor in (*averaged, *others):
            count = elements[tensor]
            pieces.append(Piece(tensor, cut[tensor], cut[tensor] + count, offset))
            cut[tensor] += count
            offset += count
        exact = sum(elements[tensor] for tensor in averaged)
        slices.append(Slice(fragment, shard, tuple(pieces), Form(exact, offset - exact)))
    return tuple(slices)
