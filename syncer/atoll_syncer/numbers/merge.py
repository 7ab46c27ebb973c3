"""Merging the learners' differences: weighted mean and radial-directional average (2604.21428).

With differences v_m and weights w_m = tokens^2 / steps, and phi(v) = v / |v|:

    weighted mean                sum w v / sum w
    radial-directional (RDA)     (sum w |v| / sum w) * phi(sum w phi(v) / sum w)

The mean of vectors that point in different directions is shorter than they are, the more so the
more learners there are. RDA averages lengths and directions apart, so the merged difference has
the mean length. It is taken per tensor; embeddings take the weighted mean (docs/algorithm.md).

Three demands shape the code:

- One pass over memory: differences are decoded block by block (BLOCK_ELEMENTS) into one scratch
  that stays in the cache. RDA needs the length of the mean direction before it can scale, so it
  keeps the sums of one tensor and takes a second pass over those.
- The same bits on every machine, with any number of threads: sums run in the order given (slot
  order, rule 12), and norms over rows of fixed length, which torch never splits.
- No value that is not finite gets through: |v| of an offer is not finite if an element is not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from atoll_protos.codecs import BLOCK_MAX

BLOCK_ELEMENTS = 256 << 10  # measured: smaller ones pay for calls, larger ones leave the cache
F32_MAX = torch.finfo(torch.float32).max
ROW_ELEMENTS = 8 << 10  # of a norm: small enough that torch never splits a row over threads
TINY = 1e-30  # a shorter difference has no direction: 1/|v| would leave f32
CANCELLED = 1e-3  # a shorter mean direction is noise; M random directions give 1/sqrt(M)


class Delta(Protocol):
    """One learner's difference for one slice, in the encoding in which it came."""

    def read(self, span: range, scratch: torch.Tensor) -> torch.Tensor:
        """The span's elements as f32[len(span)], in `scratch` or in memory of its own.

        `scratch` is f32 and holds the span and two blocks of the codec. The caller only reads the
        result, and only until the next call with the same scratch.
        """


class Scratch:
    """Memory that merges reuse: first writes to fresh pages cost more than the merge itself.

    `sum_elements` must be that of the largest tensor merged by RDA, or of a block.
    """

    def __init__(self, sum_elements: int = BLOCK_ELEMENTS) -> None:
        # A read begins and ends at whole blocks of its codec: it may be longer than its span.
        self.decoded = torch.empty(BLOCK_ELEMENTS + 2 * BLOCK_MAX)
        self.sums = torch.empty(sum_elements).zero_()


def mean_coefficients(weights: Sequence[float]) -> list[float]:
    """w_m / sum w; equal shares when all weights are 0 (no tokens were counted)."""
    total = math.fsum(weights)
    if total == 0:
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def direction_coefficients(weights: Sequence[float], norms: Sequence[float]) -> list[float]:
    """What each difference is multiplied by so that the sum is `sum w phi(v) / sum w`."""
    shares = mean_coefficients(weights)
    return [share / norm if norm > TINY else 0.0 for share, norm in zip(shares, norms, strict=True)]


def radial_scale(
    weights: Sequence[float], norms: Sequence[float], direction_norm: float
) -> float | None:
    """`(sum w|v| / sum w) / |mean direction|`.

    None when the directions cancel, or when the scale is beyond f32.
    """
    if direction_norm < CANCELLED:
        return None
    shares = mean_coefficients(weights)
    length = math.fsum(share * norm for share, norm in zip(shares, norms, strict=True))
    scale = length / direction_norm
    return scale if scale <= F32_MAX else None


def squared_norm(block: torch.Tensor) -> float:
    """Sum of squares of f32[n]; finite if all elements are.

    Rows of fixed length are summed apart, so that the bits do not depend on torch's threads.
    """
    whole = block.numel() // ROW_ELEMENTS * ROW_ELEMENTS
    norms: list[float] = []
    if whole:
        rows = block[:whole].view(-1, ROW_ELEMENTS)
        norms = torch.linalg.vector_norm(rows, dim=1).tolist()
    if whole < block.numel():
        norms.append(torch.linalg.vector_norm(block[whole:]).item())
    if not all(map(math.isfinite, norms)) and bool(torch.isfinite(block).all()):
        norms = [torch.linalg.vector_norm(block.double()).item()]  # squares beyond f32
    return math.fsum(norm * norm for norm in norms)


def blocks(span: range) -> Iterator[range]:
    """Consecutive ranges of at most BLOCK_ELEMENTS that cover the span."""
    for start in range(span.start, span.stop, BLOCK_ELEMENTS):
        yield range(start, min(start + BLOCK_ELEMENTS, span.stop))


def norm(delta: Delta, span: range, scratch: Scratch) -> float:
    """|v| of the span's elements; not finite when an element is not."""
    squares = (squared_norm(delta.read(block, scratch.decoded)) for block in blocks(span))
    return math.sqrt(math.fsum(squares))


def weighted_mean(
    deltas: Sequence[Delta], weights: Sequence[float], span: range, scratch: Scratch
) -> Iterator[tuple[range, torch.Tensor]]:
    """`sum w v / sum w` of the span's elements, block by block as f32.

    Summed in the order given (slot order: rule 12). The receiver may write to a block, which
    holds until the next is asked for.
    """
    coefficients = mean_coefficients(weights)
    for block in blocks(span):
        out = scratch.sums[: len(block)]
        _weighted_sum(deltas, coefficients, block, out, scratch)
        yield block, out


def radial_directional(
    deltas: Sequence[Delta],
    weights: Sequence[float],
    norms: Sequence[float],
    span: range,
    scratch: Scratch,
) -> Iterator[tuple[range, torch.Tensor]]:
    """`(sum w|v| / sum w) * phi(sum w phi(v) / sum w)` of one tensor, block by block as f32.

    `norms` are the |v| over the span. Directions that cancel give the weighted mean. Two passes,
    since the length of the mean direction is known only at its end: the first leaves the mean
    direction in `scratch.sums`, the second scales it, from the cache when the tensor is small.
    """
    if len(deltas) == 1:  # RDA(v) = v, without rounding it twice
        yield from weighted_mean(deltas, weights, span, scratch)
        return
    coefficients = direction_coefficients(weights, norms)
    squares: list[float] = []
    for block in blocks(span):
        out = scratch.sums[block.start - span.start : block.stop - span.start]
        _weighted_sum(deltas, coefficients, block, out, scratch)
        squares.append(squared_norm(out))
    scale = radial_scale(weights, norms, math.sqrt(math.fsum(squares)))
    if scale is None:
        yield from weighted_mean(deltas, weights, span, scratch)
        return
    for block in blocks(span):
        out = scratch.sums[block.start - span.start : block.stop - span.start]
        yield block, out.mul_(scale)


def _weighted_sum(
    deltas: Sequence[Delta],
    coefficients: Sequence[float],
    block: range,
    out: torch.Tensor,
    scratch: Scratch,
) -> None:
    """`out = sum c v` over the block, in the order given."""
    torch.mul(deltas[0].read(block, scratch.decoded), coefficients[0], out=out)
    for delta, coefficient in zip(deltas[1:], coefficients[1:], strict=True):
        out.add_(delta.read(block, scratch.decoded), alpha=coefficient)
