"""What a learner is not made for, said in one sentence before anything starts.

A learner is one process with a whole model on one device. Several processes that train one model
(torchrun, FSDP2) would each take the slot from the other, or train on different values.
"""

import os
import sys
from collections.abc import Mapping

import structlog
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from atoll_protos.errors import SpecError

ONE_PROCESS = (
    "a learner is one process: start one process for each learner (without torchrun) and give "
    "spec.regions as many learners as you have GPUs"
)

log = structlog.get_logger()


def check_process(environment: Mapping[str, str] | None = None) -> None:
    """Refuse the second and later processes of a group. Raises SpecError.

    The first one is let through with a warning: a script may broadcast what its Learner adopts.
    """
    rank, world_size = _rank_and_world_size(os.environ if environment is None else environment)
    if rank:
        raise SpecError(
            "Learner",
            f"this is rank {rank} of {world_size} processes that train one model",
            f"{ONE_PROCESS}; with DistributedDataParallel open the Learner on rank 0 only and "
            "broadcast the parameters after each step() that has adopted something",
        )
    if world_size > 1:
        log.warning(
            "only this process adopts the job's values: broadcast the parameters to the other "
            "ranks after each step() that has adopted something",
            rank=rank,
            world_size=world_size,
        )


def check_module(model: object) -> None:
    """Refuse what is no module: an optimizer, a list of parameters. Raises SpecError."""
    if not isinstance(model, nn.Module):
        raise SpecError(
            "model",
            f"{type(model).__name__} is no torch.nn.Module",
            "give the model itself, before any optimizer: Learner(model, optimizer)",
        )


def check_model(model: nn.Module) -> None:
    """Refuse parameters that cannot travel whatever their dtype. Raises SpecError."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if _is_distributed(tensor):
            raise SpecError(
                f"model.{name}",
                "is a DTensor, of which each process holds a part (FSDP2, tensor parallel)",
                f"{ONE_PROCESS}, each with the whole model",
            )
        if is_lazy(tensor):
            raise SpecError(
                f"model.{name}",
                "has no shape yet (a lazy module)",
                "run one batch through the model before you open the Learner",
            )
        if tensor.device.type == "meta":
            raise SpecError(
                f"model.{name}",
                "is on the meta device and has no values",
                "load or initialise the model before you open the Learner",
            )


def _rank_and_world_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Of torch.distributed if it is set up, else of its launchers' variables; 0 of 1 without."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world_size.isdecimal()):
        return 0, 1
    return int(rank), int(world_size)


def _is_distributed(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor; the module is not imported for that, since it takes long."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
