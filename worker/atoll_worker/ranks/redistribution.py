"""Moves the values of a slice between the head and the other ranks of a learner; collective.

What FSDP2, tensor parallelism and the like give to a rank is a *box* of a tensor: in each dimension
a range of indices, as DTensor says it. Of other tensors a rank holds all. Ranks that hold the same
box are replicas. The boxes of a tensor must tile it: an element that nobody holds would never be
trained, and one in two boxes has two values.

A slice is a flat array on the head: its pieces one after another, each some rows of a tensor or all
of it (layout.py). A *block* is what a rank holds of a piece, so a box again: a narrower view of the
rank's shard on one side, of the piece on the other, and one copy between them.

*Upwards* the lowest of the replicas gives a block to the head. *Downwards* all holders get it: they
differ for floating-point buffers, such as running means, and are equal from then on. A rank packs
what it gives into one flat buffer, by receiver, and one `all_to_all_single` moves it. Both ends
list the blocks in the order of the pieces, and so find the same list. What every rank holds whole
(DistributedDataParallel) the head has already, and it goes down by a broadcast. All values travel
as f32, which is exact for every dtype that travels. Work on a device is put in line on the current
stream, between the optimizer's step and the next forward. (`DTensor.full_tensor` gives all of a
tensor to every rank: on two to four ranks of a CPU it takes two to four times as long.)

FSDP2 swaps the parameters of its modules: between forward and backward, and after an evaluation
until the next forward, a module's attributes are whole, plain tensors. What is written into those
is lost. So the modules are told to `reshard` before anything is read or written.

`together` is one step of an opening on all ranks: all go on, or all are refused in the same words.
A rank that raised by itself would leave the others waiting in their next collective.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Piece, Slice, TensorSpec
from atoll_protos.transfer.codecs import Packed
from atoll_worker.link import messages
from atoll_worker.link.messages import known
from atoll_worker.ranks.control import HEAD

RANKS_NAMED_MAX: Final = 8  # of those that an error names


@known
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


@known
@dataclass(frozen=True, slots=True)
class Held:
    """What one rank says of one tensor: `box` is None where its shard has no elements."""

    spec: TensorSpec
    box: Box | None


Holders = Mapping[Box, tuple[int, ...]]  # of a tensor's boxes: the ranks, in ascending order


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The tensors of all ranks, sorted by name, and who holds what of each."""

    ranks: int
    specs: tuple[TensorSpec, ...]
    holders: tuple[Holders, ...]

    def is_replicated(self, tensor: int) -> bool:
        return [len(ranks) for ranks in self.holders[tensor].values()] == [self.ranks]


@dataclass(frozen=True, slots=True)
class Block:
    """What `ranks` hold of a piece: `box` of the tensor, which is in the box `held`."""

    piece: Piece
    box: Box
    held: Box
    ranks: tuple[int, ...]


def blocks_of(table: BlockTable, owned: Slice) -> Iterator[Block]:
    """All blocks of a slice, in the order of its pieces."""
    for piece in owned.pieces:
        rows = rows_of(piece, table.specs[piece.tensor].shape)
        for held, ranks in table.holders[piece.tensor].items():
            if not rows:  # one number
                yield Block(piece, held, held, ranks)
                continue
            first = max(rows[0], held.offsets[0])
            count = min(rows[1], held.offsets[0] + held.sizes[0]) - first
            if count > 0:
                box = Box((first, *held.offsets[1:]), (count, *held.sizes[1:]))
                yield Block(piece, box, held, ranks)


def rows_of(piece: Piece, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices of the first dimension where a piece begins and ends; none of a number."""
    row = prod(shape[1:])
    return (piece.start // row, piece.stop // row) if shape else ()


def union(said: Sequence[Sequence[Held]]) -> BlockTable:
    """Return a learner's table from those of its ranks; `said[rank]` has a name at most once.

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
    known: set[object] = set()  # most tensors of a model are held like some other
    table = tuple(specs[name][0] for name in sorted(specs))
    of_all: list[Holders] = [
        {box: tuple(ranks) for box, ranks in boxes[spec.name].items()} for spec in table
    ]
    for spec, shares in zip(table, of_all, strict=True):
        if (key := (spec.shape, *shares)) not in known:
            _check_tiling(spec, shares)
            known.add(key)
    return BlockTable(len(said), table, tuple(of_all))


def untrained() -> SpecError:
    return SpecError("model", "has no trainable parameter", "give the model that is trained")


def _disagreement(one: TensorSpec, rank: int, other: TensorSpec, other_rank: int) -> SpecError:
    attributes = {"shape": "shape", "dtype": "dtype", "merge": "way of merging"}
    key = next(
        attribute
        for attribute in attributes
        if getattr(one, attribute) != getattr(other, attribute)
    )
    said = f"{getattr(one, key)} on rank {rank}, {getattr(other, key)} on {other_rank}"
    problem = f"the ranks disagree about its {attributes[key]}: {said}"
    remedy = "build the same model on every rank; give different tensors different names"
    return SpecError(f"model.{one.name}", problem, remedy)


def _check_tiling(spec: TensorSpec, shares: Holders) -> None:
    """Raise SpecError if the boxes do not tile the tensor."""
    starts = np.array([box.offsets for box in shares], dtype=np.int64)
    stops = starts + np.array([box.sizes for box in shares], dtype=np.int64)
    filled = sum(box.element_count for box in shares) == prod(spec.shape)
    if filled and not (stops > spec.shape).any():
        pairs = zip(starts, stops, strict=True)
        meets = (((starts < stop) & (stops > start)).all(axis=1) for start, stop in pairs)
        if all(meet.sum() == 1 for meet in meets):
            return

    def described(box: Box, ranks: Sequence[int]) -> str:
        pairs = zip(box.offsets, box.sizes, strict=True)
        ranges = ", ".join(f"{start}:{start + size}" for start, size in pairs)
        return f"[{ranges}] on rank {', '.join(map(str, ranks[:RANKS_NAMED_MAX]))}"

    shown = "; ".join(described(*share) for share in [*shares.items()][:RANKS_NAMED_MAX])
    raise SpecError(
        f"model.{spec.name}",
        f"the shards of the ranks do not make up the tensor {spec.shape} ({shown or 'none'})",
        "shard it by DTensor placements that divide it, and give the Learner all modules that a"
        " rank has; or freeze it",
    )


FSDP = "torch.distributed.fsdp"
DTENSOR = "torch.distributed.tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class TravellingTensor:
    """`spec` is of the whole tensor. The module is kept, since code may replace `module.weight`."""

    module: nn.Module
    attribute: str
    spec: TensorSpec

    @property
    def tensor(self) -> Tensor:
        return getattr(self.module, self.attribute).detach()  # type: ignore[no-any-return]


def check_module(model: nn.Module) -> None:
    """Refuse what is sharded in a way without a shape. Raises SpecError that names the module."""
    flat = _class(FSDP, "FullyShardedDataParallel")
    for name, module in model.named_modules():
        if flat is not None and isinstance(module, flat):
            raise SpecError(
                f"model.{name}" if name else "model",
                "is wrapped in FullyShardedDataParallel (FSDP1), whose flat parameters have lost"
                " the shapes of the tensors",
                "shard it by torch.distributed.fsdp.fully_shard (FSDP2)",
            )


def sharded_modules(models: Iterable[nn.Module]) -> tuple[Any, ...]:
    kind = _class(FSDP, "FSDPModule")
    if kind is None:
        return ()
    return tuple(
        module for model in models for module in model.modules() if isinstance(module, kind)
    )


def reshard(modules: Sequence[Any]) -> None:
    for module in modules:
        module.reshard()


def note_written(modules: Sequence[Any]) -> None:
    """Parameters were written on the current stream, for which FSDP2's next forward waits.

    With `set_post_optim_event` it waits for an event, which is then too early and recorded anew.
    """
    for module in modules:
        state = module._get_fsdp_state()._state_ctx
        if state.post_optim_event is not None:
            module.set_post_optim_event(torch.cuda.current_stream().record_event())


@torch.no_grad()
def shard_of(place: TravellingTensor) -> Tensor:
    """Return what this process holds of a tensor, as a plain tensor in the same memory."""
    return shard(getattr(place.module, place.attribute)).detach()


def shard(tensor: Any) -> Tensor:
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[no-any-return]


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor; the module is not imported for that, since it takes long."""
    kind = _class(DTENSOR, "DTensor")
    return kind is not None and isinstance(tensor, kind)


def held(places: Sequence[TravellingTensor]) -> tuple[Held, ...]:
    """Return this rank's table. SpecError: a shard is no box, or a name comes twice."""
    names = set[str]()
    for place in places:
        if place.spec.name in names:
            problem = "two tensors of this rank have this name"
            remedy = "name each tensor once, also where the model is given in parts"
            raise SpecError(f"model.{place.spec.name}", problem, remedy)
        names.add(place.spec.name)
    return tuple(Held(place.spec, _box(place)) for place in places)


def _box(place: TravellingTensor) -> Box | None:
    tensor: Any = getattr(place.module, place.attribute)
    if not is_distributed(tensor):
        return whole(place.spec.shape)
    placements = ", ".join(map(str, tensor.placements))
    field = f"model.{place.spec.name}"
    remedy = "shard it by Shard and Replicate"
    if any(placement.is_partial() for placement in tensor.placements):
        raise SpecError(field, f"is a partial sum ({placements}), which no rank has", remedy)
    chunks = tensor.__create_chunk_list__()
    shape = tuple(shard_of(place).shape)
    if len(chunks) != 1:
        raise SpecError(field, f"has {len(chunks)} shards on one rank ({placements})", remedy)
    box = Box(tuple(chunks[0].offsets), tuple(chunks[0].sizes))
    if not prod(box.sizes) and not prod(shape):
        return None
    if box.sizes != shape:
        problem = f"has a shard of shape {shape}, not {box.sizes} ({placements})"
        raise SpecError(field, problem, remedy)
    return box


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


T = TypeVar("T")


def together(group: dist.ProcessGroup | None, make: Callable[[], T]) -> list[T]:
    """Return what `make` returns on every rank of the group, by rank; None is the default group.

    Collective. Where `make` raises SpecError on some rank, the first is raised on all; it says on
    which rank, unless all have the same to say.
    """
    mine: dict[str, object]
    try:
        mine = {"made": make()}
    except SpecError as error:
        mine = {"refused": (error.field, error.problem, error.remedy)}
    gathered = _gathered(messages.encode(mine), group)
    said: list[dict[str, Any]] = [messages.decode(each) for each in gathered]
    refused = {rank: each["refused"] for rank, each in enumerate(said) if "refused" in each}
    if refused:
        rank, (field, problem, remedy) = next(iter(refused.items()))
        everywhere = len(refused) == len(said) and len(set(refused.values())) == 1
        raise SpecError(field, problem if everywhere else f"rank {rank}: {problem}", remedy)
    return [each["made"] for each in said]


def _gathered(mine: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    """Return the bytes of every rank, by rank. Collective."""
    ranks = range(dist.get_world_size(group))
    lengths = [torch.empty(1, dtype=torch.int64) for _ in ranks]
    dist.all_gather(lengths, torch.tensor([len(mine)]), group=group)
    rooms = [torch.empty(int(max(lengths)), dtype=torch.uint8) for _ in ranks]
    padded = torch.frombuffer(bytearray(mine.ljust(len(rooms[0]))), dtype=torch.uint8)
    dist.all_gather(rooms, padded, group=group)
    return [bytes(room[:length].numpy()) for room, length in zip(rooms, lengths, strict=True)]


Pairs = Sequence[tuple[Tensor, Tensor]]  # (view of this rank's shard, values of equal shape)


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What this rank copies for a slice: its own blocks, and those of each other rank's exchange.

    `up` and `down` are by rank: on the head those of the others, on these their own for the head.
    """

    own: Sequence[Block]  # on the head; none where there is one rank with everything
    up: Sequence[Sequence[Block]]
    down: Sequence[Sequence[Block]]
    replicated: bool  # every rank holds all of it


def plan_of(table: BlockTable, owned: Slice, rank: int) -> SlicePlan:
    up: list[list[Block]] = [[] for _ in range(table.ranks)]
    down: list[list[Block]] = [[] for _ in range(table.ranks)]
    own = []
    for block in blocks_of(table, owned):
        if rank in block.ranks:
            own.append(block)
        for holder in block.ranks:
            other = holder if rank == HEAD else HEAD
            if holder != HEAD and rank in (HEAD, holder):
                down[other].append(block)
                if holder == block.ranks[0]:
                    up[other].append(block)
    replicated = all(table.is_replicated(piece.tensor) for piece in owned.pieces)
    return SlicePlan(own, up, down, replicated)


@dataclass(slots=True, kw_only=True)
class Redistribution:
    """Between the ranks of one learner; `places` are this rank's, by number in `table.specs`."""

    places: Mapping[int, TravellingTensor]
    table: BlockTable
    sharded: Sequence[object]  # modules of FSDP2
    group: dist.ProcessGroup | None
    rank: int
    device: torch.device
    plans: dict[tuple[int, int], SlicePlan] = field(default_factory=dict)

    def empty(self, owned: Slice) -> Tensor | None:
        """f32[elements of the slice], to be filled, on the head."""
        return self._floats(owned.element_count) if self.rank == HEAD else None

    @torch.no_grad()
    def gather(self, owned: Slice) -> Tensor | None:
        """f32[elements of the slice] on the head, else None. Collective."""
        reshard(self.sharded)
        plan, values = self._plan(owned), self.empty(owned)
        if values is None:
            if not plan.replicated:
                self._swap(plan.up, [], [self._held(block) for block in plan.up[HEAD]])
            return None
        for block in plan.own:
            self._part_of(values, block).copy_(self._held(block))
        if not plan.replicated:
            for block, value in self._swap([], plan.up, []):
                self._part_of(values, block).copy_(value)
        return values

    @torch.no_grad()
    def deal(self, owned: Slice, values: Tensor | None) -> Pairs:
        """Give the values of a slice, which the head has, to all who hold some of it. Collective.

        Returns pairs of (a view of what is held here, the values for it).
        """
        reshard(self.sharded)
        plan = self._plan(owned)
        if plan.replicated:
            values = self._floats(owned.element_count) if values is None else values
            dist.broadcast(values, group=self.group, group_src=HEAD)
        elif values is None:
            found = self._swap([], plan.down, [])
        else:
            others = [block for blocks in plan.down for block in blocks]
            self._swap(plan.down, [], [self._part_of(values, block) for block in others])
        if values is not None:
            found = [(block, self._part_of(values, block)) for block in plan.own]
        return [(self._held(block), value) for block, value in found]

    def written(self) -> None:
        """Note that what `deal` returned is assigned, or queued on the current stream."""
        if self.device.type == "cuda":
            note_written(self.sharded)

    def _plan(self, owned: Slice) -> SlicePlan:
        key = owned.shard, owned.fragment
        if key not in self.plans:
            self.plans[key] = plan_of(self.table, owned, self.rank)
        return self.plans[key]

    def _swap(
        self,
        gives: Sequence[Sequence[Block]],
        takes: Sequence[Sequence[Block]],
        outgoing: Sequence[Tensor],
    ) -> list[tuple[Block, Tensor]]:
        """Give `outgoing`, and take the blocks that come with their values. Collective."""
        counts = [self._counts(gives), self._counts(takes)]
        packed, arrived = (self._floats(sum(count)) for count in counts)
        places = torch.split(packed, [value.numel() for value in outgoing])
        for place, value in zip(places, outgoing, strict=True):
            place.view(value.shape).copy_(value)
        dist.all_to_all_single(arrived, packed, counts[1], counts[0], group=self.group)
        blocks = [block for theirs in takes for block in theirs]
        values = torch.split(arrived, [block.box.element_count for block in blocks])
        return [(b, value.view(b.box.sizes)) for b, value in zip(blocks, values, strict=True)]

    def _counts(self, by_rank: Sequence[Sequence[Block]]) -> list[int]:
        """Elements that go to or come from each rank."""
        counts = [sum(block.box.element_count for block in blocks) for blocks in by_rank]
        return counts or [0] * self.table.ranks

    def _held(self, block: Block) -> Tensor:
        """Return the block as a view of this rank's shard."""
        tensor = shard_of(self.places[block.piece.tensor])
        return _inside(tensor, block.box, block.held.offsets)

    def _part_of(self, values: Tensor, block: Block) -> Tensor:
        """Return the block as a view of the values of its slice."""
        piece, shape = block.piece, self.table.specs[block.piece.tensor].shape
        part = values[piece.offset : piece.offset + piece.element_count]
        if not shape:
            return part.view(())
        first = rows_of(piece, shape)[0]
        return _inside(part.view(-1, *shape[1:]), block.box, (first, *(0 for _ in shape[1:])))

    def _floats(self, element_count: int) -> Tensor:
        return torch.empty(element_count, dtype=torch.float32, device=self.device)


def _inside(tensor: Tensor, box: Box, offsets: Sequence[int]) -> Tensor:
    """Return a box of a tensor that begins at `offsets`, as a view."""
    for dim, (first, start, size) in enumerate(zip(box.offsets, offsets, box.sizes, strict=True)):
        if size != tensor.shape[dim]:
            tensor = tensor.narrow(dim, first - start, size)
    return tensor


def open_exchange(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    *,
    group: dist.ProcessGroup | None,
    control: dist.ProcessGroup | None,
) -> Redistribution:
    """Return the exchange between the ranks of `group`; None is the default group. Collective.

    `places` are those of all `models` of this rank; a frozen stage of a pipeline has none.
    `control` has the same ranks and carries objects of the CPU. Raises SpecError on every rank if
    no rank has places, a shard is no box, the ranks disagree about a tensor, or what they hold does
    not tile it.
    """
    own = shard_of(places[0]).device if places else None
    sharded = sharded_modules(models)

    def say() -> tuple[tuple[Held, ...], str]:
        reshard(sharded)
        if own is None:
            return (), ""
        _check_group(group, own)
        return held(places), own.type

    said = together(control, say)
    table = union([tensors for tensors, _ in said])
    kind = next(kind for _, kind in said if kind)
    numbers = {spec.name: number for number, spec in enumerate(table.specs)}
    return Redistribution(
        places={numbers[place.spec.name]: place for place in places},
        table=table,
        sharded=sharded,
        group=group,
        rank=dist.get_rank(group),
        device=own or _device_among(models, kind),
    )


def flat_pairs(values: Tensor, region: Packed[Tensor]) -> Pairs:
    """Return values of a whole slice and the region that they are copied to or from, by dtype."""
    exact = region.form.exact
    parts = (values[:exact], region.exact), (values[exact:], region.coded)
    return [(value, part) for value, part in parts if value.numel()]


def _device_among(models: Sequence[nn.Module], kind: str) -> torch.device:
    """Where a rank without places has values that it owns: on `kind`, as all other ranks."""
    tensors = (t for model in models for t in (*model.parameters(), *model.buffers()))
    devices = (shard(tensor).device for tensor in tensors)
    current = torch.empty(0, device=kind).device
    return next((device for device in devices if device.type == kind), current)


def _check_group(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raise SpecError if the group cannot move tensors of the device."""
    backends = dist.get_backend_config(group)
    kinds = [word.split(":")[0] for word in backends.split(",")]
    if device.type not in kinds:
        problem = f"the model is on {device}, the process group is for {backends}"
        remedy = "call init_process_group() without a backend, or give a group for the device"
        raise SpecError("Learner", problem, remedy)
