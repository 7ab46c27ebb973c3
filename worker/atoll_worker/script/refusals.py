"""What a learner is not made for, said in one sentence before anything starts."""

import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from atoll_protos.errors import SpecError
from atoll_worker.ranks import boxes

ONE_PROCESS = (
    "start one process for each learner (without torchrun) and give spec.regions as many learners "
    "as you have GPUs"
)


def check_ranks(environment: Mapping[str, str] | None = None) -> None:
    """Refuse one of several processes that do not know each other yet. Raises SpecError."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    given = os.environ if environment is None else environment
    rank, world_size = given.get("RANK", ""), given.get("WORLD_SIZE", "")  # of torch's launchers
    if rank.isdecimal() and world_size.isdecimal() and int(world_size) > 1:
        raise SpecError(
            "Learner",
            f"this is rank {rank} of {world_size} processes without a process group",
            "call torch.distributed.init_process_group() before you enter the Learner, on every "
            f"rank; or {ONE_PROCESS}",
        )


def check_accelerate(optimizers: object) -> None:
    """Refuse ranks of which accelerate knows one alone: nothing would add up their gradients.

    `optimizers`: one or several, perhaps what `Accelerator.prepare` has made of them.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    ranks = torch.distributed.get_world_size()
    for each in optimizers if isinstance(optimizers, Sequence) else (optimizers,):
        state = getattr(each, "accelerator_state", None)
        if (known := getattr(state, "num_processes", ranks)) != ranks:
            remedy = "without GPUs give Accelerator(cpu=True)"
            raise SpecError("Learner", f"accelerate knows {known} of {ranks} processes", remedy)


def modules_of(model: object) -> tuple[nn.Module, ...]:
    """The model, or its parts that this process has (stages of a pipeline). Raises SpecError."""
    parts = tuple(model) if isinstance(model, Sequence) else (model,)
    for part in parts:
        check_module(part)
    if not parts:
        raise SpecError("model", "is an empty list", "give the model that is trained")
    return parts


def check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        remedy = "give the model itself, before any optimizer: Learner(model, optimizer)"
        raise SpecError("model", f"{type(model).__name__} is no torch.nn.Module", remedy)
    boxes.check_module(model)


def check_model(model: nn.Module, *, may_be_cut: bool = False) -> None:
    """Refuse parameters that cannot travel whatever their dtype. Raises SpecError."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if boxes.is_distributed(tensor) and not may_be_cut:
            problem = "is a DTensor, of which each process holds a part (FSDP2, tensor parallel)"
            raise SpecError(f"model.{name}", problem, "give the whole model in one process")
        if is_lazy(tensor):
            remedy = "run one batch through the model before you open the Learner"
            raise SpecError(f"model.{name}", "has no shape yet (a lazy module)", remedy)
        if tensor.device.type == "meta":
            remedy = "load or initialise the model before you open the Learner"
            raise SpecError(f"model.{name}", "is on the meta device and has no values", remedy)


def is_cut(models: Sequence[nn.Module]) -> bool:
    """Whether a parameter is a DTensor, of which this process may hold a part only."""
    return any(boxes.is_distributed(each) for model in models for each in model.parameters())


def trains(models: Sequence[nn.Module]) -> bool:
    """Whether a parameter is trainable; none is in a stage of a pipeline that is frozen."""
    return any(each.requires_grad for model in models for each in model.parameters())
