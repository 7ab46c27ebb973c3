"""The shared memory of a learner's two processes: captures and adoptions of every slice."""

import mmap
import os
import struct
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from atoll_protos.layout import Layout

ALIGN_BYTES = 4096
COUNTER = struct.Struct("=Q")
CAPTURE_DTYPE = torch.float32  # whatever the parameters' dtype: differences are formed in f32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where each slice's counter and regions lie; both ends derive it from the layout."""

    slices: tuple[tuple[int, int], ...]  # (shard, fragment) in order
    element_counts: tuple[int, ...]
    capture_offsets: tuple[int, ...]  # empty for an observer
    adopt_offsets: tuple[int, ...]
    adopt_dtype: torch.dtype
    byte_count: int


def plan(layout: Layout, *, adopt_dtype: torch.dtype, captures: bool) -> Plan:
    """Counters first, then all capture regions (f32), then all adopt regions (the base's type)."""
    slices = layout.slices
    counts = [each.element_count for each in slices]
    sizes = [aligned(COUNTER.size * len(slices))]
    sizes += [aligned(count * CAPTURE_DTYPE.itemsize) for count in counts] if captures else []
    sizes += [aligned(count * adopt_dtype.itemsize) for count in counts]
    starts = [0, *accumulate(sizes)]
    first_adopt = 1 + len(slices) * captures
    return Plan(
        slices=tuple((each.shard, each.fragment) for each in slices),
        element_counts=tuple(counts),
        capture_offsets=tuple(starts[1:first_adopt]),
        adopt_offsets=tuple(starts[first_adopt:-1]),
        adopt_dtype=adopt_dtype,
        byte_count=starts[-1],
    )


def aligned(byte_count: int) -> int:
    """The next multiple of a page, so that every region can be registered with a device."""
    return -(-byte_count // ALIGN_BYTES) * ALIGN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A mapping of the shared memory; regions are 1-d tensors that alias it.

    A capture region has a counter that is odd while it is written (a seqlock): who reads it
    compares `counter` before and after, and reads again when it was odd or has changed.
    An adopt region belongs to the transport until it sends Adopt, then to the training process
    until the Boundary that names it.
    """

    plan: Plan
    mapping: mmap.mmap = field(repr=False)
    index: dict[tuple[int, int], int] = field(repr=False)

    def capture(self, shard: int, fragment: int) -> Tensor:
        """Where theta of a slice is copied to: f32 [element_count]."""
        return self._region(shard, fragment, self.plan.capture_offsets, CAPTURE_DTYPE)

    def adopt(self, shard: int, fragment: int) -> Tensor:
        """Where the transport puts a base to adopt: [element_count] in the base's dtype."""
        return self._region(shard, fragment, self.plan.adopt_offsets, self.plan.adopt_dtype)

    def counter(self, shard: int, fragment: int) -> int:
        """The seqlock counter of a capture region."""
        offset = COUNTER.size * self.index[shard, fragment]
        return int(COUNTER.unpack_from(self.mapping, offset)[0])

    def turn(self, shard: int, fragment: int) -> None:
        """Count on: to odd before a capture is written, to even after it."""
        offset = COUNTER.size * self.index[shard, fragment]
        COUNTER.pack_into(self.mapping, offset, self.counter(shard, fragment) + 1)

    def whole(self) -> Tensor:
        """All of it: uint8 [byte_count]."""
        return torch.frombuffer(self.mapping, dtype=torch.uint8)

    def _region(
        self, shard: int, fragment: int, offsets: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor:
        index = self.index[shard, fragment]
        count = self.plan.element_counts[index]
        return torch.frombuffer(self.mapping, dtype=dtype, count=count, offset=offsets[index])


def create(wanted: Plan) -> int:
    """A new memory file of that size: its descriptor, for `attach` here and in the transport."""
    descriptor = os.memfd_create("atoll", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, wanted.byte_count)
    return descriptor


def attach(wanted: Plan, descriptor: int) -> Memory:
    """Map the memory file; the pages come with the mapping (TRANSPORT.md, fact 1)."""
    size = os.fstat(descriptor).st_size
    assert size == wanted.byte_count, f"memory of {size} bytes for a plan of {wanted.byte_count}"
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return Memory(
        plan=wanted,
        mapping=mapping,
        index={key: place for place, key in enumerate(wanted.slices)},
    )
