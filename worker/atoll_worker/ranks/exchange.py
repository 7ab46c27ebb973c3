"""Moves the values of a slice between the ranks of a learner, in both directions.

`gather` brings a slice to its owners, `deal` brings it to all who hold something of it. Both are
collective: all ranks call them for the same slices in the same order. Which blocks go where is
computed by every rank for itself (parts.py says how), so no message says what is in the others.

A rank packs what it gives into one flat buffer, by receiver, and one `all_to_all_single` moves it.
What a rank gives to itself is copied without that. Two cases need less: of a slice that every rank
holds whole (DistributedDataParallel) the owner has everything, and it goes down by a broadcast.

All values travel as f32. That is exact for every dtype that travels, and it is what the head reads
and writes. Work on a device is put in line on the current stream, behind the optimizer's step and
before the next forward, as that of `training/staging.py` is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll_protos.codecs import Packed
from atoll_protos.errors import SpecError
from atoll_protos.layout import AVERAGE, Slice
from atoll_protos.parts import part_edges
from atoll_worker.ranks.boxes import (
    Placed,
    held,
    note_written,
    reshard,
    shard,
    shard_of,
    sharded_modules,
)
from atoll_worker.ranks.owners import HEAD
from atoll_worker.ranks.parts import (
    Block,
    Held,
    Moves,
    Table,
    downwards,
    strides,
    union,
    upwards,
)
from atoll_worker.ranks.together import together

Pairs = Sequence[tuple[Tensor, Tensor]]  # (view of this rank's shard, values of equal shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one rank does for one slice."""

    up: Moves
    down: Moves
    replicated: bool  # every rank holds all of it
    exact: bool  # its owner has all that it needs
    edges: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """The ranks of one learner; `places` are this rank's, by their number in `table.specs`."""

    places: Mapping[int, Placed]
    table: Table
    sharded: Sequence[object]  # modules of FSDP2
    group: dist.ProcessGroup | None
    rank: int
    owners: tuple[int, ...]  # of the parts of a slice
    device: torch.device
    plans: dict[tuple[int, int], Plan] = field(default_factory=dict)

    def empty(self, owned: Slice) -> Tensor | None:
        """f32[elements of the part], to be filled, on the owner of a part of the slice."""
        if self.rank not in self.owners:
            return None
        start, stop = self._span(owned, self.owners.index(self.rank))
        return self._floats(stop - start)

    @torch.no_grad()
    def gather(self, owned: Slice) -> Tensor | None:
        """The model's values of a slice: f32[elements of the part] on the owner of a part.

        Collective; None on the other ranks.
        """
        reshard(self.sharded)
        plan = self._plan(owned)
        moves = plan.up
        values = self.empty(owned)
        if values is not None:
            for block in moves.takes[self.rank]:
                self._part_of(values, block).copy_(self._own(block))
        if not plan.exact:
            outgoing = [self._own(block) for block in self._others(moves.gives)]
            arrived = self._swap(moves, outgoing)
            for block, value in zip(self._others(moves.takes), arrived, strict=True):
                assert values is not None
                self._part_of(values, block).copy_(value)
        return values

    @torch.no_grad()
    def deal(self, owned: Slice, values: Tensor | None) -> tuple[Pairs, list[bool]]:
        """Bring the values of a slice to all who hold something of it.

        Collective; `values` are those of the own part on an owner, and None elsewhere. Returns what
        is to be assigned on this rank, and of each pair whether it is an averaged buffer's.
        """
        reshard(self.sharded)
        plan = self._plan(owned)
        moves = plan.down
        blocks: list[Block] = []
        arrived: list[Tensor] = []
        if plan.replicated:
            for owner, (start, stop) in zip(self.owners, pairwise(plan.edges), strict=True):
                part = values if owner == self.rank else self._floats(stop - start)
                assert part is not None
                dist.broadcast(part, self._global_rank(owner), group=self.group)
                blocks += moves.takes[owner]
                arrived += [self._part_of(part, block) for block in moves.takes[owner]]
        else:
            outgoing = []
            for block in self._others(moves.gives):
                assert values is not None
                outgoing.append(self._part_of(values, block))
            arrived += self._swap(moves, outgoing)
            blocks += self._others(moves.takes)
            for block in moves.takes[self.rank]:
                assert values is not None
                blocks.append(block)
                arrived.append(self._part_of(values, block))
        pairs = [(self._own(block), value) for block, value in zip(blocks, arrived, strict=True)]
        return pairs, [self.table.specs[block.tensor].merge == AVERAGE for block in blocks]

    def written(self) -> None:
        """What `deal` has returned is assigned, or put in line on the current stream."""
        if self.device.type == "cuda":
            note_written(self.sharded)

    def _plan(self, owned: Slice) -> Plan:
        key = owned.shard, owned.fragment
        if key not in self.plans:
            tensors = {piece.tensor for piece in owned.pieces}
            replicated = all(map(self.table.is_replicated, tensors))
            self.plans[key] = Plan(
                up=upwards(self.table, owned, self.owners, self.rank),
                down=downwards(self.table, owned, self.owners, self.rank),
                replicated=replicated,
                exact=replicated and (not owned.form.exact or self.owners == (HEAD,)),
                edges=part_edges(owned.form, len(self.owners)),
            )
        return self.plans[key]

    def _span(self, owned: Slice, part: int) -> tuple[int, int]:
        edges = part_edges(owned.form, len(self.owners))
        return edges[part], edges[part + 1]

    def _others(self, by_rank: Sequence[Sequence[Block]]) -> list[Block]:
        """The blocks of all ranks but this one, by rank."""
        return [
            block for rank, blocks in enumerate(by_rank) if rank != self.rank for block in blocks
        ]

    def _swap(self, moves: Moves, outgoing: Sequence[Tensor]) -> list[Tensor]:
        """Give `outgoing`, and take the values of the blocks that come, in the order of `_others`.

        Collective.
        """
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
            found.append(arrived[position:stop].view(block.box.sizes))
            position = stop
        return found

    def _counts(self, by_rank: Sequence[Sequence[Block]]) -> list[int]:
        """Elements that go to or come from each rank; none of the own ones."""
        counts = [sum(block.box.element_count for block in blocks) for blocks in by_rank]
        counts[self.rank] = 0
        return counts

    def _own(self, block: Block) -> Tensor:
        """The block as a view of this rank's shard."""
        tensor = shard_of(self.places[block.tensor])
        inside = self.table.tilings[block.tensor].of_rank[self.rank].box
        for dim, (offset, size) in enumerate(zip(block.box.offsets, block.box.sizes, strict=True)):
            if size != tensor.shape[dim]:
                tensor = tensor.narrow(dim, offset - inside.offsets[dim], size)
        return tensor

    def _part_of(self, part: Tensor, block: Block) -> Tensor:
        """The block as a view of the values of a part."""
        shape = self.table.specs[block.tensor].shape
        first = part.storage_offset() + block.at
        return part.as_strided(block.box.sizes, strides(shape), first)

    def _floats(self, element_count: int) -> Tensor:
        return torch.empty(element_count, dtype=torch.float32, device=self.device)

    def _global_rank(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def open_exchange(
    models: Sequence[nn.Module],
    places: Sequence[Placed],
    *,
    group: dist.ProcessGroup | None,
    control: dist.ProcessGroup | None,
    owners: tuple[int, ...] = (HEAD,),
) -> Exchange:
    """The exchange between the ranks of `group`; None is the default group. Collective.

    `places` are those of all `models` of this rank, whose modules of FSDP2 are resharded. `control`
    has the same ranks and carries objects of the CPU.

    A rank may have no places (a stage of a pipeline that is frozen as a whole), for it may own
    values all the same. Raises SpecError on every rank if no rank has any; and, by the name of a
    tensor, if a shard is no box, if the ranks disagree about a tensor, or if what they hold does
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
    return Exchange(
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
    """Where a rank without places has the values that it owns: those of the others are on `kind`.

    All have to be of one kind, since the collectives of a group are chosen by it.
    """
    tensors = (t for model in models for t in (*model.parameters(), *model.buffers()))
    devices = (shard(each).device for each in tensors)
    current = torch.empty(0, device=kind).device
    return next((device for device in devices if device.type == kind), current)


def _check_group(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raises SpecError if the group cannot move tensors of the device."""
    backends = dist.get_backend_config(group)
    kinds = [each.split(":")[0] for each in backends.split(",")]
    if device.type not in kinds:
        raise SpecError(
            "Learner",
            f"the model is on {device}, the process group is for {backends}",
            "call init_process_group() without a backend, or give a group for the device",
        )
