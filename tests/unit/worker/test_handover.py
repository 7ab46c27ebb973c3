"""Hand-overs in lock-step modes, and what the end of a job does to them (rules 15 and 27)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt, Capture, Finished, JobLength, Proceed
from atoll_worker.rules import handover
from atoll_worker.rules.effects import SendOffer
from unit.worker.learner_side import LearnerSide, learner_side


def diloco(*, overlap: int = 0, steps: int = 40) -> LearnerSide:
    """One slice, H = 4."""
    return learner_side(
        shards=1, steps=steps, fragments=1, period=4, overlap=overlap, lockstep=True
    )


def pace(side: LearnerSide, steps: int) -> None:
    """Steps at which nothing is due."""
    for _ in range(steps):
        side.step()
        assert side.take(Proceed) == [Proceed()]


def test_a_learner_hands_over_by_itself_and_step_waits_for_the_publish() -> None:
    side = diloco().begin()
    pace(side, 3)
    side.step()
    assert side.take(Capture) == [Capture(slices=((0, 0),))]
    assert side.take(Proceed) == []
    side.again()
    (sent,) = side.take(SendOffer)
    assert (sent.offer.capture, sent.offer.t_m, sent.offer.base) == (4, 4, 0)
    assert side.take(Proceed) == []
    assert [report.waiting for _, report in side.messages("report")][-1]  # Training all the same
    side.value(0, 0, 1)
    assert [adopt.number for adopt in side.take(Adopt)] == [1]
    assert side.take(Proceed) == []  # adopted before step() returns
    side.again()
    assert side.take(Proceed) == [Proceed()]
    pace(side, 3)


def test_a_learner_that_has_a_command_to_answer_does_not_wait_rule_40() -> None:
    """A training process that stands still in step() answers none, and its transport reports."""
    side = diloco().begin()
    pace(side, 3)

    def waits() -> bool:
        side.now += 2.0
        side.feed(side.exchange.tick_time(side.now))
        return bool(side.messages("report")[-1][1].waiting)

    side.step()
    assert not waits()  # the capture is not there
    side.again()
    assert waits()
    side.value(0, 0, 1)
    assert not waits()  # the value is not adopted
    side.again()
    assert side.take(Proceed) == [Proceed()]
    assert not waits()


def test_with_an_overlap_step_waits_at_hand_over_plus_overlap_and_not_before() -> None:
    side = diloco(overlap=2).begin()
    pace(side, 3)
    side.step()
    side.again()
    assert len(side.take(SendOffer)) == 1
    assert side.take(Proceed) == [Proceed()]
    side.value(0, 0, 1)
    assert side.take(Adopt) == []  # early: Streaming DiLoCo adopts after exactly tau steps
    pace(side, 1)
    assert side.take(Adopt) == []
    side.step()
    assert [adopt.number for adopt in side.take(Adopt)] == [1]
    side.again()
    assert side.take(Proceed) == [Proceed()]


def test_a_joiner_takes_its_position_from_the_tick() -> None:
    side = diloco().begin(tick=6)
    pace(side, 1)
    side.step()
    side.again()
    (sent,) = side.take(SendOffer)
    assert (sent.offer.t_m, sent.offer.capture) == (8, 2)


def test_learners_at_one_position_hand_over_the_same_slices_however_they_came_there() -> None:
    first, joiner = (learner_side(shards=1, fragments=3, period=10, lockstep=True) for _ in "ab")
    handed = []
    for side, tick in ((first, 0), (joiner, 6)):
        side.begin(tick=tick)
        for position in range(tick + 1, 11):
            side.step()
            side.again()
            for sent in side.take(SendOffer):
                if position > 6:
                    handed.append((side is joiner, position, sent.offer.slice))
                side.value(0, sent.offer.slice, 1)
    assert {each[1:] for each in handed if each[0]} == {each[1:] for each in handed if not each[0]}


def test_one_that_was_away_for_a_round_goes_on_from_the_tick() -> None:
    side = diloco().begin()
    pace(side, 1)
    side.receive(0, tick=pb.Tick(tick=21))
    pace(side, 1)
    assert {report.t_m for _, report in side.messages("report")} >= {21}


@pytest.mark.parametrize(("tick", "position"), [(5, 2), (6, 2), (7, 7), (90, 90)])
def test_an_absence_of_more_than_a_round_moves_the_position_and_nothing_else(
    tick: int, position: int
) -> None:
    """H = 4: at a distance of a round the learner's own hand-over is awaited still."""
    side = diloco().begin()
    pace(side, 2)
    state = side.exchange._state
    before = (state.progress.own_steps, state.progress.tokens, state.slices[0, 0].steps)
    state.clock.tick = tick
    handover.catch_up(state)
    assert state.progress.position == position
    after = (state.progress.own_steps, state.progress.tokens, state.slices[0, 0].steps)
    assert after == before


def test_where_no_learner_waits_a_position_counts_own_steps_alone() -> None:
    side = learner_side(shards=1, fragments=1, period=4).begin()
    side.receive(0, tick=pb.Tick(tick=21))
    side.step()
    assert [report.t_m for _, report in side.messages("report")][-1] == 1


def test_a_hand_over_that_died_with_its_session_is_made_again_on_the_same_base() -> None:
    side = diloco().begin()
    pace(side, 3)
    side.step()
    side.again()
    (first,) = side.take(SendOffer)
    side.lose(0)
    side.welcome(0, heads=side.heads(0, 0))
    assert side.take(SendOffer) == [first]
    side.lose(0)
    side.welcome(0, heads=side.heads(0, 1))  # merged, or closed without it
    assert side.take(SendOffer) == []


def test_a_hand_over_while_its_shard_is_away_is_made_at_its_welcome() -> None:
    side = diloco().begin()
    pace(side, 3)
    side.lose(0)
    side.step()
    side.again()
    assert side.take(SendOffer) == []
    side.welcome(0, heads=side.heads(0, 0))
    assert len(side.take(SendOffer)) == 1


def test_a_slice_with_a_newer_value_waiting_is_adopted_and_not_handed_over() -> None:
    side = diloco().begin()
    pace(side, 3)
    side.value(0, 0, 1)
    assert side.take(Adopt) == []  # only while step() waits
    side.step()
    assert side.take(Capture) == []
    assert len(side.take(Adopt)) == 1
    assert side.take(Proceed) == []
    side.again()
    assert side.take(Proceed) == [Proceed()]


def test_at_the_end_every_slice_is_handed_over_and_step_waits_for_final_rule_27() -> None:
    side = learner_side(shards=1, fragments=2, period=8, overlap=0, lockstep=True, steps=10)
    side.begin(tick=8)
    pace(side, 1)
    side.step()
    side.again()
    assert sorted(sent.offer.slice for sent in side.take(SendOffer)) == [0, 1]
    side.value(0, 0, 1)
    side.value(0, 1, 1)
    side.again()
    assert side.take(Proceed) == []
    side.receive(0, final=pb.Final(versions=side.heads(0, 1)))
    assert side.take(Finished) == [Finished(again=tuple(side.exchange.slices))]


def test_at_the_end_values_awaited_later_are_adopted_at_once_rule_27() -> None:
    side = diloco(overlap=2, steps=5).begin()
    pace(side, 3)
    side.step()  # hands over at 4, would adopt at 6: beyond T
    side.again()
    assert side.take(Proceed) == [Proceed()]
    side.step()
    side.value(0, 0, 1)
    assert len(side.take(Adopt)) == 1
    side.again()
    side.receive(0, final=pb.Final(versions=side.heads(0, 1)))
    assert side.take(Finished) == [Finished(again=tuple(side.exchange.slices))]


def test_what_is_final_is_not_handed_over_and_nobody_waits_for_it_rule_27() -> None:
    """Its shard ended before it heard that the job has become longer; the other shard goes on."""
    side = learner_side(shards=2, fragments=1, period=4, overlap=0, lockstep=True, steps=4)
    side.begin()
    pace(side, 3)
    side.step()
    side.again()
    assert [sent.shard for sent in side.take(SendOffer)] == [0, 1]
    for shard in range(2):
        side.value(shard, 0, 1)
    side.again()
    side.receive(0, tick=told(4, 9))
    assert side.take(Proceed) == [Proceed()]
    side.receive(1, final=pb.Final(versions=side.heads(1, 1)))
    pace(side, 3)
    side.step()
    side.again()
    assert [sent.shard for sent in side.take(SendOffer)] == [0]
    side.value(0, 0, 2)
    side.again()
    assert side.take(Proceed) == [Proceed()]


def test_a_final_ends_the_wait_for_a_hand_over_that_came_too_late_rule_27() -> None:
    side = learner_side(shards=2, fragments=1, period=4, overlap=0, lockstep=True, steps=40)
    side.begin()
    pace(side, 3)
    side.step()
    side.again()
    assert len(side.take(SendOffer)) == 2
    side.value(0, 0, 1)
    side.again()
    assert side.take(Proceed) == []
    side.receive(1, final=pb.Final(versions=side.heads(1, 0)))
    assert side.take(Proceed) == [Proceed()]


def told(*ends: int, revision: int = 1) -> pb.Tick:
    """The job is as long as the last of these."""
    length = pb.Length(revision=revision, steps=ends[-1], ends=sorted(ends))
    return pb.Tick(tick=0, length=length)


def test_one_that_waits_at_a_former_end_goes_on_when_it_hears_of_a_longer_job_rule_27() -> None:
    side = diloco(steps=4).begin()
    pace(side, 3)
    side.step()
    side.again()
    side.value(0, 0, 1)
    side.again()
    assert side.take(Proceed) == []
    side.receive(0, tick=told(4, 9))
    assert side.take(Proceed) == [Proceed()]
    assert side.take(JobLength) == [JobLength(steps=9, tokens=None)]
    side.receive(0, tick=told(4, 9))
    assert side.take(JobLength) == []
    pace(side, 3)


def test_a_former_end_is_a_hand_over_for_those_that_know_better_as_well_rule_15() -> None:
    """Another learner may not have heard of the longer job, and waits for this one's slices."""
    side = learner_side(shards=1, fragments=2, period=8, overlap=0, lockstep=True, steps=10)
    side.begin(tick=8)
    side.receive(0, tick=told(10, 30))
    pace(side, 1)
    side.step()
    side.again()
    assert sorted(sent.offer.slice for sent in side.take(SendOffer)) == [0, 1]
    side.value(0, 0, 1)
    side.value(0, 1, 1)
    side.again()
    assert side.take(Proceed) == [Proceed()]


def test_the_length_comes_with_a_welcome_rule_27() -> None:
    side = diloco(steps=8)
    side.welcome(0, heads=side.heads(0, 0), length=told(20).length)
    assert side.take(JobLength) == [JobLength(steps=20, tokens=None)]


def test_of_two_lengths_that_of_the_higher_revision_counts_rule_27() -> None:
    side = diloco(steps=8)
    side.welcome(0, heads=side.heads(0, 0), length=told(8, 1000, 12, revision=3).length)
    side.receive(0, tick=told(8, 1000, revision=2))
    side.receive(0, tick=told(8, 1000, 12, revision=4))
    assert side.take(JobLength) == [JobLength(steps=12, tokens=None)]


def test_a_learner_at_a_shorter_end_hands_everything_over_and_stays_rule_27() -> None:
    side = learner_side(shards=1, fragments=2, period=8, overlap=0, lockstep=True, steps=100)
    side.begin()
    pace(side, 1)
    side.receive(0, tick=told(100, 3))
    pace(side, 1)
    side.step()
    side.again()
    assert sorted(sent.offer.slice for sent in side.take(SendOffer)) == [0, 1]
    for fragment in range(2):
        side.value(0, fragment, 1)
    side.again()
    assert side.take(Proceed) == []


def test_one_that_waits_at_what_has_become_the_end_hands_over_the_rest_rule_27() -> None:
    side = learner_side(shards=1, fragments=2, period=8, overlap=0, lockstep=True, steps=100)
    side.begin()
    pace(side, 3)
    side.step()
    side.again()
    assert [sent.offer.slice for sent in side.take(SendOffer)] == [1]
    side.receive(0, tick=told(100, 4))
    side.again()
    assert [sent.offer.slice for sent in side.take(SendOffer)] == [0]
    for fragment in range(2):
        side.value(0, fragment, 1)
    side.again()
    assert side.take(Proceed) == []


def test_one_beyond_a_shorter_end_hands_over_when_slices_are_due_until_final_rule_27() -> None:
    side = learner_side(shards=1, fragments=2, period=8, overlap=0, lockstep=True, steps=100)
    side.begin(tick=4)
    pace(side, 1)
    side.receive(0, tick=told(100, 3))
    pace(side, 2)
    side.step()
    side.again()
    assert [sent.offer.slice for sent in side.take(SendOffer)] == [0]
    side.value(0, 0, 1)
    side.again()
    assert side.take(Proceed) == [Proceed()]
    pace(side, 3)
    side.step()
    side.again()
    assert [sent.offer.slice for sent in side.take(SendOffer)] == [1]
    side.value(0, 1, 1)
    side.receive(0, final=pb.Final(versions=side.heads(1, 1)))
    side.again()
    assert side.take(Finished) == [Finished(again=tuple(side.exchange.slices))]


@pytest.mark.parametrize("overlap", [0, 2])
def test_calls_mean_nothing_where_learners_hand_over_by_themselves(overlap: int) -> None:
    side = diloco(overlap=overlap).begin()
    pace(side, 1)
    side.call(0, 0, base=0)
    pace(side, 1)
    assert side.take(Capture) == []


def test_a_lost_capture_is_made_again_at_once() -> None:
    side = diloco().begin()
    pace(side, 3)
    side.step()
    side.again()
    (sent,) = side.take(SendOffer)
    side.feed(side.exchange.capture_lost(0, sent.offer))
    side.again()
    assert [sent.offer.capture for sent in side.take(SendOffer)] == [4]


def test_a_hand_over_that_is_sent_again_names_the_tokens_of_its_capture_rule_13() -> None:
    side = diloco(overlap=3).begin()
    pace(side, 3)
    side.step()
    side.again()
    (first,) = side.take(SendOffer)
    assert side.take(Proceed) == [Proceed()]
    pace(side, 2)
    side.lose(0)
    side.welcome(0, heads=side.heads(0, 0))
    (again,) = side.take(SendOffer)
    assert again.offer == first.offer
    assert again.offer.counters == pb.Counters(steps=4, tokens=40)
