"""The numbers of the transport process: codecs, differences and the shared memory.

`Numbers` is the only door through which `Transport` touches parameters; the simulation puts symbols
in place of arrays. The arrays are numpy's: torch would cost this process 500 MB and over a second
of each start, and gives the same bits (`arrays`).
"""

from collections.abc import Iterator
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import AVERAGE, Layout, Piece, Slice
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_protos.transfer.division import ALL, Share
from atoll_protos.transfer.frames import Buffer
from atoll_worker.link.shared_memory import CAPTURE_ENCODING, SharedMemory

Base = Any  # one slice of a version, bit for bit as its shard holds it
Difference = Any  # one slice: base less theta, in f32
Encoded = tuple[pb.Encoding, Buffer]


def rounded_spans(
    layout: Layout, owned: Slice, coded: Any, share: Share = ALL
) -> list[tuple[slice, Any]]:
    """Where a learner does not hold a base as it is: see arrays.difference.

    A tensor in f32 holds every base; one in bf16 or f16 holds those of its own type. A base has
    buffers in f32, and parameters in the dtype `coded`.
    """
    found = []
    for piece, span in held_pieces(owned, share):
        tensor = layout.tensors[piece.tensor]
        dtype = arrays.DTYPES[tensor.dtype]
        if dtype not in (arrays.F32 if tensor.merge == AVERAGE else coded, arrays.F32):
            found.append((span, dtype))
    return found


def held_pieces(owned: Slice, share: Share) -> Iterator[tuple[Piece, slice]]:
    """The pieces of a slice of which something is held, and where that lies in what is held."""
    held = share.elements(owned.form)
    for piece in owned.pieces:
        start = max(piece.offset, held.start)
        stop = min(piece.offset + piece.element_count, held.stop)
        if start < stop:
            yield piece, slice(start - held.start, stop - held.start)


class Numbers:
    """A base is `codecs.Packed`; of every slice it is the share that the memory holds."""

    def __init__(self, memory: SharedMemory, sync: Sync, layout: Layout) -> None:
        self._memory, self._sync, self._layout = memory, sync, layout

    def counter(self, shard: int, fragment: int) -> int:
        return self._memory.counter(shard, fragment)

    def decode(
        self, shard: int, publish: pb.Publish, encoding: pb.Encoding, data: bytearray, held: Base
    ) -> Base:
        """`held` is the base that a difference is added to."""
        if publish.difference:
            return arrays.moved(held, data, encoding, to=base_encoding(self._sync.wire_down))
        form = self._memory.form(shard, publish.version.slice)
        return arrays.packed(data, encoding, form)

    def place(self, shard: int, fragment: int, base: Base) -> None:
        self._memory.place(shard, fragment, arrays.encoding_of(base), base.data)

    def difference(self, shard: int, fragment: int, base: Base) -> Difference:
        """In f32 (rule 16). Heavy, for a thread: callers compare the region's counter around it."""
        theta = self._captured(shard, fragment)
        owned = self._layout.slice(shard, fragment)
        rounded = rounded_spans(self._layout, owned, base.coded.dtype, self._memory.plan.share)
        return arrays.difference(base, theta, rounded=rounded)

    def not_finite(
        self, shard: int, fragment: int, difference: Difference | None = None
    ) -> tuple[str, ...]:
        """The tensors with a value in this difference, or in the capture, that is not finite."""
        values = self._captured(shard, fragment) if difference is None else difference
        owned, tensors = self._layout.slice(shard, fragment), self._layout.tensors
        names = (
            tensors[piece.tensor].name
            for piece, span in held_pieces(owned, self._memory.plan.share)
            if not arrays.all_finite(values[span])
        )
        return tuple(dict.fromkeys(names))

    def encode_difference(self, shard: int, fragment: int, difference: Difference) -> Encoded:
        """In the job's encoding of offers; heavy, for a thread."""
        encoding = encoding_of(self._sync.wire_up)
        form = self._memory.form(shard, fragment)
        return encoding, arrays.pack(difference, encoding, form)

    def encode_seed(self, shard: int, fragment: int) -> Encoded:
        """The capture region as it is, in f32 (rule 1). A view, not a copy."""
        return CAPTURE_ENCODING, self._memory.capture(shard, fragment)

    def encode_base(self, base: Base) -> Encoded:
        """Bit for bit, so that its digest is the version's (rule 22). A view, not a copy."""
        return arrays.encoding_of(base), base.data

    def digest(self, base: Base) -> str:
        found: str = base.digest
        return found

    def _captured(self, shard: int, fragment: int) -> arrays.Array:
        return arrays.from_bytes(self._memory.capture(shard, fragment), CAPTURE_ENCODING)
