"""The shared memory of a learner's two processes: captures and adoptions of every slice.

Both map one memory file (memfd): the training process makes it, the transport inherits the
descriptor and derives the same plan from the layout. Each region begins on a page.

    0           counters    one unsigned 64-bit number for each slice
                encodings   as many: the encoding of each adopt region now; 0: that of `MemoryPlan`
    then        captures    for each slice its values in f32      (none for an observer)
    then        adoptions   for each slice a base, as it travels (codecs.Form): f32 or bf16

A capture region has a counter that is odd while the training process writes it (a *seqlock*): where
it was odd or has changed, what a reader has copied is worthless. An adopt region belongs to the
transport until it sends Adopt, then to the training process until the Boundary that names it.
"""

import mmap
import os
from dataclasses import dataclass, field
from itertools import accumulate

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Form, base_encoding

ALIGN_BYTES = 4096
COUNTER_BYTES = 8
CAPTURE_ENCODING = pb.F32  # whatever the parameters' dtype: differences are formed in f32


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Where each slice's counter and regions lie; both ends derive it from the layout."""

    slices: tuple[tuple[int, int], ...]  # (shard, fragment) in order
    forms: tuple[Form, ...]
    capture_offsets: tuple[int, ...]  # empty for an observer
    adopt_offsets: tuple[int, ...]
    adopt_encoding: pb.Encoding  # F32 or BF16: of all versions but the last one
    final_encodings: tuple[pb.Encoding, ...]  # of the last one, for each slice
    byte_count: int


def memory_plan(layout: Layout, sync: Sync, *, observer: bool = False) -> MemoryPlan:
    """Lay out the memory of a process. An observer captures nothing."""
    slices, captures = layout.slices, not observer
    adopt_encoding = base_encoding(sync.wire_down)
    forms = [slice_.form for slice_ in slices]
    finals = [layout.final_encoding(slice_, adopt_encoding) for slice_ in slices]
    sizes = [aligned(2 * COUNTER_BYTES * len(slices))]
    if captures:
        sizes += [aligned(form.byte_count(CAPTURE_ENCODING)) for form in forms]
    sizes += [aligned(form.byte_count(final)) for form, final in zip(forms, finals, strict=True)]
    starts = [0, *accumulate(sizes)]
    first_adopt = 1 + len(slices) * captures
    return MemoryPlan(
        slices=tuple((slice_.shard, slice_.fragment) for slice_ in slices),
        forms=tuple(forms),
        capture_offsets=tuple(starts[1:first_adopt]),
        adopt_offsets=tuple(starts[first_adopt:-1]),
        adopt_encoding=adopt_encoding,
        final_encodings=tuple(finals),
        byte_count=starts[-1],
    )


def aligned(byte_count: int) -> int:
    """Return the next multiple of a page, so that every region can be registered with a device."""
    return -(-byte_count // ALIGN_BYTES) * ALIGN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """A mapping of the shared memory. Regions are writable views of it, in bytes."""

    plan: MemoryPlan
    mapping: mmap.mmap = field(repr=False)
    index: dict[tuple[int, int], int] = field(repr=False)
    numbers: memoryview = field(repr=False)  # u64: the counters of all slices, then the encodings

    def form(self, shard: int, fragment: int) -> Form:
        return self.plan.forms[self.index[shard, fragment]]

    def capture(self, shard: int, fragment: int) -> memoryview:
        """Where theta of a slice is copied to: f32 [elements that are held]."""
        return self._region(shard, fragment, self.plan.capture_offsets, CAPTURE_ENCODING)

    def adopt(self, shard: int, fragment: int) -> memoryview:
        encoding = self.adopt_encoding(shard, fragment)
        return self._region(shard, fragment, self.plan.adopt_offsets, encoding)

    def adopt_encoding(self, shard: int, fragment: int) -> pb.Encoding:
        given = self.numbers[len(self.index) + self.index[shard, fragment]]
        return pb.F32 if given == pb.F32 else self.plan.adopt_encoding

    def place(self, shard: int, fragment: int, encoding: pb.Encoding, data: memoryview) -> None:
        index = self.index[shard, fragment]
        assert encoding in (self.plan.adopt_encoding, self.plan.final_encodings[index]), encoding
        self.numbers[len(self.index) + index] = encoding
        self.adopt(shard, fragment)[:] = data

    def counter(self, shard: int, fragment: int) -> int:
        return self.numbers[self.index[shard, fragment]]

    def turn(self, shard: int, fragment: int) -> None:
        """To odd before a capture is written, to even after it."""
        self.numbers[self.index[shard, fragment]] += 1

    def whole(self) -> memoryview:
        return memoryview(self.mapping)

    def _region(
        self, shard: int, fragment: int, offsets: tuple[int, ...], encoding: pb.Encoding
    ) -> memoryview:
        index = self.index[shard, fragment]
        start = offsets[index]
        return self.whole()[start : start + self.plan.forms[index].byte_count(encoding)]


def create() -> int:
    """Return the descriptor of a new, empty memory file, which the transport inherits."""
    return os.memfd_create("atoll", os.MFD_CLOEXEC)


def resize(descriptor: int, wanted: MemoryPlan) -> None:
    os.ftruncate(descriptor, wanted.byte_count)


def attach(wanted: MemoryPlan, descriptor: int) -> SharedMemory:
    """Map the memory file; its pages are made now, so that no copy waits for them later."""
    size = os.fstat(descriptor).st_size
    assert size == wanted.byte_count, f"memory of {size} bytes for a plan of {wanted.byte_count}"
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    numbers = memoryview(mapping)[: 2 * COUNTER_BYTES * len(wanted.slices)].cast("Q")
    index = {key: place for place, key in enumerate(wanted.slices)}
    return SharedMemory(plan=wanted, mapping=mapping, index=index, numbers=numbers)
