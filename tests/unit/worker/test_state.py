"""The state of a learner's rules: the job's clock as the learner sees it."""

from atoll_worker.rules.learner_state import Clock


def test_the_rate_of_the_clock_is_unknown_at_first_and_follows_the_last_changes() -> None:
    clock = Clock()
    assert clock.ticks_per_second == 0.0
    assert clock.move(4, 10.0)
    assert clock.ticks_per_second == 0.0
    assert clock.move(8, 12.0)
    assert clock.ticks_per_second == 2.0
    assert not clock.move(7, 13.0)
    for second in range(100):
        clock.move(9 + second, 20.0 + second)
    assert clock.ticks_per_second == 1.0
