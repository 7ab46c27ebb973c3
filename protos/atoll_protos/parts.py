"""How a slice is divided into parts, and where a part's bytes lie in the bytes of the slice.

A learner may be several processes on several hosts, and may have several connections to a shard.
Then a slice is cut into N *parts* of its canonical order (docs/protocol.md, rule 32): part k is
what one rank holds when a slice goes through the ranks, and what lane k carries on the wire. The
cut is a function of the layout and N alone, so values, norms and digests do not depend on N.

No block of a codec with scales lies in two parts. Therefore the bytes of an encoded part are bytes
of the encoded slice, and a shard cuts and joins them without a look at a value:

    whole:    exact f32 .......  scales of all blocks ....  levels of all blocks ..........
    part k:      [piece]              [piece]                     [piece]

On the wire the pieces of a part follow one another without gaps, in the order of the whole. For
f32 and bf16 there are no scales, and the pieces lie one behind the other in the whole as well.
"""

from itertools import pairwise
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import BLOCK_MAX, EXACT_BYTES, Form, of

LANES_MAX: Final = 256  # parts of a slice on the wire


def part_edges(form: Form, parts: int) -> tuple[int, ...]:
    """Where the parts of a slice begin and end: part k is elements edges[k] .. edges[k + 1].

    Parts are equal but for one block of a codec with scales: no block lies in two parts, so that
    an encoded part is a piece of the encoded slice (docs/protocol.md, rule 32). The blocks begin
    behind the exact values. Parts may be empty.
    """
    count, exact = form.element_count, form.exact
    equal = (count * part // parts for part in range(parts))
    return (*(edge - max(0, edge - exact) % BLOCK_MAX for edge in equal), count)


def part_spans(form: Form, encoding: pb.Encoding, parts: int) -> tuple[tuple[range, ...], ...]:
    """By part: which bytes of the encoded slice it has, as ranges in order; none of them is empty.

    The ranges of all parts tile the bytes of the slice. Raises ValueError for an encoding without
    a codec.
    """
    if parts == 1:
        return (_some(range(form.byte_count(encoding))),)
    codec, levels_at = of(encoding), form.exact_bytes + of(encoding).scale_bytes(form.coded)
    spans = []
    for first, stop in pairwise(part_edges(form, parts)):
        exact = range(EXACT_BYTES * min(first, form.exact), EXACT_BYTES * min(stop, form.exact))
        begin, end = max(0, first - form.exact), max(0, stop - form.exact)
        scales = range(
            form.exact_bytes + codec.scale_bytes(begin), form.exact_bytes + codec.scale_bytes(end)
        )
        levels = range(
            levels_at + -(-begin * codec.bits // 8), levels_at + -(-end * codec.bits // 8)
        )
        spans.append(_some(exact, scales, levels))
    return tuple(spans)


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
    """How many bytes a part has."""
    return sum(map(len, spans))
