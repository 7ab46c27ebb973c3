"""From a Join to what a lost session leaves (rules 1, 3, 4, 5, 8, 20, 24, 25, 35)."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.model import log
from unit.syncer.fixtures import Play
from unit.syncer.shard_side import RUN, digest, version


def test_a_seed_counts_when_all_its_slices_are_there_in_one_entry_rule_1(play: Play) -> None:
    play("process; join a-0; model a-0; seed a-0 0; effect StoreSeed 0; seed a-0 1")
    play("effect StoreSeed 1")
    assert [type(each) for each in play.one.entries].count(log.Seeded) == 1


def test_no_round_opens_before_the_mark_is_durable_rule_1(play: Play) -> None:
    play("process shard=1 shards=2; told; told; join a-0 incarnation=1; model a-0; seed a-0")
    assert pb.MarkBegunRequest(shard=1, run=RUN) in [
        each.request for each in play.effects if hasattr(each, "request")
    ]
    play("steps 1 19; sent call")
    play.told(pb.MarkBegunReply)
    play("steps 20 40")
    assert play.one.sent("call")


def test_a_mark_is_durable_before_it_is_answered_rule_1(play: Play) -> None:
    play("begun a-0; slow_disk; hello; clear")
    play.call(pb.MarkBegunRequest(shard=1, run=RUN))
    assert [type(each).__name__ for each in play.effects] == ["Append", "SendReply"]
    assert play.effects[0].entry == log.Begun(shard=1)
    play("see one.effects.1.message.run RUN")


def test_a_mark_of_another_run_is_not_made_and_its_caller_ends_rule_1(play: Play) -> None:
    # It was on its way while the registrar lost its store and began another run.
    play("begun a-0; clear")
    play.call(pb.MarkBegunRequest(shard=1, run="an earlier run"))
    play("effect Append 0; effect SendReply 1; see found.0.message.run RUN")
    play.process(shard=1, shards=2, entries=(log.RunStarted(run="earlier"),))
    play.told(pb.MarkBegunReply, run=RUN)
    play("effect EndProcess 1")
    assert play.found[0].code == ExitCode.OTHER_JOB
    play("see not state.seed.marked")


def test_a_mark_is_made_by_a_registrar_that_names_no_run_rule_1(play: Play) -> None:
    # It has lost its log and does not know the run yet.
    play("process fresh=False shards=2; clear")
    play.call(pb.MarkBegunRequest(shard=1, run=RUN))
    play("effect Append 1")
    assert play.found[0].entry == log.Begun(shard=1)
    play("effect SendReply 1")
    assert play.found[0].message == pb.MarkBegunReply()
    play.process(shard=1, shards=2, entries=(log.RunStarted(run=RUN),))
    play.told(pb.MarkBegunReply)
    play("effect EndProcess 0; see state.seed.marked")


def test_before_its_term_is_durable_a_shard_welcomes_no_learner_rule_20(play: Play) -> None:
    play.process(started=False, entries=(log.RunStarted(run=RUN),))
    play("slow_disk; start; join a-0; ends NOT_READY; see last.0.retry")


def test_an_old_word_changes_nothing_rule_4(play: Play) -> None:
    # [Without n, a late word locks a slot for good.]
    play("begun a-0; clear; owner a-0 first; owner a-0 late; owner a-0 second 1")
    assert [each.message.generation for each in play.effects if hasattr(each, "token")] == [
        1,
        1,
        2,
    ]
    play("see history.owned.a-0.uid second")


def test_of_two_words_with_one_number_the_first_counts_rule_4(play: Play) -> None:
    play("begun a-0; slow_disk; clear; owner a-0 first; owner a-0 late; flush")
    assert [each.message.generation for each in play.effects if hasattr(each, "token")] == [
        1,
        1,
    ]
    assert [each.uid for each in play.one.entries if isinstance(each, log.Owned)] == ["first"]


def test_a_replaced_session_does_not_move_the_clock_by_its_whole_t_m_rule_8(play: Play) -> None:
    play("begun a-0; steps 1 19")
    tick = play.clock.tick
    play.one.instances.clear()
    play("join a-0 t_m=19; ends REPLACED; report a-0 20 steps=5; report a-0 21 steps=6")
    assert play.clock.tick - tick <= 2


def test_report_of_session_that_is_not_its_slots_newest_counts_nothing_rule_5(play: Play) -> None:
    # Should a rule ever leave the older one open.
    play("begun a-0; report a-0 3")
    slot = play.state.sessions.slots["a-0"]
    slot.open(99, play.now, incarnation=1)
    before = (play.clock.tick, slot.report)
    play("report a-0 30")
    assert (play.clock.tick, slot.report) == before


def test_what_joiner_has_seen_elsewhere_raises_tick_and_all_are_told_rule_8(play: Play) -> None:
    play("begun a-0; join b-0 tick_seen=50; see clock.tick 0; hear_tick 50; wait 0.5")
    play("see clock.tick >= 50")
    assert (play.s["a-0"], pb.Tick(tick=50)) in play.one.sent("tick")


def test_a_join_of_another_run_is_refused_before_anything_of_it_is_used_rule_3(play: Play) -> None:
    play("begun a-0 b-0")
    tick = play.clock.tick
    play("join a-0 survivor run=another tick_seen=5000 incarnation=7; ends OTHER_RUN")
    play("see not last.0.retry; join - survivor run=another tick_seen=5000 observer=True")
    play("ends OTHER_RUN; wait 20.0")
    assert play.clock.tick == tick
    play("see history.taken.a-0.instance a-0-process")
    assert len(play.state.sessions.open) == 2
    play("see not history.ended")


def test_what_is_unknown_ends_that_session_and_nothing_else_rule_25(play: Play) -> None:
    play("begun a-0 a-1 b-0; clear")
    play.starts("a-0", pb.Transfer(offer=pb.Offer(slice=9, capture=1), encoding=pb.BF16))
    play("ends BAD_TRANSFER; see last.0.reason; see last.0.remedy")
    play.say("a-1", evaluation=pb.Evaluation())
    play("ends BAD_MESSAGE; see last.0.reason; see last.0.remedy")
    play("see state.sessions.open only b-0")


def test_the_model_of_a_learner_that_left_before_it_seeded_binds_nobody_rule_1(play: Play) -> None:
    play("process; other a-0; seed a-0 0; join a-1; model a-1; sent send_seed a-0; leave a-0")
    play("sent send_seed a-1; seed a-1; ends; see state.serving")
    assert play.history.layout_digest == play.state.layout.digest


def test_a_model_beyond_all_measure_ends_its_session_and_nothing_else_rule_25(play: Play) -> None:
    play("process")
    play.other("a-0", 1 << 44)
    play("ends OTHER_LAYOUT; effect SetModel 0; join a-1; model a-1; seed a-1")
    play("see state.serving")


def test_a_model_for_which_there_is_no_memory_ends_its_sessions_rule_25(play: Play) -> None:
    play("process; other a-0; join a-1; model a-1")
    play.one.feed(play.one.shard.does_not_fit(play.state.layout.digest, "no memory"))
    play("ended a-0 OTHER_LAYOUT; seed a-1; see state.serving")


def test_one_that_joins_and_leaves_while_its_incarnation_is_written_can_come_again_rule_4(
    play: Play,
) -> None:
    play("begun a-0; slow_disk; join b-0 first; leave b-0; join b-0 second; ends SLOT_HELD")
    play("see last.0.retry; flush; join b-0 second; flush")
    assert {to for to, _ in play.one.sent("welcome")} == {play.s["b-0"]}
    assert [
        e.incarnation for e in play.one.entries if isinstance(e, log.Taken) and e.slot == "b-0"
    ] == [1, 2]


def test_a_learner_that_is_lost_during_the_merge_of_its_offer_is_in_it_rule_11(play: Play) -> None:
    play("round a-0 a-1 quorum=2; slow_disk; offer a-0 1 5; offer a-1 1 5; leave a-0")
    play("join a-0 successor; flush")
    assert [part.slot for part in play.newest[1].participants] == ["a-0", "a-1"]
    # its round is closed, and the merge needs the values
    play("drops")


def test_a_transfer_of_40_s_answers_for_the_calls_that_wait_behind_it_rule_10(play: Play) -> None:
    play("begun a-0 a-1 quorum=2; steps 1 9")
    assert {call.slice for to, call in play.one.sent("call") if to == play.s["a-0"]} == {0, 1}
    play("offers 9 a-1; begins a-0 9; steps 10 49; whole a-0; wait 20.0; ends")
    play("see state.sessions.open.a-0.credits has 0")


def test_nobody_is_asked_for_a_seed_that_is_being_written_rule_1(play: Play) -> None:
    play("process; join a-0; join a-1; model a-0; slow_disk; seed a-0; sent send_seed a-0")
    play("leave a-0; wait 60.0; sent send_seed; flush")
    assert isinstance(play.one.entries[-2], log.Seeded)
    play("see state.sessions.open has a-1")


def test_one_that_is_two_periods_ahead_on_another_shard_is_called_and_five_is_not_rule_10(
    play: Play,
) -> None:
    play("begun a-0 a-1 quorum=2")
    for t in range(1, 6):
        play.report("a-0", t, tick_seen=20)
        play.report("a-1", t, tick_seen=44)
    play("sent call a-0")


def test_a_joiner_holds_a_head_only_by_its_whole_name_rule_17(play: Play) -> None:
    # [By its number alone it would get a difference to a value that it does not have.]
    play("round a-0 a-1 grace=False; offer a-0 1 5; see heads.1 1; clear")

    def held() -> Any:
        return play.state.sessions.open[play.s["b-0"]].held

    play("join b-0 versions=1:1")
    assert held() == {1: 1}
    play("publishes b-0:0; leave b-0")
    # of a log that was lost
    play.join("b-0", held=[version(1, 1, name="f" * 64)])
    assert held() == {}
    play("publishes b-0:0 b-0:1; leave b-0; join b-0 versions=1:1:old")
    assert held() == {}
    play("publishes b-0:0 b-0:1; leave b-0; join b-0 versions=1:0")
    assert held() == {}
    play("publishes b-0:0 b-0:1")


def test_a_reported_version_is_held_only_by_its_digest_too_rule_17(play: Play) -> None:
    play("round a-0 a-1 grace=False; offer a-0 1 5")

    def held() -> Any:
        return play.state.sessions.open[play.s["a-1"]].held.get(1)

    play.report("a-1", 6, slices=[pb.SliceProgress(slice=1, held=1, digest=digest(1, 1)[:16])])
    assert held() == 1
    play.report("a-1", 6, slices=[pb.SliceProgress(slice=1, held=1, digest="f" * 16)])
    assert held() is None


def test_report_of_replaced_session_whose_streams_are_open_does_not_count_rule_5(
    play: Play,
) -> None:
    play("begun a-0; lingering; join a-0 incarnation=1; report a-0 1")
    before = (play.clock.tick, play.state.sessions.tokens)
    play("report a-0' 50 tokens=500")
    assert (play.clock.tick, play.state.sessions.tokens) == before
    play("see state.sessions.slots.a-0.report.t_m 1")
