"""Calls and their answers: what a learner captures and offers for them (rules 10, 11 and 13)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Capture
from atoll_worker.rules.effects import Discard, Promote, Record, SendMessage, SendOffer
from unit.worker.learner_side import LearnerSide, learner_side


def offers(side: LearnerSide) -> list[tuple[int, int, int, int]]:
    """(shard, slice, base, capture)."""
    taken = side.take(SendOffer)
    return [(o.shard, o.offer.slice, o.offer.base, o.offer.capture) for o in taken]


def test_a_call_is_answered_at_the_next_boundary_when_nothing_is_captured_rule_10() -> None:
    side = learner_side(period=8, fragments=1, shards=1).begin()
    side.step()
    side.call(0, 0, base=0)
    assert side.take(Capture) == [Capture(slices=((0, 0),))]
    assert offers(side) == []
    side.step(tokens=7)
    (sent,) = side.take(SendOffer)
    assert sent.offer == pb.Offer(
        slice=0,
        base=0,
        capture=2,
        counters=pb.Counters(steps=2, tokens=17),
        t_m=2,
        cursor=2,
        base_digest="0/0 v0 e1",
    )


def test_an_offer_brings_the_data_state_of_its_capture_not_of_a_later_boundary_rule_28() -> None:
    side = learner_side(lockstep=True, fragments=2, shards=1).begin()
    side.data_state = lambda cursor: f"at {cursor}".encode()
    for _ in range(4):
        side.step()
    side.again()  # slice 1 is handed over at 4
    (sent,) = side.take(SendOffer)
    assert (sent.offer.cursor, sent.offer.data_state) == (4, b"at 4")
    side.lose(0)
    side.step()
    side.welcome(0, heads=side.heads(0, 0))
    (again,) = side.take(SendOffer)
    assert (again.offer.cursor, again.offer.data_state) == (4, b"at 4")


def test_where_a_script_keeps_nothing_its_offers_bring_nothing() -> None:
    side = learner_side(period=8, fragments=1, shards=1).begin()
    side.data_state = lambda cursor: b"x" if cursor == 3 else None
    kept = {}
    for _ in range(5):
        side.call(0, 0, base=0)
        side.step()
        for each in side.take(SendOffer):
            kept[each.offer.cursor] = each.offer.HasField("data_state")
    assert kept == {1: False, 3: True, 5: False}


def test_a_slice_that_comes_due_soon_is_captured_ahead_and_its_call_answered_at_once() -> None:
    side = learner_side().begin()  # slice 1 of each shard is due at 4 (mod 8)
    for tick in (1, 2):
        side.now += 1.0
        side.step()
        side.ticks(tick)
    side.seen.clear()
    side.now += 1.0
    side.step()
    assert {key for c in side.take(Capture) for key in c.slices} >= {(0, 1), (1, 1)}
    side.step()
    side.call(1, 1, base=0)
    assert offers(side) == [(1, 1, 0, 4)]


def test_a_capture_of_an_earlier_boundary_answers_nothing_rule_10() -> None:
    side = learner_side(fragments=1, shards=1).begin()
    side.step()
    side.call(0, 0, base=0)
    side.step()
    assert offers(side) == [(0, 0, 0, 2)]
    side.step()
    side.inbox.clear()
    side.step()
    side.call(0, 0, base=0)
    assert offers(side) == []


def test_one_call_is_the_credit_for_one_offer_rule_10() -> None:
    side = learner_side().begin()
    side.step()
    side.call(0, 0, base=0)
    side.call(0, 0, base=0)
    side.step()
    side.step()
    side.step()
    assert offers(side) == [(0, 0, 0, 2)]


def test_nothing_is_owed_on_a_base_that_is_not_held_rule_10() -> None:
    side = learner_side().begin(number=3)
    side.step()
    side.call(0, 0, base=2)
    side.call(0, 0, base=4)
    side.call(0, 9, base=3)
    side.step()
    side.step()
    assert offers(side) == []


def test_a_call_on_another_base_takes_no_credit_away_and_copies_nothing_rule_10() -> None:
    side = learner_side(fragments=1, shards=1).begin(number=3)
    side.step()
    side.seen.clear()
    side.inbox.clear()
    side.call(0, 0, base=4)
    assert side.take(Capture) == []
    side.call(0, 0, base=3)
    side.call(0, 0, base=2)
    side.step()
    assert offers(side) == [(0, 0, 3, 2)]


def test_a_call_ends_with_the_base_that_it_names_rule_10() -> None:
    side = learner_side(fragments=1, shards=1).begin()
    side.step()
    side.call(0, 0, base=0)
    side.value(0, 0, 1)
    for _ in range(3):
        side.step()
    assert side.exchange.slices[0, 0].steps == 2
    assert offers(side) == []


def test_calls_die_with_their_session_rule_11() -> None:
    side = learner_side().begin()
    side.step()
    side.call(0, 0, base=0)
    side.lose(0)
    side.welcome(0)
    side.step()
    assert offers(side) == []
    side.call(0, 0, base=0)
    side.step()
    assert len(offers(side)) == 1


def test_what_arrives_before_a_capture_is_adopted_before_it_and_ends_the_call() -> None:
    side = learner_side().begin()
    side.step()
    side.call(0, 0, base=0)
    side.value(0, 0, 1)
    side.step()  # adopts, then captures: no step since
    assert offers(side) == []
    assert side.take(Promote) == [Promote(0, 0, 1)]
    side.call(0, 0, base=1)
    side.step()
    assert offers(side) == [(0, 0, 1, 1)]


def test_a_capture_overwritten_before_it_was_read_leaves_the_credit_and_counts_as_no_offer() -> (
    None
):
    side = learner_side().begin()
    side.step()
    side.call(0, 0, base=0)
    side.step()
    (sent,) = side.take(SendOffer)
    assert sent.offer.capture == 2
    side.feed(side.exchange.capture_lost(0, sent.offer))
    assert side.exchange.slices[0, 0].offered.newest_tokens is None
    side.step()
    assert offers(side) == [(0, 0, 0, 3)]


def test_a_capture_lost_after_its_base_was_replaced_is_owed_no_more() -> None:
    side = learner_side().begin()
    side.step()
    side.call(0, 0, base=0)
    side.step()
    side.value(0, 0, 1)
    side.step()
    (sent,) = side.take(SendOffer)
    side.feed(side.exchange.capture_lost(0, sent.offer))
    assert side.exchange.slices[0, 0].call is None
    side.step()
    side.step()
    assert offers(side) == []


def test_a_lost_capture_is_answered_at_once_by_a_newer_one_and_that_one_stays() -> None:
    side = learner_side(shards=1, fragments=1).begin()
    side.step()
    side.call(0, 0, base=0)
    side.step()
    (first,) = side.take(SendOffer)
    side.step()
    side.call(0, 0, base=0)  # of a new session, while the first offer is being formed
    side.step()
    assert offers(side) == [(0, 0, 0, 4)]
    side.feed(side.exchange.capture_lost(0, first.offer))
    assert offers(side) == [(0, 0, 0, 4)]
    assert side.exchange.slices[0, 0].offered.captures == {4: 40}


def test_each_slice_is_copied_once_for_each_offer_where_steps_are_even() -> None:
    """P = H: one fragment is due at every tick. Every copy more is a slice sent to the host."""
    side = learner_side(shards=1, fragments=8, period=8, steps=None).begin()
    copied: list[int] = []
    answered_at_once = 0
    for tick in range(1, 81):
        side.now += 1.0
        side.step()
        due = tick % 8
        side.now += 0.05  # the way to the shard and back
        side.ticks(tick)
        side.call(0, due, base=side.exchange.slices[0, due].number)
        sent = offers(side)
        answered_at_once += len(sent)
        copied += [fragment for each in side.take(Capture) for _, fragment in each.slices]
        if sent:
            side.value(0, due, side.exchange.slices[0, due].number + 1)
    assert answered_at_once >= 75
    assert len(copied) <= 82


def test_captures_stop_when_the_learner_has_finished() -> None:
    side = learner_side(shards=1).begin()
    side.receive(0, final=pb.Final(versions=side.heads(0, 0)))
    side.seen.clear()
    side.step()
    side.call(0, 0, base=0)
    side.step()
    assert side.take(Capture) == []


def test_at_most_one_capture_and_two_candidates_of_a_slice_are_outstanding() -> None:
    side = learner_side(shards=1).begin()
    side.step()
    for _ in range(20):
        side.call(0, 0, base=0)
    assert sum((0, 0) in c.slices for c in side.take(Capture)) == 1
    for number in range(1, 20):
        side.value(0, 0, number)
    assert len(side.take(Discard)) == 17


def test_an_adoption_resolves_the_tokens_by_the_offer_that_was_merged_rule_13() -> None:
    side = learner_side().begin()
    side.step(tokens=10)
    side.call(0, 0, base=0)
    side.step(tokens=10)
    side.step(tokens=5)
    merged = pb.Merged(incarnation=3, base=0, capture=2)
    side.value(0, 0, 2, merged=merged)  # version 1 was skipped: a newer one replaced it
    side.seen.clear()
    side.step(tokens=5)
    (line,) = [record.fields for record in side.take(Record)]
    assert line["adopted"] == [
        {"shard": 0, "slice": 0, "version": 2, "merged": 20, "overlap": 10, "late": 0}
    ]


def test_offers_on_an_earlier_base_say_nothing_of_the_next_rule_13() -> None:
    side = learner_side().begin()
    side.step(tokens=10)
    side.call(0, 0, base=0)
    side.step(tokens=10)
    side.value(0, 0, 1)
    side.step(tokens=10)
    side.step(tokens=30)
    side.value(0, 0, 2)
    side.take(Record)
    side.step(tokens=30)
    (line,) = [record.fields for record in side.take(Record)]
    assert [(a["merged"], a["overlap"], a["late"]) for a in line["adopted"]] == [(0, 0, 60)]


def test_a_report_has_the_work_that_came_too_late_as_a_mean_over_all_slices_rule_13() -> None:
    side = learner_side().begin()
    side.step(tokens=10)
    side.step(tokens=50)
    side.value(0, 0, 1)  # nothing of this learner is in it
    side.step(tokens=20)
    assert len(side.exchange.slices) > 1
    report = side.take(SendMessage)[-1].message.report
    assert (report.tokens, report.late) == (80, 80 // len(side.exchange.slices))
