"""Moves the values of a slice between the ranks of a learner, in both directions; both collective.

A rank packs what it gives into one flat buffer, by receiver, and one `all_to_all_single` moves it.
Of a slice that every rank holds whole (DistributedDataParallel) the owner has everything, and it
goes down by a broadcast. All values travel as f32, which is exact for every dtype that travels.
Work on a device is put in line on the current stream, between the optimizer's step and the next
forward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import AVERAGE, Slice
from atoll_protos.transfer.codecs import Packed
from atoll_protos.transfer.division import part_edges
from atoll_worker.ranks import blocks, boxes
from atoll_worker.ranks.blocks import BlockTable, Held, Moves, TensorBlock
from atoll_worker.ranks.boxes import TravellingTensor, reshard, shard_of
from atoll_worker.ranks.owners import HEAD
from atoll_worker.ranks.together import together

Pairs = Sequence[tuple[Tensor, Tensor]]  # (view of this rank's shard, values of equal shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """What one rank does for one slice."""

    up: Moves
    down: Moves
    replicated: bool  # every rank holds all of it
    exact: bool  # its owner has all that it needs
    edges: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Redistribution:
    """Between the ranks of one learner; `places` are this rank's, by number in `table.specs`."""

    places: Mapping[int, TravellingTensor]
    table: BlockTable
    sharded: Sequence[object]  # modules of FSDP2
    group: dist.ProcessGroup | None
    rank: int
    owners: tuple[int, ...]  # of the parts of a slice
    device: torch.device
    plans: dict[tuple[int, int], SlicePlan] = field(default_factory=dict)

    def empty(self, owned: Slice) -> Tensor | None:
        """f32[elements of the part], to be filled, on the owner of a part of the slice."""
        if self.rank not in self.owners:
            return None
        part = self.owners.index(self.rank)
        start, stop = self._plan(owned).edges[part : part + 2]
        return self._floats(stop - start)

    @torch.no_grad()
    def gather(self, owned: Slice) -> Tensor | None:
        """f32[elements of the part] of a slice on the owner of a part, else None. Collective."""
        reshard(self.sharded)
        plan = self._plan(owned)
        moves = plan.up
        values = self.empty(owned)
        if values is not None:
            for block in moves.takes[self.rank]:
                self._part_of(values, block).copy_(self._own(block))
        if not plan.exact:
            outgoing = [self._own(block) for block in self._others(moves.gives)]
            for block, value in self._swap(moves, outgoing):
                assert values is not None
                self._part_of(values, block).copy_(value)
        return values

    @torch.no_grad()
    def deal(self, owned: Slice, values: Tensor | None) -> tuple[Pairs, list[bool]]:
        """Bring the values of a slice (on owners those of the own part) to all who hold some of it.

        Collective. Returns pairs of (a view of what is held here, the values for it), and of each
        whether it is of an averaged buffer.
        """
        reshard(self.sharded)
        plan = self._plan(owned)
        moves = plan.down
        found: list[tuple[TensorBlock, Tensor]] = []
        if plan.replicated:
            for owner, (start, stop) in zip(self.owners, pairwise(plan.edges), strict=True):
                part = values if owner == self.rank else self._floats(stop - start)
                assert part is not None
                dist.broadcast(part, group=self.group, group_src=owner)
                found += [(block, self._part_of(part, block)) for block in moves.takes[owner]]
        else:
            outgoing = []
            for block in self._others(moves.gives):
                assert values is not None
                outgoing.append(self._part_of(values, block))
            found = self._swap(moves, outgoing)
            for block in moves.takes[self.rank]:
                assert values is not None
                found.append((block, self._part_of(values, block)))
        pairs = [(self._own(block), value) for block, value in found]
        return pairs, [self.table.specs[block.tensor].merge == AVERAGE for block, _ in found]

    def written(self) -> None:
        """What `deal` has returned is assigned, or put in line on the current stream."""
        if self.device.type == "cuda":
            boxes.note_written(self.sharded)

    def _plan(self, owned: Slice) -> SlicePlan:
        key = owned.shard, owned.fragment
        if key not in self.plans:
            tensors = {piece.tensor for piece in owned.pieces}
            replicated = all(map(self.table.is_replicated, tensors))
            self.plans[key] = SlicePlan(
                up=blocks.upwards(self.table, owned, self.owners, self.rank),
                down=blocks.downwards(self.table, owned, self.owners, self.rank),
                replicated=replicated,
                exact=replicated and (not owned.form.exact or self.owners == (HEAD,)),
                edges=part_edges(owned.form, len(self.owners)),
            )
        return self.plans[key]

    def _others(self, by_rank: Sequence[Sequence[TensorBlock]]) -> list[TensorBlock]:
        return [
            block for rank, theirs in enumerate(by_rank) if rank != self.rank for block in theirs
        ]

    def _swap(self, moves: Moves, outgoing: Sequence[Tensor]) -> list[tuple[TensorBlock, Tensor]]:
        """Give `outgoing`, and take the blocks that come with their values. Collective."""
        gives, takes = self._counts(moves.gives), self._counts(moves.takes)
        packed, arrived = self._floats(sum(gives)), self._floats(sum(takes))
        position = 0
        for value in outgoing:
            packed[position : position + value.numel()].view(value.shape).copy_(value)
            position += value.numel()
        dist.all_to_all_single(arrived, packed, takes, gives, group=self.group)
        found, position = [], 0
        for block in self._others(moves.takes):
            stop = position + block.box.element_count
            found.append((block, arrived[position:stop].view(block.box.sizes)))
            position = stop
        return found

    def _counts(self, by_rank: Sequence[Sequence[TensorBlock]]) -> list[int]:
        """Elements that go to or come from each rank; none of the own ones."""
        counts = [sum(block.box.element_count for block in theirs) for theirs in by_rank]
        counts[self.rank] = 0
        return counts

    def _own(self, block: TensorBlock) -> Tensor:
        """The block as a view of this rank's shard."""
        tensor = shard_of(self.places[block.tensor])
        inside = self.table.tilings[block.tensor].of_rank[self.rank].box
        for dim, (offset, size) in enumerate(zip(block.box.offsets, block.box.sizes, strict=True)):
            if size != tensor.shape[dim]:
                tensor = tensor.narrow(dim, offset - inside.offsets[dim], size)
        return tensor

    def _part_of(self, part: Tensor, block: TensorBlock) -> Tensor:
        shape = self.table.specs[block.tensor].shape
        first = part.storage_offset() + block.at
        return part.as_strided(block.box.sizes, blocks.strides(shape), first)

    def _floats(self, element_count: int) -> Tensor:
        return torch.empty(element_count, dtype=torch.float32, device=self.device)


def open_exchange(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    *,
    group: dist.ProcessGroup | None,
    control: dist.ProcessGroup | None,
    owners: tuple[int, ...] = (HEAD,),
) -> Redistribution:
    """The exchange between the ranks of `group`; None is the default group. Collective.

    `places` are those of all `models` of this rank; a frozen stage of a pipeline has none.
    `control` has the same ranks and carries objects of the CPU. Raises SpecError on every rank if
    no rank has places, a shard is no box, the ranks disagree about a tensor, or what they hold does
    not tile it.
    """
    own = shard_of(places[0]).device if places else None
    sharded = boxes.sharded_modules(models)

    def say() -> tuple[tuple[Held, ...], str]:
        reshard(sharded)
        if own is None:
            return (), ""
        _check_group(group, own)
        return boxes.held(places), own.type

    said = together(control, say)
    table = blocks.union([tensors for tensors, _ in said])
    kind = next(kind for _, kind in said if kind)
    numbers = {spec.name: number for number, spec in enumerate(table.specs)}
    return Redistribution(
        places={numbers[place.spec.name]: place for place in places},
        table=table,
        sharded=sharded,
        group=group,
        rank=dist.get_rank(group),
        owners=owners,
        device=own or _device_among(models, kind),
    )


def flat_pairs(values: Tensor, region: Packed[Tensor]) -> Pairs:
    """The values of a whole slice and the region that they are copied to or from, by dtype."""
    exact = region.form.exact
    parts = (values[:exact], region.exact), (values[exact:], region.coded)
    return [(value, part) for value, part in parts if value.numel()]


def _device_among(models: Sequence[nn.Module], kind: str) -> torch.device:
    """Where a rank without places has values that it owns: on `kind`, as all other ranks."""
    tensors = (t for model in models for t in (*model.parameters(), *model.buffers()))
    devices = (boxes.shard(each).device for each in tensors)
    current = torch.empty(0, device=kind).device
    return next((device for device in devices if device.type == kind), current)


def _check_group(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raises SpecError if the group cannot move tensors of the device."""
    backends = dist.get_backend_config(group)
    kinds = [each.split(":")[0] for each in backends.split(",")]
    if device.type not in kinds:
        problem = f"the model is on {device}, the process group is for {backends}"
        remedy = "call init_process_group() without a backend, or give a group for the device"
        raise SpecError("Learner", problem, remedy)
