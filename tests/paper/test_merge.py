"""Radial-directional averaging (2604.21428, the merge of Decoupled DiLoCo; docs/algorithm.md)."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_protos.transfer.arrays import F32, RUN, Array
from atoll_syncer.numbers.merge import (
    Take,
    mean_coefficients,
    norm,
    radial_directional,
    weighted_mean,
)
from atoll_syncer.numbers.workers import ROWS, Scratch, Workers

ALONE = Workers(1)


@dataclass(frozen=True, slots=True)
class Exact:
    """A difference that is an f32[n] array already."""

    values: Array
    decoded: bool = False

    def read(self, span: range, scratch: Array) -> Array:
        """See merge.Delta."""
        return self.values[span.start : span.stop]

    def floats(self, span: range) -> Array | None:
        """See merge.Delta."""
        return None if self.decoded else self.values[span.start : span.stop]

    def unscaled(self, span: range, out: Array) -> tuple[Array, Array, slice]:
        """See merge.Delta."""
        out[: len(span)] = self.values[span.start : span.stop]
        return out[None, : len(span)], np.ones(1, F32), slice(len(span))


def taken(count: int) -> tuple[Array, Take]:
    """Memory for a merged difference, and what puts its blocks there."""
    merged = np.full(count, np.nan, F32)

    def take(block: range, values: Array, _: Scratch) -> None:
        merged[block.start : block.stop] = values

    return merged, take


def rda(vectors: Sequence[Array], weights: Sequence[float], workers: Workers = ALONE) -> Array:
    span, deltas = range(vectors[0].size), [Exact(vector) for vector in vectors]
    norms = [norm(delta, span, workers) for delta in deltas]
    merged, take = taken(len(span))
    radial_directional(deltas, weights, norms, span, workers, take)
    return merged


def mean(vectors: Sequence[Array], weights: Sequence[float], *, decoded: bool = False) -> Array:
    merged, take = taken(vectors[0].size)
    span = range(vectors[0].size)
    weighted_mean([Exact(vector, decoded) for vector in vectors], weights, span, ALONE, take)
    return merged


def published(vectors: Sequence[Array], weights: Sequence[float]) -> Array:
    """`(sum w|v| / sum w) * phi( sum w phi(v) / sum w )`, phi(x) = x/|x|, phi(0) = 0; in f64."""

    def phi(vector: Array) -> Array:
        length = np.linalg.norm(vector)
        return vector / length if length else vector

    doubles = [vector.astype(float) for vector in vectors]
    total = sum(weights)
    length = (
        sum(w * float(np.linalg.norm(v)) for w, v in zip(weights, doubles, strict=True)) / total
    )
    direction = sum(phi(v) * w for w, v in zip(weights, doubles, strict=True))
    return length * phi(np.asarray(direction) / total)


def random_vectors(count: int, element_count: int, seed: int) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(element_count, F32) for _ in range(count)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Array], list[float]]:
    count = draw(st.integers(1, 6))
    vectors = random_vectors(count, draw(st.integers(2, 300)), draw(st.integers(0, 1 << 30)))
    scales = draw(st.lists(st.floats(1e-6, 1e3), min_size=count, max_size=count))
    weights = draw(st.lists(st.floats(1e-3, 1e6), min_size=count, max_size=count))
    return [
        vector * F32.type(scale) for vector, scale in zip(vectors, scales, strict=True)
    ], weights


def close(left: Array, right: Array, tolerance: float = 1e-5) -> bool:
    left, right = left.astype(float), right.astype(float)
    return bool(np.linalg.norm(left - right) <= tolerance * np.linalg.norm(right) + 1e-30)


@given(cases())
def test_rda_is_the_published_formula(case: tuple[list[Array], list[float]]) -> None:
    vectors, weights = case
    reference = published(vectors, weights)
    doubles = [vector.astype(float) for vector in vectors]
    directions = [v / np.linalg.norm(v) * w for v, w in zip(doubles, weights, strict=True)]
    if np.linalg.norm(sum(directions)) / sum(weights) > 1e-2:
        assert close(rda(vectors, weights), reference, 1e-4)


@given(cases())
def test_the_mean_is_the_weighted_mean(case: tuple[list[Array], list[float]]) -> None:
    vectors, weights = case
    terms = [v.astype(float) * w for v, w in zip(vectors, weights, strict=True)]
    largest = max(float(np.linalg.norm(term)) for term in terms) / sum(weights)
    error = mean(vectors, weights).astype(float) - sum(terms) / sum(weights)
    assert float(np.linalg.norm(error)) <= 1e-6 * len(vectors) * largest


@given(cases())
def test_the_length_of_rda_is_the_mean_length(
    case: tuple[list[Array], list[float]],
) -> None:
    """|RDA| = sum w|v| / sum w, whatever the directions (unless they cancel)."""
    vectors, weights = case
    length = sum(
        w * float(np.linalg.norm(v.astype(float))) for w, v in zip(weights, vectors, strict=True)
    )
    length /= sum(weights)
    merged = float(np.linalg.norm(rda(vectors, weights).astype(float)))
    assert merged <= length * (1 + 1e-5)
    if len(vectors) == 1 or vectors[0].size > 50:  # directions in few dimensions may cancel
        assert merged == pytest.approx(length, rel=1e-4)


@given(cases())
def test_equal_vectors_merge_to_themselves(case: tuple[list[Array], list[float]]) -> None:
    vectors, weights = case
    same = [vectors[0]] * len(vectors)
    assert close(rda(same, weights), vectors[0])
    assert close(mean(same, weights), vectors[0])


@given(cases(), st.floats(1e-3, 1e3))
def test_scaling_every_vector_scales_the_merge(
    case: tuple[list[Array], list[float]], factor: float
) -> None:
    vectors, weights = case
    scaled = rda([vector * F32.type(factor) for vector in vectors], weights)
    assert close(scaled, rda(vectors, weights) * F32.type(factor), 1e-3)


@given(cases(), st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_counts(
    case: tuple[list[Array], list[float]], factor: float
) -> None:
    vectors, weights = case
    scaled = rda(vectors, [weight * factor for weight in weights])
    assert close(scaled, rda(vectors, weights), 1e-4)


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_slots_moves_only_the_last_bits(
    case: tuple[list[Array], list[float]], dice: object
) -> None:
    vectors, weights = case
    order = list(range(len(vectors)))
    dice.shuffle(order)  # type: ignore[attr-defined]
    permuted = rda([vectors[i] for i in order], [weights[i] for i in order])
    assert close(permuted, rda(vectors, weights), 1e-3)


@pytest.mark.parametrize("learners", [2, 4, 8])
def test_orthogonal_vectors_keep_their_length_where_the_mean_shrinks(learners: int) -> None:
    """The reason for RDA: outer gradients are nearly orthogonal, so means shrink by 1/sqrt(M)."""
    vectors = [np.eye(learners, dtype=F32)[m] * F32.type(3) for m in range(learners)]
    weights = [1.0] * learners
    assert float(np.linalg.norm(rda(vectors, weights))) == pytest.approx(3.0, rel=1e-6)
    assert float(np.linalg.norm(mean(vectors, weights))) == pytest.approx(3.0 / math.sqrt(learners))


def test_a_learner_that_did_not_move_gives_length_but_no_direction() -> None:
    """phi(0) = 0."""
    vectors = [np.array([3.0, 4.0], F32), np.zeros(2, F32)]
    assert close(rda(vectors, [1.0, 1.0]), np.array([1.5, 2.0], F32))
    assert np.array_equal(rda([np.zeros(2, F32)] * 2, [1.0, 1.0]), np.zeros(2, F32))


def test_directions_that_cancel_give_the_weighted_mean() -> None:
    vectors = [np.array([3.0, 4.0], F32), np.array([-6.0, -8.0], F32)]
    assert np.array_equal(rda(vectors, [1.0, 1.0]), np.array([-1.5, -2.0], F32))


def test_a_sole_offer_is_taken_to_the_bit() -> None:
    (vector,) = random_vectors(1, 1000, 3)
    assert np.array_equal(rda([vector], [17.0]), vector)


def test_offers_without_tokens_count_alike() -> None:
    vectors = [np.array([1.0, 0.0], F32), np.array([3.0, 0.0], F32)]
    assert np.array_equal(mean(vectors, [0.0, 0.0]), np.array([2.0, 0.0], F32))


@pytest.mark.parametrize("learners", [2, ROWS, ROWS + 1, 2 * ROWS + 3])
@pytest.mark.parametrize("count", [1, 2, 7, RUN + 5])
@pytest.mark.parametrize("decoded", [False, True])
def test_terms_are_added_one_after_the_other_in_f32(
    learners: int, count: int, decoded: bool
) -> None:
    """Rule 12, in the order of the slots, however many they are and however long the tensor."""
    vectors, weights = random_vectors(learners, count, 5), [1.0 + n for n in range(learners)]
    factors = [F32.type(share) for share in mean_coefficients(weights)]
    expected: Array = vectors[0] * factors[0]
    for vector, factor in zip(vectors[1:], factors[1:], strict=True):
        expected = expected + vector * factor
    assert np.array_equal(mean(vectors, weights, decoded=decoded), expected)


def test_a_tensor_of_many_blocks_is_one_tensor() -> None:
    """Its length and direction are of the whole, not of each block."""
    vectors = random_vectors(3, 2 * RUN + 1234, 9)
    vectors[1][:RUN] *= 100
    assert close(rda(vectors, [1.0, 2.0, 3.0]), published(vectors, [1.0, 2.0, 3.0]))


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    """A machine with more cores would else make another version of the same offers."""
    vectors, weights = random_vectors(3, 3 * RUN + 4321, 11), [1.0, 2.0, 3.0]
    alone = rda(vectors, weights)
    for threads in (2, 3, 5):
        assert np.array_equal(rda(vectors, weights, Workers(threads)), alone)
        (one, other) = (
            norm(Exact(vectors[0]), range(vectors[0].size), each)
            for each in (ALONE, Workers(threads))
        )
        assert one == other


def test_a_block_that_fails_in_another_thread_fails_the_merge() -> None:
    failing = threading.Event()

    def take(block: range, values: Array, _: Scratch) -> None:
        if threading.current_thread() is not threading.main_thread():
            failing.set()
            raise MemoryError
        failing.wait()

    delta = Exact(np.ones(3 * RUN, F32))
    with pytest.raises(MemoryError):
        weighted_mean([delta], [1.0], range(3 * RUN), Workers(2), take)
