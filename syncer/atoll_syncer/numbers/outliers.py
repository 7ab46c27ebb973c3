"""Which offers of a round are outliers: finite, and far longer than usual (rule 12).

A loss spike, a wrong learning rate or a flipped bit of an exponent makes a difference many times
longer than those before it. Merged with its weight it moves the model further than all others
together. EDiT (arXiv 2412.07210) leaves such offers out by a z-test on running means of
norms; a ratio to medians needs no long past, and says what a person can check.

An offer is an outlier when its norm is beyond `limit` times both

- the median of its own slot's last norms in this slice: a slot whose steps are longer for good
  reasons, such as a larger share of the data, is none;
- the median of the others' newest norms in this slice: what all do is no outlier, as in a warm-up
  or after a change of the data.

Who has fewer than PAST_MIN norms, or no others, is not judged. Norms of what was left out are not
kept, so who stays far out stays out. The past is this process's alone, and decides no more than
which offers a commit names: a replay needs none of it.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import BLOCK_MAX
from atoll_syncer.numbers.arrivals import Arrived
from atoll_syncer.numbers.merge import mean_coefficients

PAST_MIN, PAST_MAX = 3, 9
SAMPLE_ELEMENTS: Final = 1 << 16  # of a slice, of which cosines are taken


class NormHistory:
    """The last norms of each slot's offers, by slice; for one thread."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # 0: nothing is an outlier
        self._past: dict[int, dict[str, deque[float]]] = {}  # by slice, by slot

    def outliers(self, slice_: int, norms: Mapping[str, float]) -> dict[str, str]:
        """Why, by slot, of those offers that are; the norms of all others are kept."""
        past = self._past.setdefault(slice_, {})
        newest = {slot: each[-1] for slot, each in past.items()} | dict(norms)
        found = dict[str, str]()
        for slot, norm in norms.items():
            own = past.get(slot, ())
            others = [each for of, each in newest.items() if of != slot]
            if not self.limit or len(own) < PAST_MIN or not others:
                continue
            usual, theirs = median(own), median(others)
            if norm > self.limit * usual and norm > self.limit * theirs:
                found[slot] = (
                    f"an outlier: its norm of {norm:.3g} is {_ratio(norm, usual)} its usual one"
                    f" and {_ratio(norm, theirs)} the others'"
                )
        for slot in norms.keys() - found.keys():
            past.setdefault(slot, deque(maxlen=PAST_MAX)).append(norms[slot])
        return found


def norm_of(offer: Arrived) -> float:
    """|v| of the whole offer."""
    return math.hypot(*offer.norms)


def cosines(offers: Sequence[Arrived], weights: Sequence[float]) -> list[float]:
    """Of each offer with the weighted mean of all, on SAMPLE_ELEMENTS values; 0 where one is 0."""
    form = offers[0].values.form
    first = form.exact if form.coded else 0  # a span has values of one kind
    span = range(first, min(form.element_count, first + SAMPLE_ELEMENTS))
    samples = [_sample(offer, span) for offer in offers]
    mean = np.zeros(len(span), np.float64)
    for share, sample in zip(mean_coefficients(weights), samples, strict=True):
        mean += share * sample
    lengths = [float(np.linalg.norm(sample)) * float(np.linalg.norm(mean)) for sample in samples]
    dots = [float(np.dot(sample, mean)) for sample in samples]
    return [dot / each if each else 0.0 for dot, each in zip(dots, lengths, strict=True)]


def _ratio(norm: float, usual: float) -> str:
    return f"{norm / usual:.0f} times" if usual else "more than"


def _sample(offer: Arrived, span: range) -> Array:
    scratch = np.zeros(len(span) + 2 * BLOCK_MAX, F32)  # also beyond the last whole block
    return offer.values.read(span, scratch).astype(np.float64)
