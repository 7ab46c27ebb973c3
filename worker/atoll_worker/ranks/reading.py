"""Whole tensors for the head, one at a time: what an export needs of a model that is cut.

The head alone decides what it reads and in which order, since only it knows what an export has.
Before it reads a DTensor it says which one, by a broadcast, and all ranks put it together
(`full_tensor`); the others throw it away. So no rank holds more than one whole tensor. The others
call `serve` where the head calls `reading`, and are released when the head has read all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_worker.ranks.boxes import is_distributed, reshard, shard, sharded_modules
from atoll_worker.ranks.together import together

HEAD: Final = 0
NOTHING: Final = -1  # the head has read all


class Reader:
    """Reads tensors on the head; `cut` are the DTensors of the model, in an order of all ranks."""

    def __init__(
        self, control: dist.ProcessGroup | None = None, cut: Sequence[Tensor] = ()
    ) -> None:
        self._control, self._cut = control, cut
        self._numbers = {_memory(tensor): number for number, tensor in enumerate(cut)}

    @property
    def cuts(self) -> bool:
        """Whether the model has DTensors, so that its state dict is of several ranks."""
        return bool(self._cut)

    def knows(self, tensor: Tensor) -> bool:
        """Whether it can be read: it is plain, or a DTensor of the model."""
        return not is_distributed(tensor) or _memory(tensor) in self._numbers

    @torch.no_grad()
    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor; where it is a DTensor, in new memory."""
        if not is_distributed(tensor):
            return tensor
        number = self._numbers[_memory(tensor)]
        _say(self._control, number)
        return _whole(self._cut[number])

    def end(self) -> None:
        """The others go on."""
        _say(self._control, NOTHING)


@contextmanager
def reading(control: dist.ProcessGroup | None, models: Sequence[nn.Module]) -> Iterator[Reader]:
    """On the head, while the others are in `serve`.

    Raises SpecError on every rank if the ranks have not cut the same tensors.
    """
    reader = Reader(control, _agreed(control, models))
    try:
        yield reader
    finally:
        reader.end()


@torch.no_grad()
def serve(control: dist.ProcessGroup | None, models: Sequence[nn.Module]) -> None:
    """On the other ranks: put together what the head reads, until it has read all."""
    cut = _agreed(control, models)
    while (number := _heard(control)) != NOTHING:
        _whole(cut[number])


def _agreed(control: dist.ProcessGroup | None, models: Sequence[nn.Module]) -> list[Tensor]:
    """The DTensors of this rank, the same on all. Collective."""
    reshard(sharded_modules(models))
    cut = {
        f"{number}.{name}": tensor
        for number, model in enumerate(models)
        for named in (model.named_parameters(), model.named_buffers())
        for name, tensor in named
        if is_distributed(tensor)
    }
    said = together(control, lambda: tuple(sorted(cut)))
    for rank, names in enumerate(said):
        other = sorted({*names} ^ {*said[HEAD]})
        if other:
            raise SpecError(
                f"model.{other[0].partition('.')[2]}",
                f"is a DTensor on only one of the ranks {HEAD} and {rank}",
                "shard the model in the same way on every rank",
            )
    return [cut[name] for name in sorted(cut)]


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two DTensors that are the same values, some of which the head has."""
    return shard(tensor).data_ptr(), tensor.dtype, tuple(tensor.shape)


def _whole(tensor: Any) -> Tensor:
    return tensor.detach().full_tensor()  # type: ignore[no-any-return]


def _say(control: dist.ProcessGroup | None, number: int) -> None:
    dist.broadcast(torch.tensor([number]), _global(control), group=control)


def _heard(control: dist.ProcessGroup | None) -> int:
    number = torch.empty(1, dtype=torch.int64)
    dist.broadcast(number, _global(control), group=control)
    return int(number)


def _global(control: dist.ProcessGroup | None) -> int:
    return HEAD if control is None else dist.get_global_rank(control, HEAD)
