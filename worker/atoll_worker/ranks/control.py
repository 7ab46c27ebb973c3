"""What the head of a learner says to its other ranks: commands, and what it has counted.

All ranks must carry out the same commands at the same step boundary and in the same order (rule
31), though only the head receives them, at any time. So that no step waits for an answer, the head
says what there is when the optimizer *begins* to step, which a hook tells:

    head     backward | hook: draw commands, send | optimizer.step | step(): carry them out
    others   backward | hook: begin to receive    | optimizer.step | step(): carry them out

Later commands are drawn at the next boundary. Where no optimizer has called the hook (GradScaler
has skipped the step, the optimizer is not known), `commands` itself draws and waits. Each rank
draws once per boundary, and begins all words in one order, since nothing else says which is which:
a drawn word, and after the boundary's commands the counts.

The words of the head, as broadcasts of torch.distributed.

A word is a broadcast of WORD_BYTES with a length in front, and a second broadcast if it is longer
(a data state). torch matches broadcasts by the order in which each rank begins them, so they have a
process group of gloo of their own, apart from the gradients.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from atoll_worker.link import messages
from atoll_worker.link.messages import Message

HEAD: Final = 0  # the rank that has the transport
COUNTS: Final = struct.Struct("=qq")  # tokens, cursor


class Word(Protocol):
    """Some bytes of the head, on their way to all ranks of a group."""

    def heard(self) -> bytes:
        """All of it; waits until it has arrived, on the head until it is sent."""


class Commands(Protocol):
    """The head's link to its transport: the commands that have arrived, in order."""

    closed: bool

    def receive(self) -> Iterable[Message]: ...


@dataclass(slots=True, kw_only=True)
class Control:
    """The head's words on one rank. `link` is the head's, to its transport.

    `begin` begins a word: on the head with what it says, on the others with None.
    """

    begin: Callable[[bytes | None], Word]
    rank: int
    link: Commands | None = None
    closed: bool = False  # the head's link has ended
    drawn: Word | None = None  # of the next boundary
    counts: Word | None = None  # of the last boundary

    def draw(self) -> None:
        """Send the head's commands, or begin to receive them; once per boundary."""
        if self.drawn is None:
            self.drawn = self.begin(self._commands() if self.rank == HEAD else None)

    def commands(self) -> Sequence[Message]:
        self.draw()
        assert self.drawn is not None
        found: Sequence[Message]
        self.closed, found = messages.decode(self.drawn.heard())
        self.drawn = None
        return found

    def count(self, tokens: int, cursor: int) -> None:
        """Share the head's counts; the arguments of the others do not matter."""
        if self.counts is not None:
            self.counts.heard()  # on the head: it is sent
        said = COUNTS.pack(tokens, cursor) if self.rank == HEAD else None
        self.counts = self.begin(said)

    def counted(self) -> tuple[int, int] | None:
        """(tokens, cursor) that the head has said last; None where that is known already."""
        if self.counts is None or self.rank == HEAD:
            return None
        tokens, cursor = COUNTS.unpack(self.counts.heard())
        self.counts = None
        return tokens, cursor

    def leave(self) -> None:
        """Wait, on the head, until its last counts are sent: others may ask when it has gone."""
        if self.counts is not None and self.rank == HEAD:
            self.counts.heard()

    def _commands(self) -> bytes:
        received = [] if self.link is None else list(self.link.receive())
        return messages.encode((self.link is not None and self.link.closed, received))
