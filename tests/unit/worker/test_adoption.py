"""Values that arrive and become bases (docs/protocol.md, rules 15, 17, 21, 22)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt
from atoll_worker.rules.learner_state import (
    CAPTURES_KEPT,
    Clock,
    Offered,
    PlaceValue,
    SliceState,
    outcome,
)
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


ME = 4


def outcome_of(
    offered: dict[int, int], merged: pb.Merged | None, tokens: int
) -> tuple[int, int, int]:
    """Tokens that are merged, overlap and late, of those trained on version 7."""
    each = SliceState(shard=0, fragment=0, held=pb.Version(number=7), tokens=tokens)
    each.offered.captures.update(offered)
    became = outcome(each, merged or pb.Merged(), ME)
    return became["merged"], became["overlap"], became["late"]


@given(
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    offered=st.sets(st.integers(1, 4)),
    capture=st.integers(0, 5),
    base=st.integers(6, 8),
    incarnation=st.integers(ME - 1, ME + 1),
)
def test_every_token_has_exactly_one_outcome(
    steps: list[int], offered: set[int], capture: int, base: int, incarnation: int
) -> None:
    """Of several captures the Publish says which counts: a list of participants names slots alone.

    An earlier incarnation, or another base, may have offered a capture of the same number.
    """
    captures = {n: sum(steps[:n]) for n in offered if n <= len(steps)}
    merged = pb.Merged(incarnation=incarnation, base=base, capture=capture)
    became = outcome_of(captures, merged if capture else None, sum(steps))
    counts = (incarnation, base) == (ME, 7) and capture in captures
    late = captures[max(captures)] if captures else sum(steps)  # in no commit, or never offered
    taken = captures[capture] if counts else 0
    assert became == ((taken, sum(steps) - taken, 0) if counts else (0, sum(steps) - late, late))


def test_an_offer_taken_back_was_never_made_but_its_earlier_twin_was() -> None:
    offered = Offered()
    offered.add(2, 20)
    offered.add(2, 20)  # the same capture, called for again in another session
    offered.take_back(2)
    assert offered.captures == {2: 20}
    offered.add(3, 30)
    offered.take_back(2)
    assert offered.captures == {3: 30}
    offered.take_back(3)
    assert offered.captures == {}


def test_captures_kept_of_one_base_are_bounded() -> None:
    offered = Offered()
    for steps in range(1, 2 * CAPTURES_KEPT):
        offered.add(steps, steps)
    assert len(offered.captures) == CAPTURES_KEPT
    assert max(offered.captures.items()) == (2 * CAPTURES_KEPT - 1, 2 * CAPTURES_KEPT - 1)


def test_steps_and_tokens_are_counted_from_nothing_on_a_new_base() -> None:
    each = SliceState(shard=0, fragment=0)
    each.count(10)
    version = pb.Version(run="run", number=1, epoch=1)
    each.adopt(pb.Publish(version=pb.SliceVersion(version=version)))
    assert (each.steps, each.tokens) == (0, 0)


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
