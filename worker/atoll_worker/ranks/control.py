"""What the head of a learner says to its other ranks: commands, and what it has counted.

Theory of operation
-------------------
All ranks must carry out the same commands at the same step boundary and in the same order (rule
31), though only the head receives them, at any time. Asking the head at the boundary would make
every step wait for an answer. So the head says what there is when the optimizer *begins* to step,
a hook tells it, and by the end of that step the others have heard it:

    head     backward | hook: draw commands, send | optimizer.step | step(): carry them out
    others   backward | hook: begin to receive    | optimizer.step | step(): carry them out

Commands that come to the head later are drawn at its next boundary. Where no optimizer has called
the hook (GradScaler has skipped the step, the optimizer is not known), `commands` itself draws and
waits. Ranks may differ in that: each draws once per boundary, in the hook or in `commands`.

A *word* of the head is a broadcast of WORD_BYTES, which has a length in front. A longer one (a data
state) is followed by a second broadcast. The ranks begin all broadcasts in one order, since torch
matches them by it: a drawn word, its second part, and after the boundary's commands the counts.

The words have a process group of gloo of their own, so they are not mixed with the gradients, and
need no device. The head waits for nothing but that its words are sent.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from atoll_worker.link import codec
from atoll_worker.link.messages import Message
from atoll_worker.link.socket import Link

HEAD: Final = 0  # the rank that has the transport
WORD_BYTES: Final = 4096
LENGTH: Final = struct.Struct("=Q")
COUNTS: Final = struct.Struct("=qq")  # tokens, cursor
CLOSED, OPEN = b"\x01", b"\x00"  # in front of commands: whether the head's link has ended


class Word:
    """Some bytes of the head, on their way to all ranks of a group."""

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
        """All of it; waits until it has arrived, on the head until it is sent."""
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


@dataclass(slots=True, kw_only=True)
class Control:
    """The head's words on one rank. `link` is the head's, to its transport."""

    group: dist.ProcessGroup  # gloo
    rank: int
    link: Link | None = None
    closed: bool = False  # the head's link has ended
    drawn: Word | None = None  # of the next boundary
    counts: Word | None = None  # of the last boundary

    def draw(self) -> None:
        """The head says its commands, the others begin to receive them; once per boundary."""
        if self.drawn is None:
            self.drawn = Word(self.group, self._commands() if self.rank == HEAD else None)

    def commands(self) -> Sequence[Message]:
        """The commands of this boundary: on all ranks the same, in one order."""
        self.draw()
        assert self.drawn is not None
        said = self.drawn.heard()
        self.drawn = None
        self.closed = said[:1] == CLOSED
        received, found = bytearray(said[1:]), []
        while (message := codec.take_first(received)) is not None:
            found.append(message)
        return found

    def count(self, tokens: int, cursor: int) -> None:
        """The head says what it has counted; the arguments of the others do not matter."""
        if self.counts is not None:
            self.counts.heard()  # on the head: it is sent
        said = COUNTS.pack(tokens, cursor) if self.rank == HEAD else None
        self.counts = Word(self.group, said)

    def counted(self) -> tuple[int, int] | None:
        """(tokens, cursor) that the head has said last; None where that is known already."""
        if self.counts is None or self.rank == HEAD:
            return None
        tokens, cursor = COUNTS.unpack(self.counts.heard())
        self.counts = None
        return tokens, cursor

    def _commands(self) -> bytes:
        """What the head has received since it drew last."""
        if self.link is None:
            return OPEN
        received = b"".join(map(codec.encode, self.link.receive()))
        return (CLOSED if self.link.closed else OPEN) + received


def _broadcast(group: dist.ProcessGroup, buffer: Tensor) -> dist.Work:
    work = dist.broadcast(buffer, group=group, group_src=HEAD, async_op=True)
    assert work is not None
    return work


def _write(buffer: Tensor, data: bytes) -> None:
    buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
