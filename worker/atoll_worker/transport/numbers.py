"""The numbers of the transport process: codecs, differences and the shared memory.

`Numbers` is the only door through which `Transport` touches parameters. Behind it are arrays of
some library; in front of it values are opaque. So the rules of an offer can be read without
arithmetic, and the simulation puts symbols in place of arrays. The arrays are numpy's: torch would
cost this process 500 MB and over a second of each start, and gives the same bits (`arrays`).
"""

from typing import Any, Protocol

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.codecs import encoding_of
from atoll_protos.frames import Buffer
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
        """The base less what the capture region holds now, formed in f32 (rule 16)."""

    def encode_difference(self, difference: Difference) -> Encoded:
        """In the job's encoding of offers; heavy, for a thread."""

    def encode_seed(self, shard: int, fragment: int) -> Encoded:
        """The capture region as it is, in f32 (rule 1)."""

    def encode_base(self, base: Base) -> Encoded:
        """Bit for bit, so that its digest is the version's (rule 22). A view, not a copy."""


class ArrayNumbers:
    """See Numbers. Bases are 1-d numpy arrays: f32 on an f32 wire down, else bf16 (rule 17)."""

    def __init__(self, memory: Memory, sync: Sync) -> None:
        self._memory, self._sync = memory, sync

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
        return arrays.difference(base, self._captured(shard, fragment))

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
