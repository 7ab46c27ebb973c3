"""How a learner hands its work over, with Calls and in lock-step modes (rules 10, 13, 15, 27)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Capture, Finished, JobLength
from atoll_worker.rules import joining
from atoll_worker.rules.learner_state import SendMessage, SendOffer, TelemetryRecord
from unit.worker.fake_driver import LearnerSide, learner_side, told

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


HANDED = "pace 3; step; again"  # over, at position 4 where H is 4


def diloco(**settings: Any) -> LearnerSide:
    """One slice, H = 4."""
    one = {"shards": 1, "fragments": 1, "period": 4, "overlap": 0, "lockstep": True}
    return learner_side(**{**one, **settings})


def two_slices(**settings: Any) -> LearnerSide:
    """Of one shard; H = 8: they are due at 4 and 8."""
    return diloco(fragments=2, period=8, **settings)


@pytest.mark.parametrize(
    ("overlap", "scene"),
    [
        # it hands over by itself, and step waits until the Publish is adopted
        (0, "pace 3; step => capture 0/0; again => offer 0/0 0 4; value 0/0 1 => adopt 0/0 1;"
            " again => proceed; pace 3"),
        # with an overlap it waits at hand-over plus overlap and adopts not before
        # (Streaming DiLoCo adopts after exactly tau steps)
        (2, f"{HANDED} => offer 0/0 0 4, proceed; value 0/0 1; pace 1 => none;"
            " step => adopt 0/0 1; again => proceed"),
        # a hand-over that died with its session is made again on the same base
        (0, f"{HANDED} => offer 0/0 0 4; lose 0; back 0 0 => offer 0/0 0 4;"
            " lose 0; back 0 1 => none"),
        # and one while its shard is away at its welcome
        (0, "pace 3; lose 0; step; again => none; back 0 0 => offer 0/0 0 4"),
        # a slice with a newer value waiting is adopted, while step waits, and not handed over
        (0, "pace 3; value 0/0 1 => none; step => adopt 0/0 1; again => proceed;"
            " pace 3; step => capture 0/0"),
        # a lost capture is made again at once
        (0, f"{HANDED} => offer 0/0 0 4; torn 0; again => offer 0/0 0 4"),
        # Calls mean nothing where learners hand over by themselves
        (0, "pace 1; call 0/0 0; pace 2 => none; step => capture 0/0"),
        (2, "pace 1; call 0/0 0; pace 2 => none; step => capture 0/0"),
    ],
)  # fmt: skip
def test_a_learner_hands_over_by_itself_and_step_waits_for_the_publish_rule_15(
    overlap: int, scene: str
) -> None:
    diloco(overlap=overlap).begin().play(scene)


def test_a_learner_that_has_a_command_to_answer_does_not_wait_rule_40() -> None:
    """A training process that stands still in step() answers none, and its transport reports."""
    side, waits = diloco().begin().play("pace 3"), []
    for order in ("step", "again", "value 0/0 1", "again"):  # captures, waits, adopts, goes on
        side.play(order)
        side.exchange.heard(0, side.now)
        side.now += 2.0
        side.feed(side.exchange.tick_time(side.now))
        waits.append(side.messages("report")[-1][1].waiting)
    assert waits == [False, True, False, False]


def test_learners_at_one_position_hand_over_the_same_slices_however_they_came_there() -> None:
    handed = []
    for tick in (0, 6):  # the second one joins late
        side = learner_side(shards=1, fragments=3, period=10, lockstep=True).begin(tick=tick)
        for _ in range(tick, 10):
            side.play("step; again")
            for each in side.sent[-1:]:
                side.value(0, each.offer.slice, 1)
        handed.append({(s.offer.t_m, s.offer.slice) for s in side.sent if s.offer.t_m > 6})
    assert handed[0] == handed[1] != set()


@pytest.mark.parametrize(("tick", "position"), [(5, 2), (6, 2), (7, 7), (90, 90)])
def test_an_absence_of_more_than_a_round_moves_the_position_and_nothing_else(
    tick: int, position: int
) -> None:
    """H = 4: at a distance of a round the learner's own hand-over is awaited still."""
    state = diloco().begin().play("pace 2").exchange.state
    before = (state.progress.own_steps, state.progress.tokens, state.slices[0, 0].steps)
    state.clock.tick = tick
    joining.catch_up(state)
    assert state.progress.position == position
    assert before == (state.progress.own_steps, state.progress.tokens, state.slices[0, 0].steps)


def test_only_where_learners_wait_a_position_follows_the_tick() -> None:
    for side, position in ((diloco(), 21), (learner_side(shards=1, fragments=1, period=4), 1)):
        side.begin().play("tick 21; step")
        assert side.messages("report")[-1][1].t_m == position


# ------------------------------------------------------------ the end, and another length


@pytest.mark.parametrize(
    ("side", "tick", "scene"),
    [
        # at the end every slice is handed over, and step waits for Final
        (two_slices(steps=10), 8, "pace 1; step; again => offer 0/0 0 2, offer 0/1 0 2;"
            " value 0/0 1; value 0/1 1; again => none; final 0 1 => finished"),
        # values that are awaited later are adopted at once there: at 4, would be at 6 of 5
        (diloco(overlap=2, steps=5), 0, f"{HANDED} => proceed; step; value 0/0 1 => adopt 0/0 1;"
            " again; final 0 1 => finished"),
        # one that waits at a former end goes on when it hears of a longer job, once
        (diloco(steps=4), 0, f"{HANDED}; value 0/0 1; again => none; ends 4 9 => length 9, proceed;"
            " ends 4 9 => none; pace 3"),
        # a former end is a hand-over for those that know better as well, since others may not
        (two_slices(steps=10), 8, "ends 10 30; pace 1; step; again => offer 0/0 0 2, offer 0/1 0 2;"
            " value 0/0 1; value 0/1 1; again => proceed"),
        # one at a shorter end hands everything over and stays
        (two_slices(steps=100), 0, "pace 1; ends 100 3; pace 1; step; again => offer 0/0 0 3,"
            " offer 0/1 0 3; value 0/0 1; value 0/1 1; again => none; final 0 1 => finished"),
        # one that waits at what has become the end hands over the rest
        (two_slices(steps=100), 0, "pace 3; step; again => offer 0/1 0 4; ends 100 4; again"
            " => offer 0/0 0 4; value 0/0 1; value 0/1 1; again => none; final 0 1 => finished"),
        # one beyond a shorter end hands over when slices are due until Final
        (two_slices(steps=100), 4, "pace 1; ends 100 3; pace 2; step; again => offer 0/0 0 4;"
            " value 0/0 1; again => proceed; pace 3; step; again => offer 0/1 0 8; value 0/1 1;"
            " final 0 1; again => proceed, finished"),
        # what is final is not handed over and nobody waits for it: its shard ended before it
        # heard that the job has become longer
        (diloco(shards=2, steps=4), 0, f"{HANDED} => offer 0/0 0 4, offer 1/0 0 4; value 0/0 1;"
            " value 1/0 1; again; ends 4 9 => proceed; final 1 1; pace 3; step; again"
            " => offer 0/0 1 4; value 0/0 2; again => proceed"),
        # a Final ends the wait for a hand-over that came too late
        (diloco(shards=2), 0, f"{HANDED}; value 0/0 1; again => none; final 1 0 => proceed"),
    ],
)  # fmt: skip
def test_a_learner_hands_over_and_waits_as_the_end_of_the_job_asks_rules_15_and_27(
    side: LearnerSide, tick: int, scene: str
) -> None:
    side.begin(tick=tick).play(scene)


def test_a_finished_learner_takes_all_final_values_once_more_rule_27() -> None:
    side = diloco(steps=4).begin().play(f"{HANDED}; value 0/0 1; again; final 0 1")
    assert side.take(Finished) == [Finished(again=((0, 0),))]


def test_of_two_lengths_that_of_the_higher_revision_counts_also_of_a_welcome_rule_27() -> None:
    side = diloco(steps=8)
    side.welcome(0, newest=side.newest(0, 0), length=told(8, 1000, 12, revision=3).length)
    side.receive(0, tick=told(8, 1000, revision=2))
    side.receive(0, tick=told(8, 1000, 12, revision=4))
    assert side.take(JobLength) == [JobLength(steps=12, tokens=None)]


def test_a_hand_over_that_is_sent_again_names_the_tokens_and_the_position_of_its_capture() -> None:
    """Rule 13; one that has joined at tick 8 (H = 4) made it at 12."""
    side = diloco(overlap=3).begin(tick=8).play(f"{HANDED} => proceed; pace 2; lose 0; back 0 0")
    first, again = side.sent
    assert again.offer == first.offer
    assert again.offer.counters == pb.Counters(steps=4, tokens=40)
    assert again.offer.t_m == 12
