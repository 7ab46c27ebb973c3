"""Values that arrive and become bases (docs/protocol.md, rules 15, 17, 21, 22)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt
from atoll_worker.rules.effects import Discard, Place, Promote, SendHeld, SendOffer
from atoll_worker.rules.slices import SliceState
from unit.worker.learner_side import learner_side


def test_a_value_is_adopted_at_the_first_boundary_after_its_arrival_rule_15() -> None:
    side = learner_side().begin()
    side.value(0, 1, 1)
    assert side.take(Place) == [Place(0, 1, 1)]
    assert side.take(Adopt) == [Adopt(shard=0, fragment=1, number=1, blend=0.0)]
    assert side.take(Promote) == []  # the old base is still the base
    side.step()
    assert side.take(Promote) == [Promote(0, 1, 1)]
    assert side.exchange.slices[0, 1].number == 1
    assert side.exchange.slices[0, 1].steps == 0


def test_a_newer_value_waits_while_an_adoption_is_outstanding_and_the_newest_wins() -> None:
    side = learner_side().begin()
    side.value(0, 0, 1)
    side.value(0, 0, 2)
    side.value(0, 0, 3)
    assert side.take(Discard) == [Discard(0, 0, 2)]
    assert [adopt.number for adopt in side.take(Adopt)] == [1]
    side.step()
    assert [adopt.number for adopt in side.take(Adopt)] == [3]
    side.step()
    assert side.take(Promote) == [Promote(0, 0, 1), Promote(0, 0, 3)]


def test_only_a_greater_number_is_adopted_rule_21() -> None:
    side = learner_side().begin(number=5)
    side.value(0, 0, 4)
    side.value(0, 0, 5)
    assert side.take(Discard) == [Discard(0, 0, 4), Discard(0, 0, 5)]
    assert side.take(Adopt) == []
    held = SliceState(shard=0, fragment=0)
    held.adopt(side.publish(0, 0, 5))
    with pytest.raises(AssertionError, match="lower ones only"):
        held.adopt(side.publish(0, 0, 4))


def test_a_value_that_a_newer_session_sends_again_leaves_the_candidate_alone() -> None:
    side = learner_side().begin()
    side.value(0, 0, 1)
    side.value(0, 0, 1)
    side.value(0, 0, 2)
    side.value(0, 0, 2)
    assert side.take(Discard) == []
    side.step()
    side.step()
    assert side.take(Promote) == [Promote(0, 0, 1), Promote(0, 0, 2)]


def test_a_difference_fits_only_on_the_base_held_rule_17() -> None:
    side = learner_side().begin(number=4)
    fits = side.publish(0, 0, 5, difference=True, base=4)
    assert side.exchange.publish_started(0, fits, side.now)
    other = side.publish(0, 0, 5, difference=True, base=3)
    assert not side.exchange.publish_started(0, other, side.now)


def test_a_value_of_an_unknown_slice_or_another_run_does_not_fit_rules_2_and_25() -> None:
    side = learner_side().begin()
    assert not side.exchange.publish_started(0, side.publish(0, 2, 1), side.now)
    assert not side.exchange.publish_started(0, side.publish(0, 0, 1, run="run-2"), side.now)


def test_blending_spares_the_first_values_of_a_learner() -> None:
    side = learner_side(blend=0.5)
    side.join()
    for shard, fragment in side.exchange.slices:
        side.value(shard, fragment, 9)
    assert {adopt.blend for adopt in side.take(Adopt)} == {0.0}  # rule 26: theta from the shards
    side.again()
    side.value(0, 0, 10)
    assert {adopt.blend for adopt in side.take(Adopt)} == {0.5}


def test_how_long_values_take_is_a_moving_mean_rule_14() -> None:
    side = learner_side().begin()
    publish = side.publish(0, 0, 1)
    side.exchange.publish_started(0, publish, side.now)
    side.feed(side.exchange.published(0, publish, side.now + 5.0))
    side.step()
    (report, *_) = [report for _, report in side.messages("report")]
    assert 0.0 < report.publish_seconds <= 5.0


def test_values_that_arrive_together_count_each_from_its_own_beginning_rule_14() -> None:
    side = learner_side().begin()
    first, second = side.publish(0, 0, 1), side.publish(0, 1, 1)
    before = side.exchange._state.progress.publish_seconds
    side.exchange.publish_started(0, first, side.now)
    side.exchange.publish_started(0, second, side.now + 4.0)
    side.feed(side.exchange.published(0, second, side.now + 5.0))
    side.feed(side.exchange.published(0, first, side.now + 9.0))
    side.step()
    (report, *_) = [report for _, report in side.messages("report")]
    assert report.publish_seconds == before.add(1.0).add(9.0).or_else(0.0)


def test_a_number_whose_value_has_changed_is_not_offered_on_rule_22() -> None:
    side = learner_side().begin(number=5)
    side.lose(0)
    side.welcome(0, epoch=2, heads=side.heads(0, 5, epoch=2))
    side.seen.clear()
    side.step()
    reports = dict(side.messages("report"))
    assert list(reports[0].slices) == []  # it holds nothing that this shard has
    assert len(reports[1].slices) == 2
    side.call(0, 0, base=5)
    side.step()
    side.step()
    assert side.take(SendOffer) == []
    difference = side.publish(0, 0, 6, difference=True, base=5)
    assert not side.exchange.publish_started(0, difference, side.now)
    side.messages("report")
    side.value(0, 0, 5, epoch=2)
    side.step()
    assert side.take(Promote) == [Promote(0, 0, 5)]
    reports = dict(side.messages("report"))
    assert [each.held for each in reports[0].slices] == [5]


def test_a_waiting_value_replaced_under_its_own_number_is_kept_once_rule_22() -> None:
    side = learner_side().begin(number=4)
    side.value(0, 0, 5)
    side.value(0, 0, 6)
    side.value(0, 0, 6, epoch=2)
    assert side.take(Discard) == []  # the driver has only the newest under that number
    side.step()
    side.step()
    assert side.take(Promote) == [Promote(0, 0, 5), Promote(0, 0, 6)]


def test_a_candidate_replaced_under_its_own_number_does_not_become_the_base_rule_22() -> None:
    side = learner_side().begin(number=4)
    side.value(0, 0, 5)  # committed, adopted by no learner, lost with its store
    side.value(0, 0, 5, epoch=2)
    assert side.take(Discard) == []
    side.step()
    assert side.take(Promote) == []  # what is kept as number 5 is not what was adopted
    assert [adopt.number for adopt in side.take(Adopt)] == [5, 5]
    side.step()
    assert side.take(Promote) == [Promote(0, 0, 5)]
    assert side.exchange.slices[0, 0].held == side.publish(0, 0, 5, epoch=2).version.version


def test_a_value_that_its_shard_has_lost_is_neither_given_back_nor_reported_nor_offered() -> None:
    """After a loss its number names another value (rule 22); only a newer one is adopted."""
    side = learner_side().begin(number=4)
    side.step()
    held = side.publish(0, 1, 4).version
    side.lose(0)
    others = [side.publish(0, p, 4, epoch=2 if p == 1 else 1).version for p in (0, 1)]
    side.welcome(0, epoch=2, heads=others)
    side.receive(0, send_held=pb.SendHeld(version=held))
    assert side.take(SendHeld) == []
    reports = [report for shard, report in side.messages("report") if shard == 0]
    assert [each.slice for each in reports[-1].slices] == [0]
    side.call(0, 1, base=4)
    side.step()
    assert [sent.offer.slice for sent in side.take(SendOffer) if sent.shard == 0] == []
    difference = side.publish(0, 1, 5, difference=True, base=4)
    assert not side.exchange.publish_started(0, difference, side.now)
    side.value(0, 1, 5)
    side.step()
    side.receive(0, send_held=pb.SendHeld(version=side.publish(0, 1, 5).version))
    assert len(side.take(SendHeld)) == 1
