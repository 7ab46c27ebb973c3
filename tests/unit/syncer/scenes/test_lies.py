"""What one peer says that is not true, of terms, versions and the clock (rules 22, 38, 39)."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from unit.syncer.fixtures import Play, lineage, listed
from unit.syncer.shard_side import RUN, version


def test_a_slot_begins_a_higher_term_once_rule_38(play: Play) -> None:
    play("trained a-0 b-0; leave b-0")
    for n in range(10):
        play.join("b-0", f"liar {n}", run=RUN, epochs_seen=[1000 * (n + 1)])
        play.leave("b-0")
    play("see history.epoch 1001")
    assert play.drives(17, 32, "a-0") >= 2


def test_an_incarnation_far_above_those_known_locks_no_slot_rule_38(play: Play) -> None:
    play("process shard=1 shards=2 fresh=False; told")
    play.join("a-1", "liar", run=RUN, incarnation=2**64 - 1)
    play("ends BAD_MESSAGE; join a-1 rightful run=RUN incarnation=1")
    play("see state.sessions.open has a-1")


def test_a_long_name_of_a_slot_is_no_number_of_many_digits_rule_38(play: Play) -> None:
    play("trained a-0 b-0")
    play.join("b-" + "9" * 400)
    play("ends UNKNOWN_SLOT")
    play.join("b-" + "9" * 5000)
    play('ends BAD_MESSAGE; see state.run.heard {"b-0", "a-0"}')


def test_tokens_of_many_instances_never_leave_their_field_rule_38(play: Play) -> None:
    play("begun a-0 b-0")
    most = 2**53 - 1
    play.report("b-0", 1, tokens=most)
    play("leave b-0; join b-0 b-0-1")
    play.report("b-0", 1, tokens=most)
    play("leave b-0; join b-0 b-0-2")
    play.report("b-0", 1, tokens=most)
    play("leave b-0; join b-0 b-0-3")
    assert play.slots["b-0"].tokens == most
    play("restart; join a-0 new; report a-0 0")


def test_a_version_that_never_comes_delays_commits_once_rule_22(play: Play) -> None:
    play("trained a-0 a-1 b-0")
    held = [pb.SliceProgress(slice=n, held=500, digest="x" * 16) for n in (0, 1)]

    def lie() -> None:
        if play.s["b-0"] in play.state.sessions.open:
            play.report("b-0", 1, slices=held)

    play.drives(17, 216, "a-0", "a-1", lie=lie)
    play("ends BAD_MESSAGE; see state.recovery None")
    # its slot is believed no more
    play("join b-0 another")
    assert play.drives(217, 316, "a-0", "a-1", lie=lie) >= 20


def test_a_claim_without_a_digest_begins_no_recovery_rule_22(play: Play) -> None:
    play("trained a-0 b-0")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=10**6)])
    play("see state.recovery None")


def test_nobody_holds_a_version_of_a_shard_that_has_never_begun_rule_22(play: Play) -> None:
    play("process steps=100_000; join a-0; join b-0 run=RUN versions=0:5")
    play("see state.recovery None; model a-0; seed a-0; report a-0 0")
    assert play.drives(1, 16, "a-0")


def test_a_held_version_of_a_number_near_the_largest_is_not_taken_rule_38(play: Play) -> None:
    play("trained a-0 b-0")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=50, digest="x" * 16)])
    play("wait 1")
    play.held("b-0", 0, 2**64 - 1, name="e" * 64)
    play("ends BAD_TRANSFER")


def test_learner_that_never_gives_what_it_claims_is_believed_ten_times_rule_22(play: Play) -> None:
    play("trained a-0 b-0; clear")
    for n in range(20):
        play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=500 + n, digest="x" * 16)])
        play.one.wait(1)
        play.leave("b-0")
        play.join("b-0")
    assert len(play.one.sent("send_held")) == 10
    play("see state.recovery None; wait 31")
    assert play.drives(17, 32, "a-0") >= 2


def test_version_far_above_clock_begins_no_recovery_and_its_learner_starts_again_rule_47(
    play: Play,
) -> None:
    play("trained a-0 b-0")
    held = [pb.SliceProgress(slice=0, held=1200, digest="f" * 16)]
    play("clear")

    def lie() -> None:
        if play.s["b-0"] in play.state.sessions.open:
            play.report("b-0", 1, slices=held)

    assert play.drives(17, 40, "a-0", lie=lie) >= 4
    play("see state.recovery None")
    assert play.drives(41, 60, "a-0", lie=lie) >= 4
    play("ends OTHER_RUN; see not state.failures.doubted")
    assert not play.one.sent("send_held")


def test_a_learner_that_is_far_ahead_is_believed_once_the_clock_is_rule_47(play: Play) -> None:
    play("trained a-0 b-0")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=1200, digest="f" * 16)])
    play("see state.recovery None; hear_tick 300; join b-1 run=RUN tick_seen=300; wait 1")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=1200, digest="f" * 16)])
    play("wait 1; asked b-0:0:1200")


def test_without_a_loss_a_slots_claim_counts_once_for_each_slice_rule_47(play: Play) -> None:
    play("trained a-0 b-0")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=30, digest="f" * 16)])
    play("wait 1; asked b-0:0:30")
    play.held("b-0", 0, 30, name="f" * 64)
    play("see heads.0 31; see state.recovery None")
    play.report("b-0", 2, slices=[pb.SliceProgress(slice=0, held=60, digest="e" * 16)])
    play("see state.recovery None; wait 31")
    play.report("b-0", 2, slices=[pb.SliceProgress(slice=0, held=60, digest="e" * 16)])
    play("ends OTHER_RUN; see heads.0 31; join b-0 another")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=1, held=30, digest="f" * 16)])
    play("wait 1; asked b-0:1:30")
    # now it counts
    play("held b-0 1 30; lost 0")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=60, digest="f" * 16)])
    play("wait 1; asked b-0:0:60")


def test_what_is_given_instead_is_no_higher_than_the_clock_allows_rule_47(play: Play) -> None:
    play("trained a-0 b-0")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=30, digest="f" * 16)])
    play("wait 1; asked b-0:0:30")
    play.held("b-0", 0, 5000000, name="f" * 64)
    play("ends BAD_TRANSFER; see heads.0 < 30")


def test_without_loss_lineage_says_no_more_of_slot_than_that_does_itself_rule_47(
    play: Play,
) -> None:
    play("trained a-0 a-1 b-0; report a-0 17 cursor=17")
    play.report("b-0", 1, slices=[pb.SliceProgress(slice=0, held=30, digest="f" * 16)])
    play("wait 1")
    tokens, cursors = (play.state.sessions.tokens, {**play.history.cursors})
    play("asked b-0:0:30")

    def of(slot: str) -> Any:
        return pb.SlotMerged(
            slot=slot,
            incarnation=900000,
            base=1,
            capture=1,
            cursor=10**12,
            trained=pb.Trained(incarnation=900000, now=2**52, said=2**52),
        )

    play.held("b-0", 0, 30, name="f" * 64, lineage=[of("a-0"), of("a-1"), of("b-1")])
    play("see heads.0 31")
    assert play.state.sessions.tokens == tokens
    assert play.history.cursors == {**cursors, "a-0": 17, "b-1": 0}
    play("restart")
    assert play.state.sessions.tokens == tokens
    play("join a-0 second; sent welcome a-0; see messages.0.incarnation 2")
    play("see messages.0.cursor 17")


def test_one_report_moves_the_clock_by_a_period_at_most_rule_39(play: Play) -> None:
    play("trained a-0 b-0")
    tick = play.clock.tick
    play("report b-0 100_000; report b-0 200_000; report b-0 300_000")
    assert tick <= play.clock.tick <= tick + 8
    play("trained a-0 b-0")
    tick = play.clock.tick
    play("report b-0 100_000 step_seconds=1e-6; report b-0 200_000 step_seconds=1e-6")
    assert tick <= play.clock.tick <= tick + 8


def test_steps_count_up_to_64_times_as_fast_as_the_median_rule_39(play: Play) -> None:
    play("trained a-0 a-1 b-0")
    tick = play.clock.tick
    for n in range(1, 101):
        play.later(0.1)
        play.report("a-0", 16 + n // 10)
        play.report("a-1", 16 + n // 10)
        play.report("b-0", 10**6 * n, step_seconds=1e-06)
    assert tick + 500 < play.clock.tick <= tick + 10 * 64 + 8


def test_steps_count_up_to_4_times_as_fast_as_a_learner_says_itself_rule_39(play: Play) -> None:
    play("trained a-0 a-1 b-0; steps 17 17 a-0 a-1")
    tick = play.clock.tick
    play("later 1.5; report a-1 1000 step_seconds=0.1")
    assert 60 <= play.clock.tick - tick <= 68


def test_a_joiners_tick_counts_when_another_shard_confirms_it_rule_39(play: Play) -> None:
    play("trained a-0 b-0")
    tick = play.clock.tick
    play("join b-1 run=RUN tick_seen=90_000; wait 31")
    assert play.clock.tick == tick
    play.one.hear_tick(tick + 30)
    play("wait 1")
    assert play.clock.tick == tick + 30


def test_after_a_restart_a_tick_counts_that_most_learners_have_seen_rule_39(play: Play) -> None:
    play("trained a-0 a-1 b-0")
    play.restart(fresh=False, expected=listed(a=2, b=1))
    tick = play.clock.tick
    play("join b-0 run=RUN incarnation=1 tick_seen=90_000; wait 60")
    assert play.clock.tick == tick
    play.join("a-0", run=RUN, incarnation=1, tick_seen=tick + 40)
    play("wait 1")
    assert play.clock.tick == tick + 40


def test_a_learner_that_is_new_after_a_loss_is_not_most_of_them_rule_39(play: Play) -> None:
    play("begun a-0 steps=100_000")
    assert play.drives(1, 16, "a-0")
    play("restart fresh=False; lost 0")
    tick = play.clock.tick
    play("join b-1 run=RUN tick_seen=90_000 versions=0:1; wait 29")
    assert play.clock.tick == tick


def test_a_report_that_cannot_be_true_ends_its_session_and_nothing_else_rule_38(play: Play) -> None:
    big = 2**64 - 1
    play.reports(slices=[pb.SliceProgress(slice=7, held=1)])
    play.reports(slices=[pb.SliceProgress(), pb.SliceProgress()])
    play.reports(slices=[pb.SliceProgress(slice=0, held=10200001, digest="x" * 16)])
    play.reports(slices=[pb.SliceProgress(slice=0, since=pb.Counters(steps=1, tokens=big))])
    play.reports(slices=[pb.SliceProgress(slice=0, digest="x" * 10000)])
    play.reports(t_m=big)
    play.reports(tokens=big)
    play("reports tokens=10 late=11")
    play.reports(cursor=2**53)
    play.reports(tick_seen=big)
    play.reports(reached=big)
    play("reports epochs_seen=[1,1]")
    play.reports(step_seconds=float("nan"))
    play.reports(publish_seconds=float("inf"))
    play("reports busy_share=-1.0")
    play.reports(trouble="x" * 100000)


def test_a_join_that_cannot_be_true_is_refused_and_leaves_nothing_rule_38(play: Play) -> None:
    big = 2**64 - 1
    play.joins(epochs_seen=[big])
    play("joins epochs_seen=[1_000_002]")
    play.joins(epochs_seen=[1] * 100)
    play.joins(incarnation=big)
    play.joins(tick_seen=big)
    play.joins(cursor=big)
    play.joins(held=[version(7, 1)])
    play.joins(held=[version(0, 1), version(0, 2)])
    play.joins(held=[version(0, 10200001)])
    play.joins(uid="x" * 10000)


def test_a_lineage_that_cannot_be_true_is_not_taken_rule_38(play: Play) -> None:
    play.hands_back(lineage("a-0", incarnation=2**64 - 1))
    play.hands_back(lineage("a-0", incarnation=1, cursor=2**64 - 1))
    play.hands_back(lineage("a-0"), lineage("a-0"))
    play.hands_back(lineage("no_slot"))


def test_a_call_that_cannot_be_true_is_refused_rule_38(play: Play) -> None:
    play("process shards=2")

    def hello(**fields: Any) -> Any:
        return pb.HelloRequest(**{"shard": 1, "run_hash": play.one.job.hash, **fields})

    assert play.one.shard.objection(hello(tick=2**64 - 1))
    assert play.one.shard.objection(hello(length=pb.Length(revision=2**64 - 1)))
    assert play.one.shard.objection(hello(length=pb.Length(ends=[2**64 - 1])))
    assert play.one.shard.objection(hello(shard=2))
    assert play.one.shard.objection(hello(run_hash="another"))
    assert play.one.shard.objection(hello(taken=[pb.SlotTaken(slot="a-0", incarnation=2**64 - 1)]))
    assert play.one.shard.objection(hello(taken=[pb.SlotTaken(slot="nowhere-0", incarnation=1)]))
    assert play.one.shard.objection(pb.MarkBegunRequest(shard=7))
    assert play.one.shard.objection(pb.MarkBegunRequest(run="x" * 10000))
    assert play.one.shard.objection(pb.ReportFinalRequest(file="../elsewhere"))
    assert play.one.shard.objection(pb.ReportFinalRequest(shard=9, file="parts/x"))
    assert play.one.shard.objection(pb.SetOwnerRequest(slot="no slot"))
    assert play.one.shard.objection(pb.SetOwnerRequest(slot="a-0", generation=2**64 - 1))


def test_calls_that_can_be_true_are_not_refused_rule_38(play: Play) -> None:
    play("process shard=1 shards=2 fresh=False; effect Ask 1; process shards=2")
    assert not play.one.shard.objection(play.found[0].request)
    assert not play.one.shard.objection(pb.MarkBegunRequest(shard=1, run=RUN))
    assert not play.one.shard.objection(
        pb.ReportFinalRequest(shard=1, file="parts/run-shard-001.safetensors")
    )
    assert not play.one.shard.objection(pb.SetOwnerRequest(slot="a-0", uid="pod"))
