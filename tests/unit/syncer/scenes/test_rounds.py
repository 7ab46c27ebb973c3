"""A shard's rounds, from a Call to a durable version (rules 5, 9 to 15, 19, 28, 29)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.means import MovingMean
from atoll_syncer.model.roster import step_seconds
from unit.syncer.fixtures import Play


def test_who_becomes_usable_while_the_quorum_is_open_is_called_then_rule_11(play: Play) -> None:
    play("begun a-0 a-1 quorum=2")
    for t in range(1, 6):
        play.report("a-0", t)
        play.report("a-1", t, slices=[])
    play("calls 1 a-0; report a-1 6; calls 1 a-1")


def test_round_waits_within_its_grace_for_first_step_on_its_base_and_calls_who_makes_it_rule_11(
    play: Play,
) -> None:
    play("begun a-0 a-1")
    for t in range(1, 6):
        play.report("a-0", t)
        play.report("a-1", t, 0)
    play("calls 1 a-0; offer a-0 1 5; merges; report a-1 6 1; calls 1 a-1; offer a-1 1 1")
    play("merges a-0,a-1")


def test_no_longer_than_its_grace(play: Play) -> None:
    play("begun a-0 a-1")
    for t in range(1, 6):
        play.report("a-0", t)
        play.report("a-1", t, 0)
    play("calls 1 a-0; offer a-0 1 5; merges")
    for _ in "grace":
        play.wait(0.5)
        play.report("a-1", 6, 0)
    play("merges a-0")


def test_it_waits_for_first_step_of_process_as_long_as_steps_of_others_take(play: Play) -> None:
    # Nothing tells how long its own take, and it is Stalled after 2 s.
    play("begun a-0 a-1; steps 1 3 a-0 step_seconds=5.0; leave a-1; join a-1 new")
    play.report("a-1", 0, 0, step_seconds=0.0)
    play.wait(4.0)
    play.report("a-1", 0, 0, step_seconds=0.0)
    play("see slots.a-1.state SLOT_STALLED; steps 4 5 a-0 step_seconds=5.0; calls 1 a-0")
    play("offer a-0 1 5; merges")
    play.report("a-0", 5, step_seconds=5.0)
    play.wait(1.0)
    play("merges")
    play.report("a-0", 5, step_seconds=5.0)
    play.wait(9.0)
    play("merges a-0")


def test_an_offer_on_another_value_of_the_same_number_is_late_rule_22(play: Play) -> None:
    play("round a-0 a-1 quorum=2")
    play.offer("a-0", 1, 5, base_digest="f" * 64)
    play("stages; tape late 1")


def test_a_publish_tells_its_receiver_of_its_own_last_merged_offer_rule_13(play: Play) -> None:
    # [A participant list alone misleads a learner that skipped a Publish.]
    play("round a-0 a-1 grace=False; offer a-0 1 5")
    assert [play.publish(slot, 1).merged.capture for slot in ("a-0", "a-1")] == [
        5,
        0,
    ]


def test_no_session_gets_a_version_before_its_entry_is_durable_rule_19(play: Play) -> None:
    play("round a-0; clear; slow_disk; offer a-0 1 5; effect Append 1")
    assert [play.found[0].entry] == play.one.queue
    play("publishes")
    assert play.publish("a-0", 1).version.version.number == 0
    play("flush; publishes a-0:1")
    assert play.publish("a-0", 1).version.version.number == 1


def test_a_restart_goes_on_at_the_logs_tick_and_dues_rules_8_and_9(play: Play) -> None:
    play("round a-0; offer a-0 1 5")
    tick = play.history.tick
    play("restart")
    assert (play.clock.tick, play.state.rounds.starts, play.history.epoch) == (
        tick,
        {0: 0, 1: 4},
        2,
    )


def test_who_joins_again_is_where_it_says_that_it_is_at_most_at_the_tick_rule_8(play: Play) -> None:
    # Entering at t - 1 each time, a job would lose a tick with each restart of a shard.
    play("round a-0 a-1; offer a-0 1 5; offer a-1 1 5; restart; join a-0 incarnation=1")
    play("join a-1 incarnation=1")
    tick = play.clock.tick
    play.report("a-0", 9, reached=tick)
    play("report a-1 9")
    assert tick >= 4
    assert play.clock.positions == {"a-0": tick, "a-1": tick - 1}
    play.report("a-0", 10, reached=tick + 99)
    assert play.clock.tick == tick + 1


def test_the_tape_says_who_was_left_out_and_why_rule_29(play: Play) -> None:
    play("round a-0 a-1 grace=False; join b-0; leave b-0; offer a-0 1 5; tape commit 1")
    line = play.lines[0]
    assert [part["slot"] for part in line["participants"]] == ["a-0"]
    assert [(each["slot"], each["reason"]) for each in line["left_out"]] == [
        ("a-1", "late"),
        ("b-0", "Lost"),
    ]
    assert (line["version"], line["base"], line["epoch"], line["due"]) == (1, 0, 1, 4)


def test_the_tape_says_what_loss_each_participant_reported_last_if_it_told_one(play: Play) -> None:
    play("round a-0 a-1 b-0 quorum=3; report a-0 6 loss=2.0; report a-0 7 loss=1.5")
    play.report("a-1", 7, loss=float("nan"))
    play("offer a-0 1 5; offer a-1 1 5; offer b-0 1 5; tape commit 1")
    assert len(play.lines[0]["participants"]) == 3
    told = {each["slot"]: each["loss"] for each in play.lines[0]["losses"]}
    assert told["a-0"] == 1.5
    assert "a-1" not in told
    assert all(each["incarnation"] == 1 for each in play.lines[0]["losses"])


def test_what_session_ended_by_bad_message_has_under_way_counts_no_more_rule_5(play: Play) -> None:
    play("round a-0 a-1 quorum=2; begins a-0 4; lingering")
    play.say("a-0", evaluation=pb.Evaluation())
    play("ends BAD_MESSAGE; whole a-0; report a-0 99; see open.1.complete lacks a-0; stages")
    play("see clock.tick < 10")


def test_offers_that_would_make_a_version_not_finite_are_late_and_named_rule_12(play: Play) -> None:
    play("round a-0 a-1 quorum=2; slow_merges; offer a-0 1 5; offer a-1 1 5")
    play("merged 1 1 left_out=a-1")
    entry = play.newest[1]
    assert [part.slot for part in entry.participants] == ["a-0"]
    assert "a-1" in entry.reason
    seen = [each.record for each in play.effects if hasattr(each, "record")]
    play('tape late 1; see lines.0.slot a-1; see lines.0.reason has "not finite"')
    assert {"slot": "a-1", "reason": "not finite"} in seen[-1]["left_out"]
    play('see slots.a-1.reason has "not finite"; see slots.a-0.reason ""')


def test_the_grace_looks_at_training_learners_only_rule_11(play: Play) -> None:
    play("begun a-0 a-1 b-0; report a-0 1 step_seconds=0.2; report a-1 1 step_seconds=1.1")
    # H / M steps
    play("report b-0 1 step_seconds=1.1")
    assert 0 < play.state.standing(play.now).grace_seconds < 0.6
    play("leave a-0")
    assert play.state.standing(play.now).grace_seconds > 4.0


def test_an_offer_of_a_training_learner_is_waited_for_during_the_grace_rule_11(play: Play) -> None:
    play("round a-0 a-1 b-0 quorum=2; offer a-0 1 5; offer a-1 1 5")
    grace = play.open[1].grace_seconds
    # H / M steps of 1 s
    assert 2.6 < grace < 2.7
    play.wait(grace / 2)
    play("merges")
    play.wait(grace)
    play("merges a-0,a-1")


def test_no_grace_waits_for_offer_that_takes_longer_than_it_from_its_call_rule_11(
    play: Play,
) -> None:
    play("round a-0 a-1 b-0")
    slot = play.state.sessions.slots["b-0"]
    slot.offer_time = MovingMean(3.0)
    play("offer a-0 1 5; merges; offer a-1 1 5; merges a-0,a-1; offer b-0 1 5 on=0")
    play("tape late 1")
    # what comes late shows how long the next one takes
    assert slot.offer_time.value < 0.1
    # a pause
    slot.offer_time = MovingMean(1.0)
    slot.note_offer_time(11.0)
    assert slot.offer_time.value == 3.0
    slot.note_offer_time(1.0)
    assert slot.offer_time.value == 1.0
    play("leave b-0; join b-0")
    assert slot.offer_time.value is None


def test_offer_that_takes_no_longer_from_its_call_than_grace_is_waited_for_rule_11(
    play: Play,
) -> None:
    play("round a-0 a-1 b-0")
    play.state.sessions.slots["b-0"].offer_time = MovingMean(0.25)
    play("offer a-0 1 5; offer a-1 1 5; wait 0.1; merges; offer b-0 1 5; merges a-0,a-1,b-0")


def test_no_grace_waits_for_a_learner_that_is_too_slow_rule_14(play: Play) -> None:
    play("round a-0 a-1 b-0 quorum=2; later 0.1; report a-0 6; report a-1 6; later 0.1")
    play("report a-0 7; report a-1 7; report b-0 6 step_seconds=9.0")
    assert play.state.is_too_slow(play.state.sessions.slots["b-0"])
    play("see slots.b-0.state SLOT_TRAINING; see open.1.called has b-0; offer a-0 1 5; merges")
    play("offer a-1 1 5; merges a-0,a-1")


def test_grace_counts_again_from_k_th_offer_when_one_was_withdrawn_rules_5_and_11(
    play: Play,
) -> None:
    play("round a-0 a-1 b-0 quorum=2; offer a-0 1 5; offer a-1 1 5")
    first = play.open[1].quorum_at
    play("owner a-0 new; join a-0 new uid=new; see open.1.quorum_at None")
    for _ in range(8):
        play.later(0.25)
        play.report("a-0", 6, 1)
        play.report("b-0", 6, 6)
    play("merges; offer b-0 1 6; see open.1.closed_at None")
    assert first < play.open[1].quorum_at == play.now


def test_the_grace_counts_from_the_k_th_of_the_offers_that_stay_rules_5_and_11(play: Play) -> None:
    # The first was the K-th. A newer capture does not put the end of the grace off.
    play("round a-0 a-1 b-0; offer a-0 1 5; later 0.25; offer a-1 1 5")
    second = play.now
    play("later 0.25; offer a-1 1 6; later 0.1; owner a-0 new; join a-0 new uid=new")
    play("see open.1.closed_at None")
    assert play.open[1].quorum_at == second


def test_who_makes_no_step_is_stalled_although_nothing_is_heard_of_it_rule_6(play: Play) -> None:
    play("begun a-0 a-1; steps 1 3 a-1; later 0.5; report a-1 4; see training only a-1")
    assert step_seconds(play.state.sessions.training.step_seconds) == 1.0
    play("report a-0 1; see training only a-0 a-1")


def test_who_learns_of_a_tick_by_the_report_of_another_is_called_rule_10(play: Play) -> None:
    # It was too far ahead of this shard's clock; the report that moves it is not its own.
    play("begun a-0 a-1 quorum=2; steps 1 4; clear")
    far = 4 * play.state.sync.period + 5
    play("later 1.0")
    play.report("a-1", 5, tick_seen=far)
    play("see clock.tick < 5; report a-0 5; see clock.tick 4")
    called = {session for session, _ in play.one.sent("call")}
    play("later 1.0")
    play.report("a-1", 6, tick_seen=far)
    play("report a-0 6")
    assert called | {session for session, _ in play.one.sent("call")} == {*play.s.values()}
