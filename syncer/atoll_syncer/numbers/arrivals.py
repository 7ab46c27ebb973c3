"""Transfers that arrived whole: verified, and read block by block as f32 (rules 12, 25).

The payload stays in the encoding in which it came; the merge decodes it block by block. Here one
pass looks at all values and finds three things at once: that they are finite, the norms that the
merge needs, and, for a held version, its digest. Only after that do the rules count a transfer.
"""

import math
from dataclasses import dataclass

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs, tensors
from atoll_protos.layout import Layout, Slice
from atoll_syncer.numbers.merge import Scratch, norm


class TransferError(Exception):
    """A transfer that must not count. It ends the session that sent it, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Values of one slice as they came over the wire, in `element_count` elements."""

    data: bytearray
    encoding: pb.Encoding
    element_count: int
    floats: torch.Tensor | None  # `data` as a tensor, where the encoding is a float type

    def read(self, span: range, scratch: torch.Tensor) -> torch.Tensor:
        """See merge.Delta: f32 of the span, in place for an f32 wire, else in `scratch`."""
        if self.floats is not None:
            values = self.floats[span.start : span.stop]
            return values if values.dtype == torch.float32 else scratch[: len(span)].copy_(values)
        scale = codecs.of(self.encoding).block
        start = span.start // scale * scale
        stop = min(-(-span.stop // scale) * scale, self.element_count)
        out = scratch[: stop - start]
        tensors.decode_span(self.data, self.encoding, self.element_count, start, out)
        return out[span.start - start : span.stop - start]


def encoded(data: bytearray, encoding: pb.Encoding, element_count: int) -> Encoded:
    """Values over `data`, without a copy; its length must be that of the encoding."""
    dtype = tensors.FLOATS.get(encoding)
    floats = None if dtype is None else tensors.from_bytes(data, dtype)
    return Encoded(data=data, encoding=encoding, element_count=element_count, floats=floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A transfer whose length, checksum and values are right.

    `norms` are the |v| of an offer's pieces, in the slice's order; empty for other transfers.
    """

    head: pb.Transfer
    values: Encoded
    norms: tuple[float, ...] = ()

    @property
    def byte_count(self) -> int:
        """Memory that it holds."""
        return len(self.values.data)


def examine(layout: Layout, shard: int, head: pb.Transfer, payload: bytearray) -> Arrived:
    """Verify a whole transfer; heavy, for a thread. Raises TransferError.

    The rules have checked credit, size and base version before. Here the values are checked: all
    finite, and for a Held the digest of the version that it claims to be.
    """
    owned = layout.slice(shard, _slice_number(head))
    _check_size(owned, head, payload)
    values = encoded(payload, head.encoding, owned.element_count)
    norms = slice_norms(owned, values)
    if not all(map(math.isfinite, norms)):
        raise TransferError(f"slice {owned.fragment}: values are not finite")
    if head.HasField("held"):
        claimed = head.held.version.version.digest
        found = tensors.digest(tensors.from_bytes(payload, torch.uint8))
        if found != claimed:
            raise TransferError(f"slice {owned.fragment}: digest {found}, not {claimed}")
    return Arrived(head=head, values=values, norms=norms if head.HasField("offer") else ())


def slice_norms(owned: Slice, values: Encoded) -> tuple[float, ...]:
    """|v| of every piece of the slice; not finite where a value is not."""
    scratch = Scratch()
    spans = (range(p.offset, p.offset + p.element_count) for p in owned.pieces)
    return tuple(norm(values, span, scratch) for span in spans)


def _slice_number(head: pb.Transfer) -> int:
    """The slice that a learner's transfer names. Raises TransferError for any other kind."""
    match head.WhichOneof("kind"):
        case "offer":
            return head.offer.slice
        case "seed":
            return head.seed.slice
        case "held":
            return head.held.version.slice
    raise TransferError("this transfer is not an offer, a seed or a held version")


def _check_size(owned: Slice, head: pb.Transfer, payload: bytearray) -> None:
    """Encoding and length must fit the slice; seeds and held versions come as f32 or bf16."""
    if not head.HasField("offer") and head.encoding not in tensors.FLOATS:
        raise TransferError(f"slice {owned.fragment}: whole values must come as f32 or bf16")
    try:
        expected = codecs.encoded_size(owned.element_count, head.encoding)
    except ValueError as error:
        raise TransferError(f"slice {owned.fragment}: {error}") from error
    if len(payload) != expected:
        raise TransferError(f"slice {owned.fragment}: {len(payload)} bytes, not {expected}")
