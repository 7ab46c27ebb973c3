"""The words of the head, as broadcasts of torch.distributed.

A word is a broadcast of WORD_BYTES with a length in front, and a second broadcast if it is longer
(a data state). torch matches broadcasts by the order in which each rank begins them, so they have a
process group of gloo of their own, apart from the gradients.
"""

import struct
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from atoll_worker.ranks.control import HEAD

WORD_BYTES: Final = 4096
LENGTH: Final = struct.Struct("=Q")


class Broadcast:
    """Some bytes of the head, on their way to all ranks of a group. See control.Word."""

    def __init__(self, group: dist.ProcessGroup, said: bytes | None) -> None:
        self.group, self.said = group, said
        self.first = torch.zeros(WORD_BYTES, dtype=torch.uint8)
        self.rest: Tensor | None = None
        if said is not None:
            _write(self.first, LENGTH.pack(len(said)) + said[: WORD_BYTES - LENGTH.size])
        self.works = [_broadcast(group, self.first)]
        if said is not None and (rest := said[WORD_BYTES - LENGTH.size :]):
            self.rest = torch.empty(len(rest), dtype=torch.uint8)
            _write(self.rest, rest)
            self.works.append(_broadcast(group, self.rest))

    def heard(self) -> bytes:
        for work in self.works:
            work.wait()
        if self.said is not None:
            return self.said
        word = bytes(self.first.numpy())
        (length,) = LENGTH.unpack_from(word)
        said = word[LENGTH.size : LENGTH.size + length]
        if len(said) < length:
            rest = torch.empty(length - len(said), dtype=torch.uint8)
            _broadcast(self.group, rest).wait()
            said += bytes(rest.numpy())
        return said


def _broadcast(group: dist.ProcessGroup, buffer: Tensor) -> dist.Work:
    work = dist.broadcast(buffer, group=group, group_src=HEAD, async_op=True)
    assert work is not None
    return work


def _write(buffer: Tensor, data: bytes) -> None:
    buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
