"""Tensors for the head, one at a time: what an export needs of a model that is on several ranks.

A tensor may be cut over ranks (a DTensor), or lie on others than the head (a stage of a pipeline).
In `agree` all ranks say what they have. From then on the head names what it reads by a broadcast.
Those who hold shards put it together (`full_tensor`); where the head is none of its holders, the
lowest of them, its *giver*, sends it, or only its checksum. So no rank holds more than one whole
tensor at a time. The others `serve` until the head has read all.

On the head a tensor of other ranks is a stand-in without values (on the meta device).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_worker.ranks.boxes import is_distributed, reshard, shard, sharded_modules
from atoll_worker.ranks.together import together

HEAD: Final = 0

T = TypeVar("T")


class Wish(IntEnum):
    """What the head wants to have of a tensor."""

    NOTHING = 0  # it has read all
    VALUES = 1
    CHECKSUM = 2


@dataclass(frozen=True, slots=True)
class Note:
    """What a rank says of a tensor that it has."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    cut: bool  # it has a shard


class Reader:
    """Reads tensors on the head, and helps on the others; without arguments that of one process."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        control: dist.ProcessGroup | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self.alone = alone
        self.is_head = alone or dist.get_rank(control) == HEAD
        self.tensors = dict(tensors or {})
        self._control = control
        self._checksum: Callable[[Tensor], int] | None = None
        self._cut = {
            _memory(each): name for name, each in self.tensors.items() if is_distributed(each)
        }
        self._numbers: dict[str, int] = {}  # of the names of all ranks
        self._givers: dict[str, int] = {}
        self._remote: dict[int, str] = {}  # names of stand-ins, by their ids

    @property
    def cuts(self) -> bool:
        return bool(self._cut)

    def knows(self, tensor: Tensor) -> bool:
        """Whether it can be read: it is plain, or a DTensor of the model."""
        return not is_distributed(tensor) or _memory(tensor) in self._cut

    @property
    def agreed(self) -> bool:
        return bool(self._numbers)

    def is_remote(self, tensor: Tensor) -> bool:
        """Whether it stands for one that only other ranks have."""
        return id(tensor) in self._remote

    def agree(
        self, more: Mapping[str, Tensor], said: T, *, checksum: Callable[[Tensor], int]
    ) -> list[T]:
        """Tell each other which tensors there are; returns what every rank has `said` beside it.

        Collective. `more` are no parameters or buffers of a module. Raises SpecError on every rank.
        """
        self.tensors |= more
        self._checksum = checksum
        mine = {
            name: Note(each.dtype, tuple(each.shape), is_distributed(each))
            for name, each in self.tensors.items()
        }
        everybody = together(self._control, lambda: (mine, said))
        notes: dict[str, Note] = {}
        for rank, (theirs, _) in enumerate(everybody):
            for name, note in theirs.items():
                first = notes.setdefault(name, note)
                giver = self._givers.setdefault(name, rank)
                if first.cut != note.cut:
                    problem = f"is a DTensor on only one of the ranks {giver} and {rank}"
                    remedy = "shard the model in the same way on every rank"
                    raise SpecError(f"model.{name}", problem, remedy)
        self._numbers = {name: number for number, name in enumerate(sorted(notes))}
        if self.is_head:
            for name, note in notes.items():
                if name not in self.tensors:
                    stands = torch.empty(note.shape, dtype=note.dtype, device="meta")
                    self.tensors[name] = stands
                    self._remote[id(stands)] = name
        return [each for _, each in everybody]

    @torch.no_grad()
    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor, on the head; what is cut or lies elsewhere comes in new memory."""
        if self.is_remote(tensor):
            name = self._remote[id(tensor)]
            self._ask(Wish.VALUES, name)
            room = torch.empty(tensor.shape, dtype=tensor.dtype)
            if room.numel():
                data = room.reshape(-1).view(torch.uint8)
                dist.recv(data, group=self._control, group_src=self._givers[name])
            return room
        if not is_distributed(tensor):
            return tensor
        name = self._cut[_memory(tensor)]
        self._ask(Wish.VALUES, name)
        return _whole(self.tensors[name])

    def checksum(self, tensor: Tensor) -> int:
        """Of a stand-in's values, on the head."""
        name = self._remote[id(tensor)]
        self._ask(Wish.CHECKSUM, name)
        found = torch.empty(1, dtype=torch.int64)
        dist.recv(found, group=self._control, group_src=self._givers[name])
        return int(found) & (1 << 64) - 1

    def end(self) -> None:
        self._ask(Wish.NOTHING)

    @torch.no_grad()
    def serve(self) -> None:
        """On the other ranks: give what the head asks for, until it has read all."""
        names = list(self._numbers)
        while True:
            asked = torch.empty(2, dtype=torch.int64)
            _broadcast(self._control, asked)
            wish, number = asked.tolist()
            if wish == Wish.NOTHING:
                return
            name = names[number]
            tensor = self.tensors.get(name)
            if tensor is None:
                continue
            whole = _whole(tensor) if is_distributed(tensor) else tensor
            if self._givers[name] != dist.get_rank(self._control):
                continue
            given = whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            if wish == Wish.CHECKSUM:
                assert self._checksum is not None
                found = self._checksum(whole)
                given = torch.tensor([found - (found >> 63 << 64)])  # signed
            if given.numel():
                dist.send(given, group=self._control, group_dst=HEAD)

    def _ask(self, wish: Wish, name: str = "") -> None:
        _broadcast(self._control, torch.tensor([wish, self._numbers.get(name, 0)]))


@contextmanager
def reading(
    control: dist.ProcessGroup | None,
    models: Sequence[nn.Module],
    cleaner: Callable[[nn.Module], Callable[[str], str]],
) -> Iterator[Reader]:
    """On all ranks, each of which must `agree` first: the head reads, while the others serve."""
    reshard(sharded_modules(models))
    tensors: dict[str, Tensor] = {}
    for model in models:
        clean = cleaner(model)
        for named in (model.named_parameters, model.named_buffers):
            for name, tensor in named(remove_duplicate=False):
                tensors.setdefault(clean(name), tensor)
    reader = Reader(tensors, control, alone=False)
    try:
        yield reader
    except BaseException:
        if reader.is_head and reader.agreed:
            reader.end()
        raise
    if reader.is_head:
        reader.end()
    else:
        reader.serve()


def _memory(tensor: Tensor) -> tuple[object, ...]:
    return shard(tensor).data_ptr(), tensor.dtype, tuple(tensor.shape)


def _whole(tensor: Any) -> Tensor:
    return tensor.detach().full_tensor()  # type: ignore[no-any-return]


def _broadcast(control: dist.ProcessGroup | None, word: Tensor) -> None:
    dist.broadcast(word, group=control, group_src=HEAD)
