"""Values that arrive and become bases (docs/protocol.md, rules 15, 17, 21, 22)."""

import pytest

from atoll_worker.link.messages import Adopt
from atoll_worker.rules.learner_state import PlaceValue
from unit.worker.fake_driver import learner_side


@pytest.mark.parametrize(
    "scene",
    [
        # rule 15: at the first boundary after its arrival, and the old base is the base until then
        "value 0/1 1 => adopt 0/1 1; step => promote 0/1 1",
        # a newer value waits while an adoption is outstanding, and the newest wins
        "value 0/0 1; value 0/0 2; value 0/0 3 => adopt 0/0 1, discard 0/0 2;"
        " step => promote 0/0 1, adopt 0/0 3; step => promote 0/0 3",
        # rule 21: only a greater number is adopted
        "value 0/0 5; step => adopt 0/0 5, promote 0/0 5; value 0/0 4; value 0/0 5"
        " => discard 0/0 4, discard 0/0 5",
        # a value that a newer session sends again leaves the candidate alone
        "value 0/0 1; value 0/0 1; value 0/0 2; value 0/0 2; step; step"
        " => adopt 0/0 1, promote 0/0 1, adopt 0/0 2, promote 0/0 2; step => none",
        # rule 22: a waiting value that is replaced under its own number is kept once
        "value 0/0 5; value 0/0 6; value 0/0 6 2 => none; step; step => promote 0/0 5,"
        " promote 0/0 6; value 0/0 6 => discard 0/0 6",
        # rule 22: committed, adopted by no learner, lost with its store: what is kept under the
        # number is not what was adopted
        "value 0/0 5; value 0/0 5 2; step => adopt 0/0 5, adopt 0/0 5; step => promote 0/0 5",
        # rule 22: what its shard has lost is neither offered nor given back nor built on
        "step; lose 0; back 0 0 2; held 0/0 0; call 0/0 0; step; step; misfit 0/0 1 0 => none;"
        " value 0/0 1; step; held 0/0 1 => promote 0/0 1, gives 0/0 1; call 0/0 1; step; step"
        " => offer 0/0 1 1",
    ],
)
def test_of_what_arrives_the_newest_becomes_the_base(scene: str) -> None:
    learner_side().begin().play(scene)


def test_a_value_is_placed_before_it_is_adopted_and_begins_its_counts_rule_15() -> None:
    side = learner_side().begin()
    side.value(0, 1, 1)
    assert side.take(PlaceValue) == [PlaceValue(0, 1, 1)]
    assert side.take(Adopt) == [Adopt(shard=0, fragment=1, number=1, blend=0.0)]
    side.step()
    each = side.exchange.state.slices[0, 1]
    assert (each.number, each.steps) == (1, 0)
    with pytest.raises(AssertionError, match="lower ones only"):
        each.adopt(side.publish(0, 1, 0))


def test_a_candidate_replaced_under_its_own_number_does_not_become_the_base_rule_22() -> None:
    side = learner_side().begin(number=4).play("value 0/0 5; value 0/0 5 2; step; step")
    assert side.exchange.state.slices[0, 0].held == side.publish(0, 0, 5, epoch=2).version.version


def test_a_value_fits_as_a_difference_to_the_base_of_a_slice_of_the_run_rules_2_17_25() -> None:
    side = learner_side().begin(number=4)
    fits = [
        side.publish(0, 0, 5, difference=True, base=4),
        side.publish(0, 0, 5, difference=True, base=3),
        side.publish(0, 2, 5),
        side.publish(0, 0, 5, run="run-2"),
    ]
    started = [side.exchange.publish_started(0, each, side.now) for each in fits]
    assert started == [True, False, False, False]


def test_blending_spares_the_first_values_of_a_learner() -> None:
    side = learner_side(blend=0.5)
    side.join()
    for shard, fragment in side.exchange.state.slices:
        side.value(shard, fragment, 9)
    assert {adopt.blend for adopt in side.take(Adopt)} == {0.0}  # rule 26: theta from the shards
    side.again()
    side.value(0, 0, 10)
    assert {adopt.blend for adopt in side.take(Adopt)} == {0.5}


def test_how_long_values_take_is_a_moving_mean_each_from_its_own_beginning_rule_14() -> None:
    side = learner_side().begin()
    first, second = side.publish(0, 0, 1), side.publish(0, 1, 1)
    before = side.exchange.state.progress.publish_seconds
    side.exchange.publish_started(0, first, side.now)
    side.exchange.publish_started(0, second, side.now + 4.0)
    side.feed(side.exchange.published(0, second, side.now + 5.0))
    side.feed(side.exchange.published(0, first, side.now + 9.0))
    side.step()
    (report, *_) = [report for _, report in side.messages("report")]
    assert report.publish_seconds == before.add(1.0).add(9.0).or_else(0.0)


def test_what_its_shard_has_lost_is_not_reported_rule_22() -> None:
    """After a loss a number may name another value, of one slice or of all."""
    for lost in ((0, 1), (1,)):
        side = learner_side().begin(number=4).play("step; lose 0")
        newest = [side.publish(0, p, 4, epoch=2 if p in lost else 1).version for p in (0, 1)]
        side.welcome(0, epoch=2, newest=newest)
        reports = dict(side.messages("report"))
        assert {each.slice for each in reports[0].slices} == {0, 1} - {*lost}
        assert len(reports[1].slices) == 2
