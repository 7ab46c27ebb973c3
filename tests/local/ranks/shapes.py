"""One model in every shape that people train, and the same arithmetic in one process.

    shape       ranks  how the model is cut
    hsdp            4  two replicas of two shards; every rank trains a quarter of the batch
    tp              2  the columns and the rows of the feed-forward layer
    fsdp2_tp        4  FSDP2 over that: `up` is cut twice (_StridedShard); two halves of the batch
    pipeline        2  four stages, two on each rank in turn; two microbatches
    experts         4  experts over two ranks (Shard(0)), and these by rows (Shard(1)), as in
                       torchtitan; two halves of the batch

Sums of floats depend on their order, so a process that is to equal a shape bit for bit has to add
in the same order. It computes each share of the batch by itself and adds the gradients in pairs, as
FSDP2 and then the replicas do; of a layer that is cut it computes the two halves (`halved`).
Everything else is the same operation on the same numbers. A sum of two does not depend on the
order, which is why every dimension of the meshes is 2.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from local.lockstep_model import SYMBOLS, WIDTH

RANKS: Final = {"hsdp": 4, "tp": 2, "fsdp2_tp": 4, "experts": 4, "pipeline": 2}
SHARES: Final = {"hsdp": 4, "tp": 1, "fsdp2_tp": 2, "experts": 2, "pipeline": 2}  # of a batch
HALVED: Final = ("tp", "fsdp2_tp")
HIDDEN, EXPERTS = 24, 4
STAGES: Final = (("embedding",), ("feed",), ("experts", "base"), ("norm", "head"))

Batch = tuple[Tensor, Tensor]


class Feed(nn.Module):
    """A feed-forward layer; `halved` computes it as two ranks of tensor parallelism do."""

    def __init__(self, *, halved: bool = False) -> None:
        super().__init__()
        self.halved = halved
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        if not self.halved:
            return values + cast(Tensor, self.down(functional.gelu(self.up(values))))
        copied = values.clone()
        first, second = zip(
            self.up.weight.chunk(2),
            self.up.bias.chunk(2),
            self.down.weight.chunk(2, dim=1),
            strict=True,
        )
        return values + (_half(copied, *first) + _half(copied, *second))


def _half(values: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    hidden = functional.gelu(functional.linear(values, up.contiguous(), bias.contiguous()))
    return functional.linear(hidden, down.contiguous())


class Experts(nn.Module):
    """Every expert weighs in on every symbol; `over` are the ranks that have them, by halves."""

    def __init__(self) -> None:
        super().__init__()
        self.over: DeviceMesh | None = None
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.matrices = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        inside = values.clone()  # so that gradients are added two by two
        weights = self.router(inside).softmax(-1)
        copied, weighed = inside.clone(), weights.clone()
        if self.over is None:
            groups = zip(self.matrices.chunk(2), weighed.chunk(2, dim=1), strict=True)
            one, other = (_experts(copied, matrices, each) for matrices, each in groups)
            return values + (one + other)
        copied, weighed = (_on_all(each, self.over) for each in (copied, weighed))
        own = weighed.chunk(2, dim=1)[self.over.get_local_rank()]
        partial = _experts(copied, cast(DTensor, self.matrices).to_local(), own)
        summed = DTensor.from_local(partial, self.over, [Partial()]).redistribute(
            placements=[Replicate()]
        )
        return values + summed.to_local()


def _experts(values: Tensor, matrices: Tensor, weights: Tensor) -> Tensor:
    one, other = matrices.unbind()
    values = values.clone()  # whose gradient is first that of these two
    return weights[:, :1] * (values @ one) + weights[:, 1:] * (values @ other)


def _on_all(values: Tensor, over: DeviceMesh) -> Tensor:
    """The same on all ranks, whose gradients are added."""
    return DTensor.from_local(values, over, [Replicate()]).to_local(grad_placements=[Partial()])


class Base(nn.Module):
    """A frozen layer, and a counter of batches: neither travels, and the export has both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.register_buffer("kind", torch.tensor([3, 1, 4]))

    def forward(self, values: Tensor) -> Tensor:
        return values + cast(Tensor, self.linear(values))


class Model(nn.Module):
    """Its layers one after another; a stage of a pipeline has some of them."""

    def __init__(
        self,
        *,
        halved: bool = False,
        layers: Sequence[str] = sum(STAGES, ()),
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        made: dict[str, nn.Module] = {
            "embedding": nn.Embedding(SYMBOLS, WIDTH),
            "feed": Feed(halved=halved),
            "experts": Experts(),
            "base": Base(),
            "norm": nn.LayerNorm(WIDTH),
            "head": nn.Linear(WIDTH, SYMBOLS),
        }
        for name in layers:
            self.add_module(name, made[name])

    def forward(self, values: Tensor) -> Tensor:
        """Symbols [batch] to logits [batch, SYMBOLS]; of a stage, what is between."""
        for layer in self.children():
            values = layer(values)
        return values


class Single:
    """One process that adds as the ranks of a shape do."""

    def __init__(self, shape: str) -> None:
        self.parts: tuple[nn.Module, ...] = (Model(halved=shape in HALVED),)
        self.shares = SHARES[shape]

    def backward(self, batch: Batch) -> Tensor | None:
        """Set the gradients; returns the loss."""
        (model,) = self.parts
        gradients, losses = [], []
        for share in _shares(batch, self.shares):
            losses.append(_loss(model, share))
            gradients.append([_taken(each) for each in _trained(model)])
        while len(gradients) > 1:
            pairs = zip(gradients[::2], gradients[1::2], strict=True)
            gradients = [[one + other for one, other in zip(*pair, strict=True)] for pair in pairs]
        for parameter, gradient in zip(_trained(model), gradients[0], strict=True):
            parameter.grad = gradient / self.shares
        return torch.stack(losses).mean()


class Ranks:
    """A rank of a learner whose shape is one model that is cut."""

    def __init__(self, shape: str) -> None:
        cut: Callable[[], tuple[Model, int]] = {
            "hsdp": hybrid,
            "tp": tensor_parallel,
            "fsdp2_tp": sharded_and_tensor_parallel,
            "experts": expert_parallel,
        }[shape]
        model, self.share = cut()
        self.parts: tuple[nn.Module, ...] = (model,)
        self.shares = SHARES[shape]

    def backward(self, batch: Batch) -> Tensor | None:
        """Set the gradients; returns the loss of this rank's share."""
        return _loss(self.parts[0], _shares(batch, self.shares)[self.share])


class Stages:
    """A rank of a pipeline: stages 0 and 2, or 1 and 3."""

    def __init__(self, shape: str) -> None:
        rank, cpu = dist.get_rank(), torch.device("cpu")
        numbers = range(rank, len(STAGES), RANKS[shape])
        self.parts: tuple[nn.Module, ...] = tuple(Model(layers=STAGES[n]) for n in numbers)
        stages = [
            PipelineStage(part, number, len(STAGES), cpu)
            for part, number in zip(self.parts, numbers, strict=True)
        ]
        self.is_last = len(STAGES) - 1 in numbers
        self.schedule = ScheduleInterleaved1F1B(
            cast(Any, stages), SHARES[shape], loss_fn=functional.cross_entropy
        )

    def backward(self, batch: Batch) -> Tensor | None:
        """Set the gradients; rank 0 does not know the loss."""
        symbols, successors = batch
        losses: list[Tensor] = []
        if self.is_last:
            self.schedule.step(target=successors, losses=losses)
            return torch.stack(losses).mean()
        self.schedule.step(symbols)
        return None


Trainer = Single | Ranks | Stages


def trainer_of(shape: str, *, single: bool) -> Trainer:
    """What trains a shape on this rank, or in the only process."""
    if single:
        return Single(shape)
    return Stages(shape) if shape == "pipeline" else Ranks(shape)


def hybrid() -> tuple[Model, int]:
    """(model, which share of the batch is this rank's), as of all others."""
    over = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = Model()
    for layer in (model.feed, model.experts, model):
        fully_shard(cast(nn.Module, layer), mesh=over)
    return model, dist.get_rank()


PLAN = {"feed.up": ColwiseParallel(), "feed.down": RowwiseParallel()}


def tensor_parallel() -> tuple[Model, int]:
    """Both ranks train the whole batch."""
    model = Model()
    parallelize_module(model, init_device_mesh("cpu", (2,)), PLAN)
    return model, 0


def sharded_and_tensor_parallel() -> tuple[Model, int]:
    over = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Model()
    parallelize_module(model, over["tp"], PLAN)
    fully_shard(cast(nn.Module, model.feed), mesh=over["dp"])
    fully_shard(model, mesh=over["dp"])
    return model, over["dp"].get_local_rank()


def expert_parallel() -> tuple[Model, int]:
    """FSDP2 over experts, which it cuts by their rows."""
    over = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    model = Model()
    experts = cast(Experts, model.experts)
    experts.over = over["ep"]
    cut = distribute_tensor(experts.matrices.data, over["ep"], [Shard(0)])
    experts.matrices = nn.Parameter(cut)
    by_rows = {3: Shard(1)}
    fully_shard(
        experts, mesh=over["dp"], shard_placement_fn=lambda each: by_rows.get(each.ndim, Shard(0))
    )
    fully_shard(model, mesh=over["dp"])
    return model, over["dp"].get_local_rank()


def _shares(batch: Batch, count: int) -> list[Batch]:
    symbols, successors = batch
    return list(zip(symbols.chunk(count), successors.chunk(count), strict=True))


def _loss(model: nn.Module, share: Batch) -> Tensor:
    model.zero_grad()
    loss = functional.cross_entropy(model(share[0]), share[1])
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _taken(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
