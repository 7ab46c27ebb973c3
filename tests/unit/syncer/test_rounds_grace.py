"""Whom the grace of a round waits for, and from when it counts (rules 5, 6, 11 and 14)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Merge
from unit.syncer.shard_side import Side, begun, step_all


def open_round(*slots: str, steps: int = 5, **sync: Any) -> tuple[Side, list[int]]:
    """Slice 1 is due and called; time moves with the ticks, so that the grace is one step."""
    one, sessions = begun(*slots, **sync)
    step_all(one, sessions, range(1, steps + 1))
    return one, sessions


def new_process(one: Side, slot: str) -> int:
    """The operator gives the slot to another pod, which joins."""
    request = pb.SetOwnerRequest(slot=slot, uid="new", word=0)
    one.feed(one.shard.registrar_request(1, request, one.now))
    return one.join(slot, instance="new", uid="new")


def test_an_offer_of_a_training_learner_is_waited_for_during_the_grace_rule_11() -> None:
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=2)
    one.offer(sessions[0], 1, 5)
    one.offer(sessions[1], 1, 5)
    grace = one.state.rounds.open[1].grace_seconds
    assert 0.25 < grace <= 1.0
    one.wait(grace / 2)
    assert one.take(Merge) == []
    one.wait(grace)
    assert len(one.take(Merge)) == 1


@pytest.mark.parametrize("gone", ["lost", "recovering"])
def test_no_grace_waits_for_a_learner_that_does_not_train_any_more_rules_6_and_11(
    gone: str,
) -> None:
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=2)
    one.offer(sessions[0], 1, 5)
    one.offer(sessions[1], 1, 5)
    assert one.take(Merge) == []
    if gone == "lost":
        one.leave(sessions[2])
    else:
        one.report(sessions[2], 5, training=False)
    assert len(one.take(Merge)) == 1


def test_a_called_learner_that_was_lost_before_the_quorum_is_not_waited_for_rule_11() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=1)
    one.offer(sessions[0], 1, 5, capture=4, counters=pb.Counters(steps=4, tokens=40))
    assert one.take(Merge) == []
    one.leave(sessions[1])
    assert len(one.take(Merge)) == 1


def test_no_grace_waits_for_a_learner_that_is_too_slow_rule_14() -> None:
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=2)
    for t_m in (6, 7):
        one.now += 0.1
        for session in sessions[:2]:
            one.report(session, t_m)
    one.report(sessions[2], 6, step_seconds=9.0)
    slow = one.state.sessions.slots["b-0"]
    assert one.state.is_too_slow(slow)
    assert slow.state(one.now) == pb.SLOT_TRAINING
    assert "b-0" in one.state.rounds.open[1].called
    one.offer(sessions[0], 1, 5)
    assert one.take(Merge) == []
    one.offer(sessions[1], 1, 5)
    assert len(one.take(Merge)) == 1


def test_the_grace_counts_again_from_the_kth_offer_when_one_was_withdrawn_rules_5_and_11() -> None:
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=2)
    one.offer(sessions[0], 1, 5)
    one.offer(sessions[1], 1, 5)
    first = one.state.rounds.open[1].quorum_at
    again = new_process(one, "a-0")
    assert one.state.rounds.open[1].quorum_at is None
    for _ in range(8):
        one.now += 0.25
        one.report(again, 6, steps=1)
        one.report(sessions[2], 6, steps=6)
    assert one.take(Merge) == []
    one.offer(sessions[2], 1, 6)
    each = one.state.rounds.open[1]
    assert each.closed_at is None
    assert each.quorum_at == one.now
    assert first is not None
    assert first < one.now


def test_the_grace_counts_from_the_kth_of_the_offers_that_stay_rules_5_and_11() -> None:
    """The first was the K-th; when it is withdrawn, that is one which came later."""
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=1)
    one.offer(sessions[0], 1, 5)
    one.now += 0.25
    one.offer(sessions[1], 1, 5)
    second = one.now
    one.now += 0.25
    one.offer(sessions[1], 1, 6)  # a newer capture does not put the end of the grace off
    one.now += 0.1
    new_process(one, "a-0")
    each = one.state.rounds.open[1]
    assert each.closed_at is None
    assert each.quorum_at == second
