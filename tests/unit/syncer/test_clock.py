"""The shard's clock (rule 8) and what it makes due (rule 9)."""

import pytest

from atoll_syncer.model.roster import JobClock


def clock(tick: int, positions: dict[str, int]) -> JobClock:
    return JobClock(period=4, tick=tick, positions=dict(positions), drawn_at=tick)


NOBODY_COUNTS = 9  # a quorum that is not there


@pytest.mark.parametrize(
    ("tick", "positions", "training", "quorum", "after", "left"),
    [
        (0, {"a": 5, "b": 3, "c": 2}, "abc", 1, 5, None),  # the K-th largest position
        (0, {"a": 5, "b": 3, "c": 2}, "abc", 2, 3, None),
        (0, {"a": 5, "b": 3, "c": 2}, "abc", 3, 2, None),
        (0, {"a": 9}, "a", 2, 0, None),  # with fewer than K it stands still
        (3, {"a": 3, "b": 1}, "b", 1, 3, None),  # the leader is lost
        (10, {"a": 10}, "ab", NOBODY_COUNTS, 10, {"a": 10, "b": 9}),  # a joiner
        (10, {"a": 30, "b": 2}, "abc", NOBODY_COUNTS, 10, {"a": 14, "b": 9, "c": 9}),
        (0, {"a": 4, "b": 0}, "ab", 1, 4, {"a": 4, "b": 3}),  # drawn in with every period
    ],
)
def test_the_tick_and_the_positions_after_a_change_of_who_trains_rule_8(
    tick: int,
    positions: dict[str, int],
    training: str,
    quorum: int,
    after: int,
    left: dict[str, int] | None,
) -> None:
    one = clock(tick, positions)
    if {*training} != positions.keys():
        one.set_training(frozenset(training))
    assert one.update(quorum) == (after > tick)
    assert one.tick == after
    assert left in (None, one.positions)


def test_staggered_learners_do_not_make_it_faster_rule_8() -> None:
    """[Counting "K learners did one more step" ticks M times too fast.]"""
    one = clock(0, {"a": -1, "b": -1, "c": -1})
    for _ in range(20):
        for slot in "abc":
            one.advance(slot, 1)
            one.update(1)
    assert one.tick == 19


def test_what_was_seen_elsewhere_raises_it_and_less_does_not_rule_8() -> None:
    one = clock(5, {})
    one.raise_to(9)
    one.raise_to(7)
    assert one.tick == 9
