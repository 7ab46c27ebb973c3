"""Hand-overs in lock-step modes, and what the end of a job does to them (rules 15 and 27)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Finished, JobLength
from atoll_worker.rules import joining
from unit.worker.fake_driver import LearnerSide, learner_side, told

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
