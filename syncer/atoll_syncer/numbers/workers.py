"""A few threads that compute one slice together, block by block; numpy lets them run side by side.

What comes out does not depend on how many they are: a block is computed by one thread alone, from
that block alone, and what is summed over blocks is summed in their order.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np

from atoll_protos.transfer.arrays import F32, RUN, Array
from atoll_protos.transfer.codecs import BLOCK_MAX

THREADS_MAX: Final = 8  # more would wait for memory
ROWS: Final = 8  # of terms that are summed at once: more would take memory, and fewer time

Result = TypeVar("Result")


class Scratch:
    """Memory of one thread: first writes to fresh pages cost more than the merge itself."""

    def __init__(self) -> None:
        # A read begins and ends at whole blocks of its codec: it may be longer than its span.
        self.rows = np.empty((ROWS, RUN + 2 * BLOCK_MAX), F32)
        self.one, self.other, *_ = self.rows
        self.sums = np.empty_like(self.one)


class Workers:
    """Threads with their memory, for one computation at a time."""

    def __init__(self, thread_count: int | None = None) -> None:
        count = thread_count or min(len(os.sched_getaffinity(0)), THREADS_MAX)
        self._scratches = [Scratch() for _ in range(count)]
        self._pool = ThreadPoolExecutor(count, "block")
        self._tensor = np.empty(0, F32)

    def tensor(self, element_count: int) -> Array:
        """F32 of a whole tensor, for what must be known of all of it; the same memory each time."""
        if self._tensor.size < element_count:
            self._tensor = np.empty(element_count, F32)
        return self._tensor[:element_count]

    def each(
        self, blocks: Sequence[range], work: Callable[[range, Scratch], Result]
    ) -> list[Result]:
        """Return what `work` returns of every block, in order; also uses the caller's thread."""
        found: dict[int, Result] = {}
        numbers = iter(range(len(blocks)))  # its `next` is one step of the interpreter

        def run(scratch: Scratch) -> None:
            with np.errstate(all="ignore"):  # what is not finite is looked for where it counts
                for number in numbers:
                    found[number] = work(blocks[number], scratch)

        own, *others = self._scratches[: max(1, len(blocks))]
        running = [self._pool.submit(run, scratch) for scratch in others]
        run(own)
        for each in running:
            each.result()
        return [found[number] for number in range(len(blocks))]


def blocks(span: range) -> list[range]:
    """Consecutive ranges of at most RUN that cover the span."""
    starts = range(span.start, span.stop, RUN)
    return [range(start, min(start + RUN, span.stop)) for start in starts]
