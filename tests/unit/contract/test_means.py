"""The moving mean of both sides."""

from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.means import SAMPLE_WEIGHT, MovingMean


def test_the_first_sample_counts_in_full() -> None:
    assert MovingMean().add(2.0) == MovingMean(2.0)
    assert MovingMean().add(0.0) == MovingMean(0.0)


def test_a_further_sample_counts_for_a_fifth() -> None:
    assert MovingMean(2.0).add(7.0) == MovingMean(3.0)


def test_without_a_sample_the_caller_says_what_stands_for_it() -> None:
    assert MovingMean().or_else(7.0) == 7.0
    assert MovingMean(0.0).or_else(7.0) == 0.0


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=20))
def test_a_mean_lies_between_its_samples(samples: list[float]) -> None:
    mean = MovingMean()
    for sample in samples:
        mean = mean.add(sample)
    assert min(samples) - 1e-9 <= mean.or_else(-1.0) <= max(samples) + 1e-9


def test_half_of_a_sample_is_forgotten_after_three_more() -> None:
    assert round((1 - SAMPLE_WEIGHT) ** 3, 1) == 0.5
