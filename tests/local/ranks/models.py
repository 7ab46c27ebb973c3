"""Models of several ranks, sharded in the ways that people use, and what each must hold of values.

Every function builds a model on some of four ranks and returns None on the others, after the calls
in which all four take part.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

RANKS = 4

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model on some ranks of the world."""

    ranks: tuple[int, ...]
    model: nn.Module | None  # None on the other ranks
    parts: tuple[nn.Module, ...] = ()  # of a pipeline; else the model
    inputs: Tensor | None = field(default=None, repr=False)


class Mixed(nn.Module):
    """Uneven dimension 0, one row, three elements, a number, an embedding, buffers, a frozen layer.

    `dtype` is that of its matrices; norms stay float32.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8, dtype=dtype)
        self.up = nn.Linear(8, 13, dtype=dtype)
        self.narrow = nn.Linear(13, 3, dtype=dtype)
        self.norm = nn.BatchNorm1d(3)
        self.one = nn.Linear(3, 1, bias=False, dtype=dtype)
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        for buffer in self.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.randn(buffer.shape) + (dist.get_rank() + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [batch] to numbers [batch, 1]."""
        hidden = self.narrow(self.up(self.embedding(tokens)).relu()).float()
        hidden = self.frozen(self.norm(hidden)).to(self.one.weight.dtype)
        return cast(Tensor, self.one(hidden) * self.scale)


class Tied(nn.Module):
    """A head that is the embedding, whose first name stands for both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight


class PartlyFrozen(nn.Module):
    """What stands beside what travels: a tied key, frozen parameters, counters."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.tied = Mixed(), Tied()
        self.base = nn.Linear(5, 3, bias=False).requires_grad_(False)


class Experts(nn.Module):
    """Matrices of five experts in one tensor, behind a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 6)
        self.experts = nn.Parameter(torch.randn(5, 6, 7))


class Wide(nn.Module):
    """What tensor parallelism cuts by columns and by rows, beside what it leaves whole."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(6, hidden)
        self.down = nn.Linear(hidden, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, values: Tensor) -> Tensor:
        return cast(Tensor, self.norm(values + self.down(self.up(values).relu())))


def seeded(make: Callable[[], M]) -> M:
    """The same values on every rank, but for what a model draws behind them."""
    torch.manual_seed(7)
    return make()


def drawn(seed: int) -> torch.Generator:
    """Numbers that are the same on every rank."""
    return torch.Generator().manual_seed(seed)


def mesh(ranks: tuple[int, ...], *sizes: int, names: tuple[str, ...] = ("dp",)) -> DeviceMesh:
    """Over some ranks of the world; all ranks of the world make it."""
    return DeviceMesh("cpu", torch.tensor(ranks).view(sizes or (-1,)), mesh_dim_names=names)


def inside(ranks: tuple[int, ...]) -> bool:
    """Whether this process is one of them."""
    return dist.get_rank() in ranks


def group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """A group of some ranks of the world; all ranks of the world make it."""
    made = dist.new_group(list(ranks))
    return cast(dist.ProcessGroup, made)  # elsewhere it is a number that nobody uses


def replicated(count: int) -> Case:
    ranks = tuple(range(count))
    group = group_of(ranks)
    if not inside(ranks):
        return Case(ranks=ranks, model=None)
    model = seeded(Mixed)
    return Case(ranks=ranks, model=nn.parallel.DistributedDataParallel(model, process_group=group))


def fully_sharded(count: int, make: Callable[[], nn.Module] = Mixed) -> Case:
    """FSDP2, each layer and then the root."""
    ranks = tuple(range(count))
    over = mesh(ranks)
    if not inside(ranks):
        return Case(ranks=ranks, model=None)
    model = seeded(make)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for name in ("embedding", "up", "narrow", "one"):
        if hasattr(model, name) and not isinstance(model, Tied):
            fully_shard(getattr(model, name), mesh=over, mp_policy=policy)
    fully_shard(model, mesh=over)
    return Case(ranks=ranks, model=model, inputs=torch.arange(8) % 11)


def sharded_by_columns() -> Case:
    """FSDP2 along dimension 1 of what has one."""
    ranks = (0, 1, 2)
    over = mesh(ranks)
    if not inside(ranks):
        return Case(ranks=ranks, model=None)
    model = seeded(Experts)
    by_columns = {True: Shard(1), False: Shard(0)}
    fully_shard(model, mesh=over, shard_placement_fn=lambda each: by_columns[each.ndim > 1])
    return Case(ranks=ranks, model=model)


def hybrid() -> Case:
    """HSDP: two replicas of two shards."""
    ranks = (0, 1, 2, 3)
    over = mesh(ranks, 2, 2, names=("replicate", "shard"))
    model = seeded(Mixed)
    fully_shard(model.up, mesh=over)
    fully_shard(model, mesh=over)
    return Case(ranks=ranks, model=model)


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tensor_parallel(hidden: int) -> Case:
    ranks = (0, 1)
    over = mesh(ranks, names=("tp",))
    if not inside(ranks):
        return Case(ranks=ranks, model=None)
    model = seeded(lambda: Wide(hidden))
    return Case(ranks=ranks, model=parallelize_module(model, over, PLAN))


def sharded_and_tensor_parallel(hidden: int) -> Case:
    """FSDP2 over tensor parallelism: dimension 0 is cut twice (_StridedShard)."""
    ranks = (0, 1, 2, 3)
    over = mesh(ranks, 2, 2, names=("dp", "tp"))
    model = seeded(lambda: Wide(hidden))
    parallelize_module(model, over["tp"], PLAN)
    fully_shard(model, mesh=over["dp"])
    return Case(ranks=ranks, model=model)


def pipeline() -> Case:
    """Two stages, each sharded over two ranks, the second one in two parts."""
    ranks = (0, 1, 2, 3)
    meshes = mesh((0, 1)), mesh((2, 3))
    stage = dist.get_rank() // 2
    whole = nn.ModuleDict({name: seeded(lambda: Wide(5)) for name in ("first", "middle", "last")})
    for name in ("first",) if stage else ("middle", "last"):
        del whole[name]
    for block in whole.values():
        fully_shard(block, mesh=meshes[stage])
    parts = tuple(nn.ModuleDict({name: block}) for name, block in whole.items())
    return Case(ranks=ranks, model=whole, parts=parts)


def frozen_stage(frozen: int) -> Case:
    """Two stages on two ranks each; nothing of stage `frozen` is trainable, nor does it travel."""
    ranks = (0, 1, 2, 3)
    stage = dist.get_rank() // 2
    block = seeded(lambda: Wide(5)).requires_grad_(stage != frozen)
    return Case(ranks=ranks, model=nn.ModuleDict({("first", "last")[stage]: block}))


def expert_parallel(dim: int) -> Case:
    """Experts over two ranks along dimension 0, and these over two more along `dim`, unevenly."""
    ranks = (0, 1, 2, 3)
    over = mesh(ranks, 2, 2, names=("ep", "dp"))
    model = seeded(Experts)
    experts = distribute_tensor(model.experts.data, over, [Shard(0), Shard(dim)])
    model.experts = nn.Parameter(experts)
    fully_shard(model.dense, mesh=over["dp"])
    return Case(ranks=ranks, model=model)


def misplaced(over: DeviceMesh, element_count: int = 4) -> DTensor:
    """Every rank has two of its elements, whatever its placement says."""
    return DTensor.from_local(
        torch.ones(2),
        over,
        [Shard(0)],
        run_check=False,
        shape=torch.Size([element_count]),
        stride=(1,),
    )
