"""Calls and their answers: what a learner captures and offers for them (rules 10, 11 and 13)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Capture
from atoll_worker.rules.learner_state import SendMessage, SendOffer, TelemetryRecord
from unit.worker.fake_driver import learner_side

BASE_3 = "value 0/0 3; step; step; "


@pytest.mark.parametrize(
    "scene",
    [
        # rule 10: a Call is answered at the next boundary when nothing is captured
        "step; call 0/0 0 => capture 0/0; step => offer 0/0 0 2",
        # rule 10: a capture of an earlier boundary answers nothing
        "step; call 0/0 0; step => capture 0/0, offer 0/0 0 2; step; step; call 0/0 0"
        " => capture 0/0",
        # rule 10: one Call is the credit for one offer
        "step; call 0/0 0; call 0/0 0; step; step; step => offer 0/0 0 2",
        # rule 10: nothing is owed on a base that is not held, nor of an unknown slice
        BASE_3 + "call 0/0 2; call 0/0 4; call 0/9 3; step; step => none; step => none",
        # rule 10: a Call on another base takes no credit away and copies nothing
        BASE_3 + "call 0/0 4 => none; call 0/0 3 => capture 0/0; call 0/0 2; step => offer 0/0 3 2",
        # rule 10: a Call ends with the base that it names
        "step; call 0/0 0; value 0/0 1; step; step; step => none;"
        " call 0/0 1; step => offer 0/0 1 3",
        # rule 11: Calls die with their session
        "step; call 0/0 0; lose 0; back 0; step => none; call 0/0 0 => offer 0/0 0 2",
        # what arrives before a capture is adopted before it, and ends the Call: no step since
        "step; call 0/0 0; value 0/0 1; step => promote 0/0 1; call 0/0 1; step => offer 0/0 1 1",
        # a capture that was overwritten before it was read leaves the credit
        "step; call 0/0 0; step => offer 0/0 0 2; torn 0; step => offer 0/0 0 3",
        # but not once its base was replaced
        "step; call 0/0 0; step => offer 0/0 0 2; value 0/0 1; step; torn 0; step; step => none",
        # a lost capture is answered at once by a newer one, of a Call of a newer session
        "step; call 0/0 0; step => offer 0/0 0 2; step; call 0/0 0; step => offer 0/0 0 4; torn 0"
        " => offer 0/0 0 4",
        # captures stop when the learner has finished
        "step; call 0/0 0; step => capture 0/0; final 0 0; step; call 0/0 0; step => none",
        # at most one capture and two candidates of a slice are outstanding
        "step; call 0/0 0; call 0/0 0; call 0/0 0 => capture 0/0; value 0/0 1; value 0/0 2;"
        " value 0/0 3; value 0/0 4 => discard 0/0 2, discard 0/0 3",
    ],
)
def test_one_call_is_the_credit_for_one_offer_of_the_base_that_it_names(scene: str) -> None:
    learner_side(fragments=1, shards=1).begin().play(scene)


def test_an_offer_names_its_capture_and_the_work_since_the_base_rule_10() -> None:
    side = learner_side(fragments=1, shards=1).begin().play("step; call 0/0 0; step 7")
    assert side.sent[0].offer == pb.Offer(
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
    side.play("step; step; step; step; again; lose 0; step; back 0 0")  # slice 1 is due at 4
    assert [(each.offer.cursor, each.offer.data_state) for each in side.sent] == [(4, b"at 4")] * 2


def test_where_a_script_keeps_nothing_its_offers_bring_nothing() -> None:
    side = learner_side(period=8, fragments=1, shards=1).begin()
    side.data_state = lambda cursor: b"x" if cursor == 3 else None
    side.play("call 0/0 0; step; " * 5 + "step")
    kept = {each.offer.cursor: each.offer.HasField("data_state") for each in side.sent}
    assert kept == {1: False, 3: True, 5: False}


def test_a_slice_that_comes_due_soon_is_captured_ahead_and_its_call_answered_at_once() -> None:
    side = learner_side().begin()  # slice 1 of each shard is due at 4 (mod 8)
    for tick in (1, 2, 2):
        side.now += 1.0
        side.play(f"step; tick {tick}")
    side.play("step; call 1/1 0 => offer 1/1 0 4")


def test_a_lost_capture_counts_as_no_offer_and_a_newer_one_stays() -> None:
    side = learner_side(shards=1, fragments=1).begin()
    offered = side.exchange.state.slices[0, 0].offered
    side.play("step; call 0/0 0; step; torn 0")
    assert not offered.captures
    side.play("step; step; call 0/0 0; step; torn 0")
    assert 2 not in offered.captures
    assert offered.captures


def test_each_slice_is_copied_once_for_each_offer_where_steps_are_even() -> None:
    """P = H: one fragment is due at every tick. Every copy more is a slice sent to the host."""
    side = learner_side(shards=1, fragments=8, period=8, steps=None).begin()
    copied = answered_at_once = 0
    for tick in range(1, 81):
        side.now += 1.0
        side.step()
        due = tick % 8
        side.now += 0.05  # the way to the shard and back
        side.ticks(tick)
        side.call(0, due, base=side.exchange.state.slices[0, due].number)
        sent = side.take(SendOffer)
        answered_at_once += len(sent)
        copied += sum(len(each.slices) for each in side.take(Capture))
        if sent:
            side.value(0, due, side.exchange.state.slices[0, due].number + 1)
    assert answered_at_once >= 75
    assert copied <= 82


def test_an_adoption_resolves_the_tokens_by_the_offer_that_was_merged_rule_13() -> None:
    side = learner_side().begin().play("step; call 0/0 0; step; step 5")
    merged = pb.Merged(incarnation=3, base=0, capture=2)
    side.value(0, 0, 2, merged=merged)  # version 1 was skipped: a newer one replaced it
    side.step(tokens=5)
    adopted = side.take(TelemetryRecord)[-1].fields["adopted"]
    assert adopted == [
        {"shard": 0, "slice": 0, "version": 2, "merged": 20, "overlap": 10, "late": 0}
    ]
    side.step(tokens=5)
    said = {each.shard: each.message.report.settled for each in side.take(SendMessage)[-2:]}
    assert said == {0: pb.Settled(overlap=10), 1: pb.Settled()}


def test_offers_on_an_earlier_base_say_nothing_of_the_next_rule_13() -> None:
    side = learner_side().begin().play("step; call 0/0 0; step; value 0/0 1; step; step 30")
    (adopted,) = side.play("value 0/0 2; step 30").take(TelemetryRecord)[-1].fields["adopted"]
    assert (adopted["merged"], adopted["overlap"], adopted["late"]) == (0, 0, 60)


def test_a_report_has_the_work_that_came_too_late_as_a_mean_over_all_slices_rule_13() -> None:
    side = learner_side().begin().play("step 10; step 50; value 0/0 1; step 20")
    report = side.take(SendMessage)[-1].message.report
    assert (report.tokens, report.late) == (80, 80 // len(side.exchange.state.slices))
    assert side.exchange.state.shards[0].late == 80
    assert len(side.exchange.state.slices) > 1
