"""The shard's clock (rule 8) and what it makes due (rule 9)."""

from atoll_syncer.model.clock import Clock
from unit.syncer.shard_side import begun


def clock(tick: int = 0, **positions: int) -> Clock:
    return Clock(period=4, tick=tick, positions=dict(positions), drawn_at=tick)


def test_the_tick_is_the_kth_largest_position_rule_8() -> None:
    for quorum, tick in ((1, 5), (2, 3), (3, 2)):
        one = clock(a=5, b=3, c=2)
        assert one.update(quorum)
        assert one.tick == tick


def test_it_never_goes_back_when_the_leader_is_lost_rule_8() -> None:
    one = clock(a=3, b=1)
    one.update(1)
    one.set_training(frozenset("b"))
    assert not one.update(1)
    assert one.tick == 3


def test_with_fewer_than_k_it_stands_still_rule_8() -> None:
    one = clock(a=9)
    assert not one.update(2)
    assert one.tick == 0


def test_a_joiner_enters_at_the_tick_before_rule_8() -> None:
    one = clock(10, a=10)
    one.set_training(frozenset("ab"))
    assert one.positions == {"a": 10, "b": 9}


def test_a_change_draws_all_positions_in_rule_8() -> None:
    one = clock(10, a=30, b=2)
    one.set_training(frozenset("abc"))
    assert one.positions == {"a": 14, "b": 9, "c": 9}


def test_every_period_draws_them_in_as_well_rule_8() -> None:
    """[Else a slow learner could never again be the K-th.]"""
    one = clock(0, a=4, b=0)
    one.update(1)
    assert one.positions == {"a": 4, "b": 3}


def test_staggered_learners_do_not_make_it_faster_rule_8() -> None:
    """[Counting "K learners did one more step" ticks M times too fast.]"""
    one = clock(0, a=-1, b=-1, c=-1)
    for _ in range(20):
        for slot in "abc":
            one.advance(slot, 1)
            one.update(1)
    assert one.tick == 19


def test_what_was_seen_elsewhere_raises_it_and_less_does_not_rule_8() -> None:
    one = clock(5)
    one.raise_to(9)
    one.raise_to(7)
    assert one.tick == 9


def test_the_rate_of_the_clock_leaves_out_a_break_without_learners_rule_8() -> None:
    """[Else the time that remains is told in months after a suspension of hours.]"""
    one, sessions = begun("a-0", "a-1")
    for tick in range(1, 6):
        for each in sessions:
            one.report(each, tick)
        one.wait(1.0)
    assert 0.8 < one.state.clock.ticks_per_second < 1.3
    for each in sessions:
        one.leave(each)
    one.wait(3600.0)
    sessions = [one.join(slot, instance=f"{slot}-again") for slot in ("a-0", "a-1")]
    for tick in range(1, 6):
        for each in sessions:
            one.report(each, tick)
        one.wait(1.0)
    assert 0.8 < one.state.clock.ticks_per_second < 1.3


def test_in_lock_step_a_jump_of_a_learners_position_is_no_work_rule_8() -> None:
    one, (away, here) = begun("a-0", "a-1", overlap=0, lockstep=True, quorum=1)
    one.report(away, 1)
    one.report(here, 1)
    tick = 3 * one.state.sync.period
    one.state.clock.raise_to(tick)  # while `away` was cut off
    one.state.rounds.starts = dict.fromkeys(one.state.fragments, tick)
    one.report(here, 2)  # draws all positions to the tick before
    one.report(away, tick)  # took its position from the tick
    assert one.state.clock.tick == tick
    one.report(away, tick + 1)
    assert one.state.clock.tick == tick + 1
