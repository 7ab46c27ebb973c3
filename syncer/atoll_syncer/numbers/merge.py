"""Merging the learners' differences: weighted mean and radial-directional average (2604.21428).

With differences v_m and weights w_m = tokens^2 / steps, and phi(v) = v / |v|:

    weighted mean                sum w v / sum w
    radial-directional (RDA)     (sum w |v| / sum w) * phi(sum w phi(v) / sum w)

The mean of vectors that point in different directions is shorter than they are, the more so the
more learners there are. RDA averages lengths and directions apart, so the merged difference has
the mean length. It is taken per tensor; embeddings take the weighted mean (docs/algorithm.md).

Three demands shape the code:

- One pass over memory: differences are decoded block by block into scratch that stays in the cache.
  RDA needs the length of the mean direction before it can scale, so it keeps the sums of one
  tensor and takes a second pass over those.
- The same bits with any number of threads: sums run in the order given (slot order, rule 12). A
  norm sums the squares of a row of fixed length in f32, and the rows in f64, exactly. The squares
  of an integer codec's levels are summed before they are scaled, exactly.
- No value that is not finite gets through: |v| of an offer is not finite if an element is not.

The outer optimizer, in place: SGD with Nesterov momentum, f32 (2311.08105, algorithm 1).

With the merged difference d as gradient, learning rate eta and momentum mu:

    m := mu * m + d
    master := master - eta * (d + mu * m)

The differences are `base - theta`, what the learners moved away from, so subtracting them moves
the master towards the learners. With eta = 1 and mu = 0 the step is a plain average of models.

Each operation rounds by itself, so the bits do not depend on how a slice is cut into blocks, nor on
the machine. torch.optim.SGD(nesterov=True) fuses products with sums, and differs in the last bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from atoll_protos.transfer.arrays import F32, Array
from atoll_syncer.numbers.workers import Scratch, Workers, blocks

F32_MAX: Final = float(np.finfo(F32).max)
ROW_ELEMENTS: Final = 8 << 10  # of a norm: so few that BLAS never splits them over threads
TINY: Final = 1e-30  # a shorter difference has no direction: 1/|v| would leave f32
CANCELLED: Final = 1e-3  # a shorter mean direction is noise; M random directions give 1/sqrt(M)


class Delta(Protocol):
    """One learner's difference for one slice, in the encoding in which it came."""

    def read(self, span: range, scratch: Array) -> Array:
        """Return the span's elements, f32[len(span)], in `scratch` or in memory of its own.

        `scratch` is f32 and holds the span and two blocks of the codec. The caller only reads the
        result, and only until the next call with the same scratch.
        """

    def floats(self, span: range) -> Array | None:
        """Return the same as it came, f32 or bf16; None of an integer codec."""

    def unscaled(self, span: range, out: Array) -> tuple[Array, Array, slice]:
        """Return the values before the scales: f32[blocks, values of a block] over `out`.

        Also the scales, f32[blocks], and where the span lies among the values. `out` is as long as
        `scratch` of `read`.
        """


Take = Callable[[range, Array, Scratch], None]
"""Gets a block of the merged difference as f32, which it may write to.

Each block comes once, in any order and in any of the threads.
"""


def mean_coefficients(weights: Sequence[float]) -> list[float]:
    """w_m / sum w; equal shares when all weights are 0 (no tokens were counted)."""
    total = math.fsum(weights)
    if total == 0:
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def direction_coefficients(weights: Sequence[float], norms: Sequence[float]) -> list[float]:
    """Return what each difference is multiplied by so that the sum is `sum w phi(v) / sum w`."""
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


def squared_norm(block: Array) -> float:
    """Sum of squares of f32[n]; finite if all elements are."""
    whole = block.size // ROW_ELEMENTS * ROW_ELEMENTS
    rows, rest = block[:whole].reshape(-1, ROW_ELEMENTS), block[whole:]
    found = math.fsum([*np.vecdot(rows, rows).tolist(), float(np.vecdot(rest, rest))])
    if not math.isfinite(found) and bool(np.isfinite(block).all()):
        found = float(np.square(block, dtype=np.float64).sum())  # squares beyond f32
    return found


def _squared_levels(levels: Array, scales: Array, place: slice) -> float:
    """Sum of squares of levels times scales: those of a block's levels are integers below 2^24."""
    flat = levels.reshape(-1)
    flat[: place.start] = flat[place.stop :] = 0
    return float(np.dot(np.square(scales, dtype=np.float64), np.vecdot(levels, levels)))


def norm(delta: Delta, span: range, workers: Workers) -> float:
    """|v| of the span's elements; not finite when an element is not."""

    def squares(block: range, scratch: Scratch) -> float:
        if delta.floats(block) is None:
            found = _squared_levels(*delta.unscaled(block, scratch.one))
            if found < F32_MAX:  # else an element may be beyond f32
                return found
        return squared_norm(delta.read(block, scratch.one))

    return math.sqrt(math.fsum(workers.each(blocks(span), squares)))


def weighted_mean(
    deltas: Sequence[Delta], weights: Sequence[float], span: range, workers: Workers, take: Take
) -> None:
    """`sum w v / sum w` of the span's elements, summed in the order given (slot order: rule 12)."""
    coefficients = mean_coefficients(weights)

    def merge(block: range, scratch: Scratch) -> None:
        out = scratch.sums[: len(block)]
        _weighted_sum(deltas, coefficients, block, out, scratch)
        take(block, out, scratch)

    workers.each(blocks(span), merge)


def radial_directional(
    deltas: Sequence[Delta],
    weights: Sequence[float],
    norms: Sequence[float],
    span: range,
    workers: Workers,
    take: Take,
) -> None:
    """`(sum w|v| / sum w) * phi(sum w phi(v) / sum w)` of one tensor.

    `norms` are the |v| over the span. Directions that cancel give the weighted mean. Two passes,
    since the length of the mean direction is known only at its end: the first leaves the mean
    direction in `workers.tensor`, the second scales it, from the cache when the tensor is small.
    """
    if len(deltas) == 1:  # RDA(v) = v, without rounding it twice
        weighted_mean(deltas, weights, span, workers, take)
        return
    coefficients = direction_coefficients(weights, norms)
    sums = workers.tensor(len(span))

    def part_of(block: range) -> Array:
        return sums[block.start - span.start : block.stop - span.start]

    def direct(block: range, scratch: Scratch) -> float:
        _weighted_sum(deltas, coefficients, block, part_of(block), scratch)
        return squared_norm(part_of(block))

    squares = math.fsum(workers.each(blocks(span), direct))
    scale = radial_scale(weights, norms, math.sqrt(squares))
    if scale is None:
        weighted_mean(deltas, weights, span, workers, take)
        return

    def stretch(block: range, scratch: Scratch) -> None:
        take(block, np.multiply(part_of(block), scale, out=part_of(block)), scratch)

    workers.each(blocks(span), stretch)


def _weighted_sum(
    deltas: Sequence[Delta],
    coefficients: Sequence[float],
    block: range,
    out: Array,
    scratch: Scratch,
) -> None:
    """`out = sum c v` over the block, in the order given.

    Where there are more terms than rows, the first of the next rows is the sum so far.
    """
    floats = [delta.floats(block) for delta in deltas]
    in_place = [each for each in floats if each is not None and each.dtype == F32]
    if len(in_place) == len(deltas):
        _sum_in_place(in_place, coefficients, out, scratch)
        return
    rows, sums, factors, place = scratch.rows, scratch.sums, list[Array](), slice(0)
    levels = rows[:0]
    for delta, coefficient in zip(deltas, coefficients, strict=True):
        if len(factors) == len(rows):
            np.copyto(rows[0, : levels.size], _sum_of_rows(rows, factors, levels.shape, sums))
            factors = [np.ones_like(factors[0])]
        levels, scales, place = delta.unscaled(block, rows[len(factors)])
        factors.append(scales * F32.type(coefficient))
    if levels.size == out.size:
        _sum_of_rows(rows, factors, levels.shape, out)
    else:  # the span begins or ends within a block of the codec
        np.copyto(out, _sum_of_rows(rows, factors, levels.shape, sums)[place])


def _sum_in_place(
    terms: Sequence[Array], coefficients: Sequence[float], out: Array, scratch: Scratch
) -> None:
    """Ufuncs, which need not copy the terms into rows, are faster here than `einsum`."""
    total, last = scratch.sums[: out.size], len(terms) - 1
    for number, (term, coefficient) in enumerate(zip(terms, coefficients, strict=True)):
        into = out if number == last else total  # `out` may lie outside of the cache
        product = scratch.one[: out.size] if number else into
        np.multiply(term, F32.type(coefficient), out=product)
        if number:
            np.add(total, product, out=into)


def _sum_of_rows(
    rows: Array, factors: Sequence[Array], shape: tuple[int, ...], out: Array
) -> Array:
    """Each block of each row times its factor, added up in the order of the rows.

    `einsum` multiplies and adds in one pass over each row, where ufuncs need two.
    """
    sums = out[: math.prod(shape)]
    stack = rows[: len(factors), : sums.size].reshape(-1, *shape)
    np.einsum("mbi,mb->bi", stack, np.array(factors), out=sums.reshape(shape))
    return sums


def nesterov_step(
    master: Array,
    buffer: Array,
    delta: Array,
    work: Array,
    *,
    learning_rate: float,
    momentum: float,
) -> None:
    """One step of `master` and its momentum `buffer` against `delta`, all f32[n], in place.

    A buffer of zeros is the first step. `delta` and `work`, f32[n] too, are used up. The buffer is
    kept with a momentum of 0 as well: the next momentum may be another.
    """
    np.multiply(buffer, momentum, out=buffer)
    np.add(buffer, delta, out=buffer)
    np.multiply(buffer, momentum, out=work)
    np.add(delta, work, out=delta)
    np.multiply(delta, learning_rate, out=delta)
    np.subtract(master, delta, out=master)
