"""Radial-directional averaging (2604.21428, the merge of Decoupled DiLoCo; docs/algorithm.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_syncer.numbers.merge import (
    BLOCK_ELEMENTS,
    Scratch,
    norm,
    radial_directional,
    weighted_mean,
)

torch.set_num_threads(1)
SCRATCH = Scratch()


@dataclass(frozen=True, slots=True)
class Exact:
    """A difference that is an f32[n] tensor already."""

    values: torch.Tensor

    def read(self, span: range, scratch: torch.Tensor) -> torch.Tensor:
        """See merge.Delta."""
        return self.values[span.start : span.stop]


def rda(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    span = range(vectors[0].numel())
    scratch = Scratch(max(len(span), BLOCK_ELEMENTS))
    deltas = [Exact(vector) for vector in vectors]
    norms = [norm(delta, span, scratch) for delta in deltas]
    merged = radial_directional(deltas, weights, norms, span, scratch)
    return torch.cat([block.clone() for _, block in merged])


def mean(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    span = range(vectors[0].numel())
    merged = weighted_mean([Exact(vector) for vector in vectors], weights, span, SCRATCH)
    return torch.cat([block.clone() for _, block in merged])


def published(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """`(sum w|v| / sum w) * phi( sum w phi(v) / sum w )`, phi(x) = x/|x|, phi(0) = 0; in f64."""

    def phi(vector: torch.Tensor) -> torch.Tensor:
        length = vector.norm()
        return vector / length if length else vector

    doubles = [vector.double() for vector in vectors]
    total = sum(weights)
    length = sum(w * float(v.norm()) for w, v in zip(weights, doubles, strict=True)) / total
    direction = torch.stack([phi(v) * w for w, v in zip(weights, doubles, strict=True)]).sum(0)
    return length * phi(direction / total)


def random_vectors(count: int, element_count: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(element_count, generator=generator) for _ in range(count)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[torch.Tensor], list[float]]:
    count = draw(st.integers(1, 6))
    vectors = random_vectors(count, draw(st.integers(2, 300)), draw(st.integers(0, 1 << 30)))
    scales = draw(st.lists(st.floats(1e-6, 1e3), min_size=count, max_size=count))
    weights = draw(st.lists(st.floats(1e-3, 1e6), min_size=count, max_size=count))
    return [vector * scale for vector, scale in zip(vectors, scales, strict=True)], weights


def close(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-5) -> bool:
    left, right = left.double(), right.double()
    return float((left - right).norm()) <= tolerance * float(right.norm()) + 1e-30


@given(cases())
def test_rda_is_the_published_formula(case: tuple[list[torch.Tensor], list[float]]) -> None:
    vectors, weights = case
    reference = published(vectors, weights)
    directions = torch.stack(
        [v.double() / v.double().norm() * w for v, w in zip(vectors, weights, strict=True)]
    )
    if float(directions.sum(0).norm()) / sum(weights) > 1e-2:
        assert close(rda(vectors, weights), reference, 1e-4)


@given(cases())
def test_the_mean_is_the_weighted_mean(case: tuple[list[torch.Tensor], list[float]]) -> None:
    vectors, weights = case
    terms = [v.double() * w for v, w in zip(vectors, weights, strict=True)]
    largest = max(float(term.norm()) for term in terms) / sum(weights)
    error = mean(vectors, weights).double() - torch.stack(terms).sum(0) / sum(weights)
    assert float(error.norm()) <= 1e-6 * len(vectors) * largest


@given(cases())
def test_the_length_of_rda_is_the_mean_length(
    case: tuple[list[torch.Tensor], list[float]],
) -> None:
    """|RDA| = sum w|v| / sum w, whatever the directions (unless they cancel)."""
    vectors, weights = case
    length = sum(w * float(v.double().norm()) for w, v in zip(weights, vectors, strict=True))
    length /= sum(weights)
    merged = float(rda(vectors, weights).double().norm())
    assert merged <= length * (1 + 1e-5)
    if len(vectors) == 1 or vectors[0].numel() > 50:  # directions in few dimensions may cancel
        assert merged == pytest.approx(length, rel=1e-4)


@given(cases())
def test_equal_vectors_merge_to_themselves(case: tuple[list[torch.Tensor], list[float]]) -> None:
    vectors, weights = case
    same = [vectors[0]] * len(vectors)
    assert close(rda(same, weights), vectors[0])
    assert close(mean(same, weights), vectors[0])


@given(cases(), st.floats(1e-3, 1e3))
def test_scaling_every_vector_scales_the_merge(
    case: tuple[list[torch.Tensor], list[float]], factor: float
) -> None:
    vectors, weights = case
    scaled = rda([vector * factor for vector in vectors], weights)
    assert close(scaled, rda(vectors, weights) * factor, 1e-3)


@given(cases(), st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_counts(
    case: tuple[list[torch.Tensor], list[float]], factor: float
) -> None:
    vectors, weights = case
    scaled = rda(vectors, [weight * factor for weight in weights])
    assert close(scaled, rda(vectors, weights), 1e-4)


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_slots_moves_only_the_last_bits(
    case: tuple[list[torch.Tensor], list[float]], dice: object
) -> None:
    vectors, weights = case
    order = list(range(len(vectors)))
    dice.shuffle(order)  # type: ignore[attr-defined]
    permuted = rda([vectors[i] for i in order], [weights[i] for i in order])
    assert close(permuted, rda(vectors, weights), 1e-3)


@pytest.mark.parametrize("learners", [2, 4, 8])
def test_orthogonal_vectors_keep_their_length_where_the_mean_shrinks(learners: int) -> None:
    """The reason for RDA: outer gradients are nearly orthogonal, so means shrink by 1/sqrt(M)."""
    vectors = [torch.eye(learners)[m] * 3.0 for m in range(learners)]
    weights = [1.0] * learners
    assert float(rda(vectors, weights).norm()) == pytest.approx(3.0, rel=1e-6)
    assert float(mean(vectors, weights).norm()) == pytest.approx(3.0 / math.sqrt(learners))


def test_a_learner_that_did_not_move_gives_length_but_no_direction() -> None:
    """phi(0) = 0."""
    vectors = [torch.tensor([3.0, 4.0]), torch.zeros(2)]
    assert close(rda(vectors, [1.0, 1.0]), torch.tensor([1.5, 2.0]))
    assert torch.equal(rda([torch.zeros(2)] * 2, [1.0, 1.0]), torch.zeros(2))


def test_directions_that_cancel_give_the_weighted_mean() -> None:
    vectors = [torch.tensor([3.0, 4.0]), torch.tensor([-6.0, -8.0])]
    assert torch.equal(rda(vectors, [1.0, 1.0]), torch.tensor([-1.5, -2.0]))


def test_a_sole_offer_is_taken_to_the_bit() -> None:
    (vector,) = random_vectors(1, 1000, 3)
    assert torch.equal(rda([vector], [17.0]), vector)


def test_offers_without_tokens_count_alike() -> None:
    vectors = [torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])]
    assert torch.equal(mean(vectors, [0.0, 0.0]), torch.tensor([2.0, 0.0]))


def test_a_tensor_of_many_blocks_is_one_tensor() -> None:
    """Its length and direction are of the whole, not of each block."""
    vectors = random_vectors(3, 2 * BLOCK_ELEMENTS + 1234, 9)
    vectors[1][:BLOCK_ELEMENTS] *= 100
    assert close(rda(vectors, [1.0, 2.0, 3.0]), published(vectors, [1.0, 2.0, 3.0]))


@pytest.mark.parametrize("threads", [2, 4])
def test_the_bits_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    vectors = random_vectors(3, BLOCK_ELEMENTS + 4321, 11)
    alone = rda(vectors, [1.0, 2.0, 3.0])
    torch.set_num_threads(threads)
    try:
        assert torch.equal(rda(vectors, [1.0, 2.0, 3.0]), alone)
    finally:
        torch.set_num_threads(1)


def test_a_norm_has_the_same_bits_with_any_number_of_threads() -> None:
    """A machine with more cores would else make another version of the same offers."""
    (vector,) = random_vectors(1, 1 << 20, seed=3)
    found = set()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            found.add(norm(Exact(vector), range(vector.numel()), SCRATCH))
    finally:
        torch.set_num_threads(1)
    assert len(found) == 1
