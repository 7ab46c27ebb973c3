"""Transfers that arrived whole: verified, and read block by block as f32 (rules 12, 25).

The payload stays in the encoding in which it came; the merge decodes it block by block. Here one
pass looks at all values and finds three things at once: that they are finite, the norms that the
merge needs, and, for a held version, its digest. Only after that do the rules count a transfer.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout, Slice
from atoll_protos.transfer import arrays, codecs
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.numbers.merge import norm
from atoll_syncer.numbers.workers import Workers

ONE: Final = np.full(1, 1, F32)
NAMES_MAX: Final = 4  # of tensors whose values are not finite


class TransferError(Exception):
    """A transfer that must not count, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Values of one slice as they came over the wire (codecs.Form)."""

    data: Buffer
    encoding: pb.Encoding
    form: Form
    exact: Array  # f32 [form.exact], over `data`
    coded: memoryview  # the bytes of the others

    def read(self, span: range, scratch: Array) -> Array:
        """See merge.Delta: in place where it came in f32, else in `scratch`."""
        floats = self.floats(span)
        if floats is not None:
            return arrays.widened(floats, scratch[: len(span)])
        levels, scales, place = self.unscaled(span, scratch)
        np.multiply(levels, scales[:, None], out=levels)
        return scratch[place]

    def unscaled(self, span: range, out: Array) -> tuple[Array, Array, slice]:
        """See merge.Delta."""
        floats = self.floats(span)
        if floats is not None:
            values = out[None, : len(span)]
            np.copyto(values, floats)
            return values, ONE, slice(len(span))
        codec, count = codecs.of(self.encoding), self.form.coded
        first, stop = span.start - self.form.exact, span.stop - self.form.exact
        begin = first // codec.block * codec.block
        part = slice(begin, min(-(-stop // codec.block) * codec.block, count))
        levels = out[: part.stop - begin]
        scales = arrays.levels_part(self.coded, codec, count, part, levels)
        blocks = out[: scales.size * codec.block].reshape(-1, codec.block)
        return blocks, scales, slice(first - begin, stop - begin)

    def floats(self, span: range) -> Array | None:
        """See merge.Delta. The span lies in one piece, so its values are either exact or coded."""
        before = self.form.exact
        if span.stop <= before:
            return self.exact[span.start : span.stop]
        assert span.start >= before, (span, self.form)
        if self.encoding not in arrays.FLOATS:
            return None
        floats = arrays.from_bytes(self.coded, self.encoding)
        return floats[span.start - before : span.stop - before]


def encoded(data: Buffer, encoding: pb.Encoding, form: Form) -> Encoded:
    """Values over `data`, without a copy; its length must be that of the encoding."""
    exact, coded = form.cut(data)
    return Encoded(
        data=data,
        encoding=encoding,
        form=form,
        exact=arrays.from_bytes(exact, pb.F32),
        coded=coded,
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
        return len(self.values.data)


def examine(
    layout: Layout, shard: int, head: pb.Transfer, payload: Buffer, workers: Workers
) -> Arrived:
    """Verify a whole transfer; heavy, for a thread. Raises TransferError.

    The rules have checked credit, size and base version before. Here the values are checked: all
    finite, and for a Held the digest of the version that it claims to be.
    """
    owned = layout.slice(shard, _slice_number(head))
    _check_size(owned, head, payload)
    values = encoded(payload, head.encoding, owned.form)
    spans = (range(p.offset, p.offset + p.element_count) for p in owned.pieces)
    norms = tuple(norm(values, span, workers) for span in spans)
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


def _check_size(owned: Slice, head: pb.Transfer, payload: Buffer) -> None:
    """Encoding and length must fit the slice; seeds and held versions come as f32 or bf16."""
    if not head.HasField("offer") and head.encoding not in arrays.FLOATS:
        raise TransferError(f"slice {owned.fragment}: whole values must come as f32 or bf16")
    try:
        expected = owned.form.byte_count(head.encoding)
    except ValueError as error:
        raise TransferError(f"slice {owned.fragment}: {error}") from error
    if len(payload) != expected:
        raise TransferError(f"slice {owned.fragment}: {len(payload)} bytes, not {expected}")
