"""How a slice is divided into parts, and where a part's bytes lie in the bytes of the slice.

A slice is cut into N *parts* of its canonical order (rule 32): part k is what one rank holds when a
slice goes through the ranks, and what lane k carries. The cut is a function of the layout and N
alone, so values, norms and digests do not depend on N. No block of a codec with scales lies in two
parts, so a shard cuts and joins the bytes of encoded parts without a look at a value:

    whole:    exact f32 .......  scales of all blocks ....  levels of all blocks ..........
    part k:      [piece]              [piece]                     [piece]

On the wire the pieces of a part follow one another without gaps, in the order of the whole.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import BLOCK_MAX, EXACT_BYTES, Form, of

LANES_MAX: Final = 256  # parts of a slice on the wire


@dataclass(frozen=True, slots=True)
class Share:
    """Parts `first` .. `stop` of `parts` of every slice, which one process holds as one run."""

    first: int = 0
    stop: int = 1
    parts: int = 1

    @property
    def lanes(self) -> range:
        return range(self.first, self.stop)

    @property
    def is_whole(self) -> bool:
        return len(self.lanes) == self.parts

    def elements(self, form: Form) -> range:
        """May be empty."""
        edges = part_edges(form, self.parts)
        return range(edges[self.first], edges[self.stop])

    def form(self, form: Form) -> Form:
        held = self.elements(form)
        exact = min(held.stop, form.exact) - min(held.start, form.exact)
        return Form(exact, len(held) - exact)

    def spans(self, form: Form, encoding: pb.Encoding) -> tuple[tuple[range, ...], ...]:
        """By part, in the bytes of what is held. Raises ValueError for an unknown encoding."""
        if self.is_whole:
            return part_spans(form, encoding, self.parts)
        held, edges = self.elements(form), part_edges(form, self.parts)
        own = self.form(form)
        return tuple(
            _spans(own, encoding, edges[part] - held.start, edges[part + 1] - held.start)
            if part in self.lanes
            else ()
            for part in range(self.parts)
        )


ALL: Final = Share()  # of a process that holds everything


def part_edges(form: Form, parts: int) -> tuple[int, ...]:
    """Part k is elements edges[k] .. edges[k + 1]; parts may be empty.

    They are equal but for a block of a codec with scales; blocks begin behind the exact values.
    """
    count, exact = form.element_count, form.exact
    equal = (count * part // parts for part in range(parts))
    return (*(edge - max(0, edge - exact) % BLOCK_MAX for edge in equal), count)


def part_spans(form: Form, encoding: pb.Encoding, parts: int) -> tuple[tuple[range, ...], ...]:
    """By part, in the encoded slice; no range is empty. Raises ValueError for unknown encodings."""
    if parts == 1:
        return (_some(range(form.byte_count(encoding))),)
    edges = pairwise(part_edges(form, parts))
    return tuple(_spans(form, encoding, first, stop) for first, stop in edges)


def _spans(form: Form, encoding: pb.Encoding, first: int, stop: int) -> tuple[range, ...]:
    """Where the bytes of elements first..stop lie; no block of a codec is cut there."""
    codec, levels_at = of(encoding), form.exact_bytes + of(encoding).scale_bytes(form.coded)
    exact = range(EXACT_BYTES * min(first, form.exact), EXACT_BYTES * min(stop, form.exact))
    begin, end = max(0, first - form.exact), max(0, stop - form.exact)
    scales = range(
        form.exact_bytes + codec.scale_bytes(begin), form.exact_bytes + codec.scale_bytes(end)
    )
    levels = range(levels_at + -(-begin * codec.bits // 8), levels_at + -(-end * codec.bits // 8))
    return _some(exact, scales, levels)


def _some(*spans: range) -> tuple[range, ...]:
    """Those with bytes, joined where one begins at the end of the one before."""
    found: list[range] = []
    for span in spans:
        if found and span and found[-1].stop == span.start:
            found[-1] = range(found[-1].start, span.stop)
        elif span:
            found.append(span)
    return tuple(found)


def span_bytes(spans: tuple[range, ...]) -> int:
    return sum(map(len, spans))
