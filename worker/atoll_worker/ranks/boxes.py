"""Which box of every tensor this process holds, as DTensor and FSDP2 say it; others it holds whole.

FSDP2 swaps the parameters of its modules: between forward and backward, and after an evaluation
until the next forward, a module's attributes are whole, plain tensors. What is written into those
is lost. So the modules are told to `reshard` before anything is read or written.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec
from atoll_worker.ranks.blocks import Box, Held, whole

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
    return tuple(each for model in models for each in model.modules() if isinstance(each, kind))


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
    """What this process holds of a tensor, as a plain tensor in the same memory."""
    return shard(getattr(place.module, place.attribute)).detach()


def shard(tensor: Any) -> Tensor:
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[no-any-return]


def is_distributed(tensor: Tensor) -> bool:
    """Whether it is a DTensor; the module is not imported for that, since it takes long."""
    kind = _class(DTENSOR, "DTensor")
    return kind is not None and isinstance(tensor, kind)


def held(places: Sequence[TravellingTensor]) -> tuple[Held, ...]:
    """What this rank says of its tensors. SpecError: a shard is no box, or a name comes twice."""
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
    if any(each.is_partial() for each in tensor.placements):
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
