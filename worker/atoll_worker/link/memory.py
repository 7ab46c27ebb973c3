"""The shared memory of a learner's two processes: captures and adoptions of every slice.

The training process copies the model's values in (a *capture*), the transport process reads them
to form offers; the transport puts a published base in (to *adopt*), the training process copies it
into the model. So parameters never pass through the link's socket.

Both processes map one memory file (memfd). The training process makes the file and its plan; the
transport inherits the descriptor, derives the same plan from the layout and checks the size.

    0           counters    one unsigned 64-bit number for each slice
                encodings   as many: in which encoding a slice's adopt region is now; 0: `Plan`'s
    then        captures    for each slice its values in f32      (none for an observer)
    then        adoptions   for each slice a base, as it travels (codecs.Form): f32 or bf16

    then        nothing, but for the time in which a companion is sent: first CHANGED_BYTES_MAX for
                what training has changed of it, then the whole one (neither is mapped)

Of a learner with lanes on several hosts, the first rank of each host has such a memory. It holds
that host's share of every slice (atoll_protos.parts): regions have the size of what is held
and are laid out as those of a smaller slice. A share of a slice may be empty.

Each region begins on a page. This module knows bytes only, and imports neither torch nor numpy:
the training process lays tensors over the regions, the transport lays numpy arrays over them.

Who may touch a region, and when
--------------------------------
A capture region has a counter that is odd while the training process writes it, and even at rest
(a *seqlock*). A reader notes the counter, copies, and compares: where the counter was odd or has
changed, the copy is worthless and the reader waits for the next capture. The writer never waits.

An adopt region belongs to the transport until it sends Adopt, then to the training process until
the Boundary that names the adoption. There is no counter: messages hand it over.
"""

import mmap
import os
import struct
from dataclasses import dataclass, field
from itertools import accumulate

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import Form
from atoll_protos.companion import CHANGED_BYTES_MAX
from atoll_protos.layout import Layout
from atoll_protos.parts import ALL, Share

ALIGN_BYTES = 4096
COUNTER = struct.Struct("=Q")
CAPTURE_ENCODING = pb.F32  # whatever the parameters' dtype: differences are formed in f32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where each slice's counter and regions lie; both ends derive it from the layout."""

    slices: tuple[tuple[int, int], ...]  # (shard, fragment) in order
    share: Share  # of each slice that is held here
    forms: tuple[Form, ...]  # of what is held
    capture_offsets: tuple[int, ...]  # empty for an observer
    adopt_offsets: tuple[int, ...]
    adopt_encoding: pb.Encoding  # F32 or BF16: of all versions but the last one
    final_encodings: tuple[pb.Encoding, ...]  # of the last one, for each slice
    byte_count: int


def plan(
    layout: Layout, *, adopt_encoding: pb.Encoding, captures: bool, share: Share = ALL
) -> Plan:
    """Counters first, then all capture regions, then all adopt regions."""
    slices = layout.slices
    forms = [share.form(each.form) for each in slices]
    finals = [layout.final_encoding(each, adopt_encoding) for each in slices]
    sizes = [aligned(2 * COUNTER.size * len(slices))]
    if captures:
        sizes += [aligned(form.byte_count(CAPTURE_ENCODING)) for form in forms]
    sizes += [aligned(form.byte_count(final)) for form, final in zip(forms, finals, strict=True)]
    starts = [0, *accumulate(sizes)]
    first_adopt = 1 + len(slices) * captures
    return Plan(
        slices=tuple((each.shard, each.fragment) for each in slices),
        share=share,
        forms=tuple(forms),
        capture_offsets=tuple(starts[1:first_adopt]),
        adopt_offsets=tuple(starts[first_adopt:-1]),
        adopt_encoding=adopt_encoding,
        final_encodings=tuple(finals),
        byte_count=starts[-1],
    )


def aligned(byte_count: int) -> int:
    """The next multiple of a page, so that every region can be registered with a device."""
    return -(-byte_count // ALIGN_BYTES) * ALIGN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A mapping of the shared memory. Regions are writable views of it, in bytes."""

    plan: Plan
    mapping: mmap.mmap = field(repr=False)
    index: dict[tuple[int, int], int] = field(repr=False)

    def form(self, shard: int, fragment: int) -> Form:
        """Of what is held of a slice."""
        return self.plan.forms[self.index[shard, fragment]]

    def capture(self, shard: int, fragment: int) -> memoryview:
        """Where theta of a slice is copied to: f32 [elements that are held]."""
        return self._region(shard, fragment, self.plan.capture_offsets, CAPTURE_ENCODING)

    def adopt(self, shard: int, fragment: int) -> memoryview:
        """Where the transport puts a base, in `adopt_encoding`."""
        encoding = self.adopt_encoding(shard, fragment)
        return self._region(shard, fragment, self.plan.adopt_offsets, encoding)

    def adopt_encoding(self, shard: int, fragment: int) -> pb.Encoding:
        """In which encoding the base is that the transport has put into the adopt region."""
        given = COUNTER.unpack_from(self.mapping, self._encoding_offset(shard, fragment))[0]
        return pb.F32 if given == pb.F32 else self.plan.adopt_encoding

    def place(self, shard: int, fragment: int, encoding: pb.Encoding, data: memoryview) -> None:
        """Put a base, in this encoding, into the adopt region."""
        index = self.index[shard, fragment]
        assert encoding in (self.plan.adopt_encoding, self.plan.final_encodings[index]), encoding
        COUNTER.pack_into(self.mapping, self._encoding_offset(shard, fragment), encoding)
        self.adopt(shard, fragment)[:] = data

    def _encoding_offset(self, shard: int, fragment: int) -> int:
        return COUNTER.size * (len(self.index) + self.index[shard, fragment])

    def counter(self, shard: int, fragment: int) -> int:
        """The seqlock counter of a capture region."""
        offset = COUNTER.size * self.index[shard, fragment]
        return int(COUNTER.unpack_from(self.mapping, offset)[0])

    def turn(self, shard: int, fragment: int) -> None:
        """Count on: to odd before a capture is written, to even after it."""
        offset = COUNTER.size * self.index[shard, fragment]
        COUNTER.pack_into(self.mapping, offset, self.counter(shard, fragment) + 1)

    def whole(self) -> memoryview:
        """All of it."""
        return memoryview(self.mapping)

    def _region(
        self, shard: int, fragment: int, offsets: tuple[int, ...], encoding: pb.Encoding
    ) -> memoryview:
        index = self.index[shard, fragment]
        start = offsets[index]
        return self.whole()[start : start + self.plan.forms[index].byte_count(encoding)]


def companion_offset(wanted: Plan, *, changed: bool) -> int:
    """Where in the memory file a companion lies; the file is only as long as there is one."""
    return wanted.byte_count + (0 if changed else CHANGED_BYTES_MAX)


def create() -> int:
    """A new memory file without any bytes: its descriptor, to be inherited by the transport."""
    return os.memfd_create("atoll", os.MFD_CLOEXEC)


def resize(descriptor: int, wanted: Plan) -> None:
    """Give the memory file the plan's size, before either process attaches it."""
    os.ftruncate(descriptor, wanted.byte_count)


def attach(wanted: Plan, descriptor: int) -> Memory:
    """Map the memory file; its pages are made now, so that no copy waits for them later."""
    size = os.fstat(descriptor).st_size
    assert size == wanted.byte_count, f"memory of {size} bytes for a plan of {wanted.byte_count}"
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return Memory(
        plan=wanted,
        mapping=mapping,
        index={key: place for place, key in enumerate(wanted.slices)},
    )
