"""A shard's rounds: rules 10, 11, 13, 14, 15, 19 and 29, from a Call to a durable version."""

import math
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Append, Drop, EndSession, Merge, PublishHead, Stage, Tape
from unit.syncer.shard_side import RUN, Side, begun, digest, head_of, side, step_all


def called(one: Side, fragment: int) -> set[int]:
    return {session for session, call in one.sent("call") if call.slice == fragment}


def open_round(*slots: str, **sync: Any) -> tuple[Side, list[int]]:
    """Slice 1 (offset 4) is due and called."""
    one, sessions = begun(*slots, **sync)
    step_all(one, sessions, range(1, 6))
    return one, sessions


def test_a_due_slice_calls_every_training_learner_on_its_base_rule_10() -> None:
    one, sessions = open_round("a-0", "a-1")
    assert called(one, 1) == set(sessions)


@pytest.mark.parametrize(
    "report", [{"training": False}, {"slices": []}, {"steps": 0}, {"tick_seen": 99}]
)
def test_who_does_not_train_or_holds_another_base_or_has_no_step_is_not_called_rules_10_and_14(
    report: dict[str, Any],
) -> None:
    one, (first, second) = begun("a-0", "a-1")
    for t_m in range(1, 6):
        one.report(first, t_m, **report)
        one.report(second, t_m)
    assert called(one, 1) == {second}


def test_a_call_is_the_credit_for_one_offer_rule_10() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5)
    assert one.ends() == []
    one.offer(sessions[0], 1, 5)
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]


def test_an_offer_says_as_many_steps_as_its_capture() -> None:
    one, sessions = open_round("a-0")
    one.offer(sessions[0], 1, 5, capture=6)
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER]


def test_who_becomes_usable_while_the_quorum_is_open_is_called_then_rule_11() -> None:
    one, (first, second) = begun("a-0", "a-1", quorum=2)
    for t_m in range(1, 6):
        one.report(first, t_m)
        one.report(second, t_m, slices=[])
    assert called(one, 1) == {first}
    one.report(second, 6)
    assert called(one, 1) == {second}


def test_a_call_that_died_with_its_session_is_made_again_rule_11() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.leave(sessions[0])
    again = one.join("a-0")
    one.report(again, 6)
    assert again in called(one, 1)


def test_a_complete_offer_outlives_its_session_rule_11() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5)
    one.leave(sessions[0])
    assert one.take(Drop) == []
    one.offer(sessions[1], 1, 5)
    (merge,) = one.take(Merge)
    assert [part.slot for part in merge.participants] == ["a-0", "a-1"]


def test_what_completes_after_the_close_is_counted_late_rule_11() -> None:
    one, sessions = open_round("a-0", "a-1", grace=False)
    one.offer(sessions[0], 1, 5)
    one.wait(1.0)
    assert len(one.take(Merge)) == 1
    counters, name = pb.Counters(steps=5, tokens=9), digest(1, 0)
    late = pb.Offer(slice=1, base=0, base_digest=name, capture=5, counters=counters)
    one.send(sessions[1], pb.Transfer(offer=late, encoding=pb.BF16))
    assert one.state.rounds.late == 1
    assert [t.record["slot"] for t in one.take(Tape) if t.record["event"] == "late"] == ["a-1"]


def test_an_offer_on_another_value_of_the_same_number_is_late_rule_22() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5, base_digest="f" * 64)
    assert one.take(Stage) == []
    assert one.state.rounds.late == 1


def test_a_publish_tells_its_receiver_of_its_own_last_merged_offer_rule_13() -> None:
    """[A participant list alone misleads a learner that skipped a Publish.]"""
    one, sessions = open_round("a-0", "a-1", grace=False)
    one.offer(sessions[0], 1, 5)
    publishes = [one.shard.publish(session, 1) for session in sessions]
    assert all(publish is not None for publish in publishes)
    told = [publish.merged.capture for publish in publishes if publish is not None]
    assert told == [5, 0]


def test_no_session_gets_a_version_before_its_entry_is_durable_rule_19() -> None:
    one, sessions = open_round("a-0")
    one.take(PublishHead)
    one.durable = False
    one.offer(sessions[0], 1, 5)
    assert [e.entry for e in one.take(Append)] == one.queue
    assert one.take(PublishHead) == []
    assert one.shard.publish(sessions[0], 1).version.version.number == 0  # type: ignore[union-attr]
    one.flush()
    assert [(p.session, p.slice) for p in one.take(PublishHead)] == [(sessions[0], 1)]
    assert one.shard.publish(sessions[0], 1).version.version.number == 1  # type: ignore[union-attr]


def test_an_entry_names_captures_cursors_tick_and_base_rule_19() -> None:
    one, sessions = open_round("a-0")
    one.offer(sessions[0], 1, 5, cursor=33)
    entry = head_of(one.entries, 1)
    assert (entry.number, entry.base, entry.epoch, entry.due) == (1, 0, 1, 4)
    (part,) = entry.participants
    assert (part.slot, part.incarnation, part.capture, part.cursor) == ("a-0", 1, 5, 33)
    assert one.state.history.cursors == {"a-0": 33}


def test_a_restart_goes_on_at_the_log_s_tick_and_dues_rules_8_and_9() -> None:
    one, sessions = open_round("a-0")
    one.offer(sessions[0], 1, 5)
    again = side(entries=tuple(one.entries)).start()
    assert again.state.clock.tick == one.state.history.tick
    assert again.state.rounds.starts == {0: 0, 1: 4}
    assert again.state.history.epoch == 2


def test_the_tape_says_who_was_left_out_and_why_rule_29() -> None:
    one, sessions = open_round("a-0", "a-1", grace=False)
    lost = one.join("b-0")
    one.leave(lost)
    one.offer(sessions[0], 1, 5)
    (line,) = [t.record for t in one.take(Tape) if t.record["event"] == "commit"]
    assert [part["slot"] for part in line["participants"]] == ["a-0"]
    assert line["left_out"] == [
        {"slot": "a-1", "reason": "late"},
        {"slot": "b-0", "reason": "Lost"},
    ]
    assert (line["version"], line["base"], line["epoch"], line["due"]) == (1, 0, 1, 4)


def test_the_tape_says_what_loss_each_participant_reported_last_if_it_told_one() -> None:
    one, sessions = open_round("a-0", "a-1", "b-0", quorum=3)
    one.report(sessions[0], 6, loss=2.0)
    one.report(sessions[0], 7, loss=1.5)
    one.report(sessions[1], 7, loss=math.nan)
    for session in sessions:
        one.offer(session, 1, 5)
    (line,) = [t.record for t in one.take(Tape) if t.record["event"] == "commit"]
    assert len(line["participants"]) == 3
    told = {each["slot"]: each["loss"] for each in line["losses"]}
    assert told["a-0"] == 1.5
    assert "a-1" not in told
    assert all(each["incarnation"] == 1 for each in line["losses"])


def lockstep(*slots: str) -> tuple[Side, list[int]]:
    one, sessions = begun(*slots, overlap=0, lockstep=True, quorum=2)
    for session in sessions:
        one.report(session, 4, waiting=True)
    return one, sessions


def test_in_lock_step_no_learner_is_called_and_all_hand_over_rule_15() -> None:
    one, sessions = lockstep("a-0", "a-1")
    assert one.sent("call") == []
    one.offer(sessions[0], 1, 4, t_m=4)
    assert one.take(Merge) == []
    one.offer(sessions[1], 1, 4, t_m=4)
    assert len(one.take(Merge)) == 1
    assert one.state.clock.tick == 4
    assert (sessions[0], pb.Tick(tick=4)) in one.sent("tick")


def test_in_lock_step_the_round_at_the_jobs_length_is_the_last_of_its_slice() -> None:
    """Its base is not rounded by the wire (rule 17)."""
    found = []
    for steps in (4, 100):
        one, (first,) = begun("a-0", steps=steps, overlap=0, lockstep=True, quorum=1)
        one.report(first, 4, waiting=True)
        one.offer(first, 1, 4, t_m=4)
        found += [merge.last for merge in one.take(Merge)]
    assert found == [True, False]


def test_in_lock_step_a_death_ends_the_wait_rule_15() -> None:
    one, sessions = lockstep("a-0", "a-1")
    one.offer(sessions[0], 1, 4, t_m=4)
    one.leave(sessions[1])
    assert len(one.take(Merge)) == 1


def test_in_lock_step_one_that_stands_still_in_step_holds_no_round_rule_40() -> None:
    """Its transport lives, and reports every 2 s that its training process owes an answer."""
    one, sessions = lockstep("a-0", "a-1")
    for session in sessions:
        one.offer(session, 1, 4, t_m=4)
    one.take(Merge)
    for session in sessions:
        one.report(session, 4)
    one.report(sessions[0], 8, waiting=True)
    one.offer(sessions[0], 0, 8, t_m=8)
    for seconds in (2.0, 2.0, 2.0):
        assert one.take(Merge) == []
        one.wait(seconds)
        one.report(sessions[0], 8, waiting=True)
        one.report(sessions[1], 4)
        if one.state.sessions.slots["a-1"].state(one.now) == pb.SLOT_STALLED:
            break
    one.wait(0.25)
    assert [merge.slice for merge in one.take(Merge)] == [0]


def test_a_round_that_meets_its_next_due_tick_stays_one_round() -> None:
    one, sessions = begun("a-0", "a-1", quorum=2)
    step_all(one, sessions, range(1, 14))
    assert one.state.rounds.open[1].due == 12


# ------------------------------------------------------------ sessions that overlap


@pytest.mark.parametrize("back", ["after the shard noticed", "the same", "a new process"])
def test_a_call_is_made_again_to_the_session_that_follows_rule_11(back: str) -> None:
    """Otherwise the slice stands still for as long as its round is open."""
    one, sessions = open_round("a-0", "a-1", quorum=2)
    assert called(one, 1) == set(sessions)
    one.lingering = True
    if back == "after the shard noticed":
        one.leave(sessions[0])
    if back == "a new process":
        request = pb.SetOwnerRequest(slot="a-0", uid="new", word=0)
        one.feed(one.shard.registrar_request(1, request, one.now))
        again = one.join("a-0", instance="new", uid="new")
    else:
        again = one.join("a-0", run=RUN, incarnation=1)
    one.report(again, 6, steps=6)
    assert called(one, 1) == {again}
    one.offer(again, 1, 6)
    one.offer(sessions[1], 1, 5)
    assert one.state.history.heads[1].number == 1


def test_a_slot_whose_offer_left_the_round_is_called_again_rule_11() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 4)
    one.leave(sessions[0])
    again = one.join("a-0", instance="new")
    one.sent("call")
    one.report(again, 6, steps=1)
    assert called(one, 1) == {again}


@pytest.mark.parametrize("end", ["replaced", "superseded", "owner", "bad message"])
def test_what_an_ended_session_has_under_way_counts_no_more_rule_5(end: str) -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    head = one.state.history.heads[1]
    counters = pb.Counters(steps=4, tokens=40)
    offer = pb.Offer(
        slice=1, base=0, base_digest=head.digest, capture=4, counters=counters, cursor=4
    )
    transfer = pb.Transfer(offer=offer, encoding=pb.BF16)
    one.feed(one.shard.transfer_started(sessions[0], transfer, one.now))
    one.lingering = True  # its End is not written yet, and the offer is being examined
    if end == "replaced":
        one.join("a-0", run=RUN, incarnation=1)
    if end == "bad message":
        wrong = pb.ToShard(evaluation=pb.Evaluation())
        one.feed(one.shard.message(sessions[0], wrong, one.now))
    if end in ("superseded", "owner"):
        request = pb.SetOwnerRequest(slot="a-0", uid="new", word=0)
        one.feed(one.shard.registrar_request(1, request, one.now))
    if end == "superseded":
        one.join("a-0", instance="new", uid="new")
    assert len(one.take(EndSession)) == 1
    one.feed(one.shard.transfer_verified(sessions[0], transfer, one.now))
    report = pb.ToShard(report=pb.Report(t_m=99, training=True))
    one.feed(one.shard.message(sessions[0], report, one.now))
    assert "a-0" not in one.state.rounds.open[1].complete
    assert one.take(Stage) == []
    assert one.state.clock.tick < 10


def test_offers_that_would_make_a_version_not_finite_are_late_and_named_rule_12() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5)
    head = one.state.history.heads[1]
    one.skip_merges = True
    one.offer(sessions[1], 1, 5)
    late = one.state.rounds.late
    name = digest(1, head.number + 1)
    one.feed(one.shard.merged(1, name, "object", one.now, left_out=frozenset({"a-1"})))
    entry = head_of(one.entries, 1)
    assert [part.slot for part in entry.participants] == ["a-0"]
    assert "a-1" in entry.reason
    assert one.state.rounds.late == late + 1
    records = [each.record for each in one.take(Tape)]
    (refused,) = [record for record in records if record["event"] == "late"]
    assert refused["slot"] == "a-1"
    assert "not finite" in refused["reason"]
    (line,) = [record for record in records if record["event"] == "commit"]
    assert {"slot": "a-1", "reason": "not finite"} in line["left_out"]


def test_the_grace_looks_at_training_learners_only_rule_11() -> None:
    one, (fast, *slow) = begun("a-0", "a-1", "b-0")
    one.report(fast, 1, step_seconds=0.2)
    for session in slow:
        one.report(session, 1, step_seconds=1.1)
    short = one.state.standing(one.now).grace_seconds
    one.leave(fast)
    assert 0 < short <= 0.2
    assert one.state.standing(one.now).grace_seconds > 0.2


def test_a_slice_that_is_due_during_its_commit_starts_right_after_it_rule_9() -> None:
    one, sessions = open_round("a-0")
    one.skip_merges = True
    one.offer(sessions[0], 1, 5)
    step_all(one, sessions, range(6, 15))  # slice 1 is due again at tick 12
    assert one.state.rounds.open[1].closed_at is not None
    one.feed(one.shard.merged(1, digest(1, 1), "object", one.now))
    assert one.state.history.heads[1].number == 1
    assert one.state.rounds.open[1].due == 12


def test_a_successor_starts_behind_the_data_of_a_merge_that_is_under_way_rule_28() -> None:
    """Its entry is not durable when the successor is welcomed, and yet the data is merged."""
    one, sessions = open_round("a-0")
    one.skip_merges = True
    one.offer(sessions[0], 1, 5, cursor=33)
    assert len(one.take(Merge)) == 1
    one.leave(sessions[0])
    again = one.join("a-0", instance="new")
    ((session, welcome),) = one.sent("welcome")
    assert session == again
    assert welcome.cursor == 33
