"""The numbers of the transport process: codecs, differences and the shared memory.

`Numbers` is the only door through which `Transport` touches parameters. Behind it are arrays of
some library; in front of it values are opaque. So the rules of an offer can be read without
arithmetic, and the simulation puts symbols in place of arrays.
"""

from typing import Any, Protocol

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import tensors
from atoll_protos.codecs import Wire, encoding_of
from atoll_protos.frames import Buffer
from atoll_protos.run import Sync
from atoll_worker.link.memory import Memory

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


class TorchNumbers:
    """See Numbers. Bases are 1-d tensors: f32 on an f32 wire down, else bf16 (rule 17)."""

    def __init__(self, memory: Memory, sync: Sync) -> None:
        self._memory, self._sync = memory, sync

    def counter(self, shard: int, fragment: int) -> int:
        """See Numbers."""
        return self._memory.counter(shard, fragment)

    def decode(
        self, publish: pb.Publish, encoding: pb.Encoding, data: bytearray, held: Base
    ) -> Base:
        """See Numbers."""
        if not publish.difference:
            dtype = torch.float32 if encoding == pb.F32 else torch.bfloat16
            return tensors.from_bytes(data, dtype)
        difference = tensors.decode(data, encoding, torch.empty(held.numel()))
        return difference.add_(held.float()).to(held.dtype)

    def place(self, shard: int, fragment: int, base: Base) -> None:
        """See Numbers."""
        self._memory.adopt(shard, fragment).copy_(base)

    def difference(self, shard: int, fragment: int, base: Base) -> Difference:
        """See Numbers."""
        return base.float() - self._memory.capture(shard, fragment)  # a new one: base stays

    def encode_difference(self, difference: Difference) -> Encoded:
        """See Numbers."""
        encoding = encoding_of(self._sync.wire_up)
        return encoding, tensors.encode(difference, encoding)

    def encode_seed(self, shard: int, fragment: int) -> Encoded:
        """See Numbers."""
        encoding = encoding_of(Wire.F32)
        return encoding, tensors.encode(self._memory.capture(shard, fragment), encoding)

    def encode_base(self, base: Base) -> Encoded:
        """See Numbers."""
        encoding = pb.F32 if base.dtype == torch.float32 else pb.BF16
        return encoding, tensors.byte_view(base)
