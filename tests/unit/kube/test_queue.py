"""When a job gets its next pass: back-off, spacing, and what is logged of a failure."""

import pytest

from atoll_operator.kube.edges.queue import backoff


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_back_off_grows_from_one_second_to_a_minute(chance: float) -> None:
    waits = [backoff(failures, chance) for failures in range(12)]
    assert waits == sorted(waits)
    assert 1.0 <= waits[0] <= 1.0
    assert 30.0 <= waits[-1] <= 60.0
