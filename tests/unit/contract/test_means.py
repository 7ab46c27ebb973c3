"""The moving mean of both sides."""

from atoll_protos.means import MovingMean


def test_the_first_sample_counts_in_full_and_a_further_one_for_a_fifth() -> None:
    assert MovingMean().or_else(7.0) == 7.0
    assert MovingMean().add(0.0).or_else(7.0) == 0.0
    assert MovingMean(2.0).add(7.0) == MovingMean(3.0)
