"""Transfers that arrived whole: verified, and read block by block as f32 (rules 12, 25).

The payload stays in the encoding in which it came; the merge decodes it block by block. Here one
pass looks at all values and finds three things at once: that they are finite, the norms that the
merge needs, and, for a held version, its digest. Only after that do the rules count a transfer.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs, tensors
from atoll_protos.codecs import Form
from atoll_protos.layout import Layout, Slice
from atoll_syncer.numbers.merge import Scratch, norm

NAMES_MAX: Final = 4  # of tensors whose values are not finite


class TransferError(Exception):
    """A transfer that must not count, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Values of one slice as they came over the wire (codecs.Form)."""

    data: bytearray
    encoding: pb.Encoding
    form: Form
    exact: torch.Tensor  # f32 [form.exact], over `data`
    coded: memoryview  # the bytes of the others
    floats: torch.Tensor | None  # `coded` as a tensor, where the encoding is a float type

    def read(self, span: range, scratch: torch.Tensor) -> torch.Tensor:
        """See merge.Delta: f32 of the span, in place where it came so, else in `scratch`.

        The span lies in one piece, so its values are either exact or coded.
        """
        before = self.form.exact
        if span.stop <= before:
            return self.exact[span.start : span.stop]
        first, stop = span.start - before, span.stop - before
        assert first >= 0, (span, self.form)
        if self.floats is not None:
            values = self.floats[first:stop]
            return values if values.dtype == torch.float32 else scratch[: len(span)].copy_(values)
        scale = codecs.of(self.encoding).block
        begin = first // scale * scale
        out = scratch[: min(-(-stop // scale) * scale, self.form.coded) - begin]
        tensors.decode_span(self.coded, self.encoding, self.form.coded, begin, out)
        return out[first - begin : stop - begin]


def encoded(data: bytearray, encoding: pb.Encoding, form: Form) -> Encoded:
    """Values over `data`, without a copy; its length must be that of the encoding."""
    exact, coded = form.cut(data)
    dtype = tensors.FLOATS.get(encoding)
    return Encoded(
        data=data,
        encoding=encoding,
        form=form,
        exact=tensors.from_bytes(exact, torch.float32),
        coded=coded,
        floats=None if dtype is None else tensors.from_bytes(coded, dtype),
    )


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
    values = encoded(payload, head.encoding, owned.form)
    norms = slice_norms(owned, values)
    if not all(map(math.isfinite, norms)):
        bad = [
            p.tensor for p, each in zip(owned.pieces, norms, strict=True) if not math.isfinite(each)
        ]
        names = ", ".join(dict.fromkeys(layout.tensors[each].name for each in bad[:NAMES_MAX]))
        more = ", ..." if len(bad) > NAMES_MAX else ""
        raise TransferError(f"slice {owned.fragment}: values are not finite: {names}{more}")
    if head.HasField("held"):
        claimed = head.held.version.version.digest
        found = codecs.digest(payload)
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
        expected = owned.form.byte_count(head.encoding)
    except ValueError as error:
        raise TransferError(f"slice {owned.fragment}: {error}") from error
    if len(payload) != expected:
        raise TransferError(f"slice {owned.fragment}: {len(payload)} bytes, not {expected}")
