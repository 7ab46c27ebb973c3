"""The numbers of the transport process: codecs, differences and the shared memory.

`Numbers` is the only door through which `Transport` touches parameters. Behind it are arrays of
some library; in front of it values are opaque. So the rules of an offer can be read without
arithmetic, and the simulation puts symbols in place of arrays. The arrays are numpy's: torch would
cost this process 500 MB and over a second of each start, and gives the same bits (`arrays`).
"""

from typing import Any, Protocol

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.codecs import base_encoding, encoding_of
from atoll_protos.frames import Buffer
from atoll_protos.layout import AVERAGE, Layout, Slice
from atoll_protos.run import Sync
from atoll_worker.link.memory import CAPTURE_ENCODING, Memory

Base = Any  # one slice of a version, bit for bit as its shard holds it
Difference = Any  # one slice: base less theta, in f32
Encoded = tuple[pb.Encoding, Buffer]


class Numbers(Protocol):
    """What the transport does with the values of slices."""

    def counter(self, shard: int, fragment: int) -> int:
        """The seqlock counter of a capture region: odd while it is written."""

    def decode(
        self, publish: pb.Publish, encoding: pb.Encoding, data: bytearray, held: Base
    ) -> Base:
        """The base that a Publish carries; `held` is the one that a difference is added to."""

    def place(self, shard: int, fragment: int, base: Base) -> None:
        """Copy a base into its adopt region."""

    def difference(self, shard: int, fragment: int, base: Base) -> Difference:
        """The base less what the capture region holds now, formed in f32 (rule 16).

        Heavy, for a thread: who calls it looks at the region's counter before and after.
        """

    def encode_difference(self, difference: Difference) -> Encoded:
        """In the job's encoding of offers; heavy, for a thread."""

    def encode_seed(self, shard: int, fragment: int) -> Encoded:
        """The capture region as it is, in f32 (rule 1)."""

    def encode_base(self, base: Base) -> Encoded:
        """Bit for bit, so that its digest is the version's (rule 22). A view, not a copy."""


def spans(layout: Layout, owned: Slice, base: Any) -> tuple[list[tuple[slice, Any]], list[slice]]:
    """Where a learner does not hold a base of this dtype as it is: see arrays.difference.

    A parameter in f32 holds every base; one in bf16 or f16 holds those of its own type.
    """
    rounded, averaged = [], []
    for piece in owned.pieces:
        span = slice(piece.offset, piece.offset + piece.element_count)
        tensor = layout.tensors[piece.tensor]
        dtype = arrays.DTYPES[tensor.dtype]
        if dtype not in (base, arrays.F32):
            rounded.append((span, dtype))
        if tensor.merge == AVERAGE:
            averaged.append(span)
    return rounded, averaged


class ArrayNumbers:
    """See Numbers. Bases are 1-d numpy arrays: f32 on an f32 wire down, else bf16 (rule 17)."""

    def __init__(self, memory: Memory, sync: Sync, layout: Layout) -> None:
        self._memory, self._sync = memory, sync
        base = arrays.FLOATS[base_encoding(sync.wire_down)]
        self._spans = {
            (each.shard, each.fragment): spans(layout, each, base) for each in layout.slices
        }

    def counter(self, shard: int, fragment: int) -> int:
        """See Numbers."""
        return self._memory.counter(shard, fragment)

    def decode(
        self, publish: pb.Publish, encoding: pb.Encoding, data: bytearray, held: Base
    ) -> Base:
        """See Numbers."""
        if publish.difference:
            return arrays.moved(held, data, encoding)
        return arrays.from_bytes(data, encoding)

    def place(self, shard: int, fragment: int, base: Base) -> None:
        """See Numbers."""
        self._memory.adopt(shard, fragment)[:] = arrays.byte_view(base)

    def difference(self, shard: int, fragment: int, base: Base) -> Difference:
        """See Numbers."""
        rounded, averaged = self._spans[shard, fragment]
        theta = self._captured(shard, fragment)
        return arrays.difference(base, theta, rounded=rounded, averaged=averaged)

    def encode_difference(self, difference: Difference) -> Encoded:
        """See Numbers."""
        encoding = encoding_of(self._sync.wire_up)
        return encoding, arrays.encode(difference, encoding)

    def encode_seed(self, shard: int, fragment: int) -> Encoded:
        """See Numbers."""
        return CAPTURE_ENCODING, arrays.encode(self._captured(shard, fragment), CAPTURE_ENCODING)

    def encode_base(self, base: Base) -> Encoded:
        """See Numbers."""
        return arrays.encoding_of(base), arrays.byte_view(base)

    def _captured(self, shard: int, fragment: int) -> arrays.Array:
        """The capture region itself, f32 [element_count]."""
        return arrays.from_bytes(self._memory.capture(shard, fragment), CAPTURE_ENCODING)
