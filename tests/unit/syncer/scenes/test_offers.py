"""Offers at a shard: which may come, which count, and what they teach (rules 10 to 15)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.means import MovingMean
from atoll_syncer.model.roster import CallCredit, Timings
from atoll_syncer.rules import sessions as its
from unit.syncer import shard_side
from unit.syncer.fixtures import Play
from unit.syncer.shard_side import digest


def test_nothing_counts_of_a_session_that_is_not_its_slots_newest_rule_5(play: Play) -> None:
    # Should a rule ever leave the older one open: neither a new offer nor one that is here.
    play("round a-0 a-1 quorum=2; begins a-0 5; effect Accept 1")
    slots_ = play.state.sessions.slots
    slots_["a-0"].open(99, play.now, incarnation=1)
    play("whole a-0; stages; see open.1.complete lacks a-0")
    slots_["a-1"].open(98, play.now, incarnation=1)
    play("begins a-1 5; effect Accept 0; ends BAD_TRANSFER")


def test_the_transfer_time_counts_from_the_call_rule_11(play: Play) -> None:
    play("round a-0")
    play.one.now = play.open[1].called["a-0"] + 3.0
    play("begins a-0 5; later 3.0; whole a-0")
    assert abs(play.state.rounds.timings.transfer.value - 6.0) < 1e-06


def test_offer_that_comes_while_its_round_commits_teaches_its_transfer_time_too_rule_11(
    play: Play,
) -> None:
    play("round a-0 a-1 grace=False; begins a-1 5; slow_merges; offer a-0 1 5; see open has 1")
    first = play.state.rounds.timings.transfer.value
    play("later 20.0; whole a-1; tape late 1")
    assert abs(play.state.rounds.timings.transfer.value - first - 4.0) < 1e-06


def test_offer_that_comes_after_commit_teaches_its_transfer_time_too_rule_11(play: Play) -> None:
    play("round a-0 a-1 grace=False; begins a-1 5; offer a-0 1 5; see open lacks 1")
    first = play.state.rounds.timings.transfer.value
    play("later 20.0; whole a-1; tape late 1")
    assert abs(play.state.rounds.timings.transfer.value - first - 4.0) < 1e-06


def test_a_round_teaches_the_time_to_its_quorum_and_the_time_to_its_version(play: Play) -> None:
    play("round a-0 a-1 quorum=2")
    opened = play.open[1].opened_at
    play("later 1.5; offer a-0 1 5; later 1.0; slow_disk")
    full = play.now
    play("offer a-1 1 5")
    assert abs(play.state.rounds.timings.quorum.value - (full - opened)) < 1e-06
    play("see state.rounds.timings.sync.value None; later 0.75; flush")
    assert abs(play.state.rounds.timings.sync.value - 0.75) < 1e-06


def test_an_offer_that_is_not_finite_is_late_and_its_session_goes_on(play: Play) -> None:
    play("round a-0 a-1 quorum=2; refuse a-1 5; ends; tape late 1")
    line = play.lines[0]
    assert (line["slot"], line["tokens"]) == ("a-1", 50)
    assert line["reason"] == "slice 1: values are not finite"
    # a version without it, which it adopts
    play("offer a-0 1 5; clear")
    for t in range(6, 18):
        play.later(1)
        for each in ("a-0", "a-1"):
            play.report(each, t, t - 5)
    assert (play.s["a-1"], 1) in {(to, call.slice) for to, call in play.one.sent("call")}
    play("offer a-1 1 12; see open.1.complete has a-1")


def test_learner_that_was_refused_is_called_again_and_status_says_why_until_merge_has_it(
    play: Play,
) -> None:
    play("round a-0 a-1 quorum=2")
    assert {each.reason for each in play.shown.slots} == {""}
    play('refuse a-1 5; clear; see slots.a-1.reason has "not finite"; see slots.a-0.reason ""')
    # not for this round
    play("join a-1 incarnation=1; report a-1 6 steps=6; sent call; offer a-0 1 5")
    play("see heads.1 1")
    for t in range(7, 18):
        play.later(1)
        for each in ("a-0", "a-1"):
            play.report(each, t, t - 5)
    assert play.s["a-1"] in {to for to, call in play.one.sent("call") if call.slice == 1}
    play('offer a-1 1 12; offer a-0 1 12; see heads.1 2; see slots.a-1.reason ""')


def test_a_transfer_of_many_bytes_has_the_time_that_a_slow_link_takes(play: Play) -> None:
    play("round a-0 a-1")
    assert its.seconds_max(play.state, 1000000000) == 4000.0


def test_offers_of_two_slices_may_come_at_time_each_with_its_data_state_rule_28(play: Play) -> None:
    play('begun a-0 a-1 quorum=2; steps 1 9; begins a-0 4 cursor=40 data_state=b"four"')
    older = play.head["a-0"]
    # as the driver names parts
    play('begins a-0 5 0 cursor=50 data_state=b"five"')
    older.byte_count = 77
    play("ends")
    play.head["b"] = older
    play('whole a-0 b; see open.1.data_states {"a-0": b"four"}')
    play("see state.sessions.open.a-0.receiving only 0; whole a-0")
    play("see state.sessions.open.a-0.receiving {}")
    play('see state.sessions.open.a-0.data_state b"five"')


def test_one_with_same_data_state_means_that_of_its_own_place_in_order_rule_28(play: Play) -> None:
    play("begun a-0 a-1 quorum=2; steps 1 9")
    play.state.sessions.open[play.s["a-0"]].data_state = b"four"
    play("begins a-0 4 cursor=40 same_data_state=True")
    play.head["b"] = play.head["a-0"]
    play('begins a-0 5 0 cursor=50 data_state=b"five"; ends; whole a-0 b')
    play('see open.1.data_states {"a-0": b"four"}')


def test_a_bad_part_counts_against_its_own_offer_alone(play: Play) -> None:
    play("begun a-0 a-1 quorum=2; steps 1 9; begins a-0 5")
    play.head["b"] = play.head["a-0"]
    play("begins a-0 5 0")
    play.head["a-0"] = play.head["b"]
    play('bad a-0 damaged final=True; see open.1.refused {"a-0"}')
    play("see state.sessions.open.a-0.receiving only 0; ends")


def test_an_offer_in_another_encoding_than_the_run_files_ends_its_session(play: Play) -> None:
    play("round a-0")
    offer = pb.Offer(
        slice=1, base_digest=digest(1, 0), capture=5, counters=pb.Counters(steps=5, tokens=50)
    )
    play.starts("a-0", pb.Transfer(offer=offer, encoding=pb.F32))
    play("ends BAD_TRANSFER; see last.0.reason has encoding; round a-0")
    play.starts("a-0", pb.Transfer(offer=offer, encoding=pb.INT4))
    play("ends BAD_TRANSFER; see last.0.reason has encoding; round a-0")
    play.starts("a-0", pb.Transfer(offer=offer, encoding=pb.INT2))
    play("ends BAD_TRANSFER; see last.0.reason has encoding; round a-0")
    play.starts("a-0", pb.Transfer(offer=offer))
    play("ends BAD_TRANSFER; see last.0.reason has encoding")


def test_the_bytes_of_an_offer_count_averaged_buffers_in_f32_rule_25(play: Play) -> None:
    play("round a-0")
    layout = shard_side.layout_of(1, "rda", "average")
    play.state.set_layout(layout)
    assert [each.fragment for each in layout.slices if each.form.exact] == [1]
    play("begins a-0 5; effect Accept 1")
    assert play.found[0].byte_count == 4 * 8


def test_the_transfer_time_is_at_most_half_a_period_rule_11(play: Play) -> None:
    # H = 8
    play("round a-0")
    assert abs(play.clock.ticks_per_second - 1.0) < 1e-06
    play.state.rounds.timings = Timings(transfer=MovingMean(3.0))
    assert abs(play.state.transfer_seconds - 3.0) < 1e-06
    play.state.rounds.timings = Timings(transfer=MovingMean(21.0))
    assert abs(play.state.transfer_seconds - 4.0) < 1e-06


def test_a_last_round_waits_as_long_as_the_transfers_of_all_slices_take_rule_27(play: Play) -> None:
    play("begun a-0 a-1 steps=5; steps 1 4")
    play.state.rounds.timings = Timings(transfer=MovingMean(2.0))
    play("steps 5 6")
    assert [round(each.deadline - play.now, 6) for each in play.open.values()] == [14.0, 14.0]


def test_a_call_that_is_never_answered_ends_the_session_and_the_wait_for_it(play: Play) -> None:
    play("round a-0 a-1 quorum=2")
    called = play.open[1].called["a-1"]
    play("offer a-0 1 5; clear")
    for t in range(6, 35):
        play.report("a-0", t)
        play.report("a-1", min(t, 7))
        play.one.wait(1.0)
        play.state.sessions.open[play.s["a-0"]].credits.clear()
    play("ends; merges")
    for t in range(35, 37):
        play.report("a-0", t)
        play.report("a-1", 7)
        play.one.wait(1.0)
        play.state.sessions.open[play.s["a-0"]].credits.clear()
    assert 30.0 <= play.now - called <= 32.0
    play("merges a-0; ended a-1 BAD_TRANSFER")


def test_a_call_whose_round_closed_without_the_learner_need_not_be_answered(play: Play) -> None:
    # It adopts the new version, and is called for that one when it is due again.
    play("begun a-0 a-1 steps=1000 period=200 grace=False; steps 1 101; offer a-0 1 101")
    play("see heads.1 1; see state.sessions.open.a-1.credits has 1")
    for t in range(102, 190):
        play.report("a-0", t, t - 101)
        play.report("a-1", t, t - 101)
        play.one.wait(1.0)
    play("ends")


def test_who_has_made_no_step_since_keeps_its_call(play: Play) -> None:
    play("round a-0 a-1 quorum=2; offer a-0 1 5")
    mine = play.state.sessions.open[play.s["a-0"]].credits
    for n in range(60):
        play.later(1)
        mine.clear()
        play.report("a-0", 6 + n)
        play.report("a-1", 5, step_seconds=60.0)
        play.one.wait(0.25)
    play("ends")


def test_who_sends_another_transfer_keeps_its_call(play: Play) -> None:
    play("begun a-0 a-1 quorum=2; steps 1 9; offer a-0 1 9; begins a-1 9 0")
    mine = play.state.sessions.open[play.s["a-0"]].credits
    for n in range(60):
        play.later(1)
        mine.clear()
        play.report("a-0", 10 + n)
        play.report("a-1", 10 + n, slices=[])
        play.one.wait(0.25)
    play("ends")


def test_a_transfer_that_drips_ends_and_its_call_is_made_again_rule_10(play: Play) -> None:
    # A frame now and then would make it go on for ever; a slow link has ten times the usual.
    play("round a-0 a-1 quorum=2; begins a-0 4; wait 300.0; ends; lingering; wait 0.5")
    play("ends BAD_TRANSFER; see last.0.retry; join a-0 run=RUN incarnation=1; clear")
    play("report a-0 6 steps=6; calls 1 a-0; round a-0 a-1 quorum=2")
    play.state.rounds.timings = Timings(transfer=MovingMean(60.0))
    play("begins a-0 4; wait 600.0; ends; wait 0.5; ends BAD_TRANSFER")


def test_transfer_that_newer_capture_has_dropped_is_no_more_under_way_rule_33(play: Play) -> None:
    play("round a-0 a-1 quorum=2; begins a-0 4")
    play.head["b"] = play.head["a-0"]
    play.state.sessions.open[play.s["a-0"]].credits[1] = CallCredit(base=0, called_at=2.0, t_m=5)
    play("begins a-0 5")
    play.head["a-0"] = play.head["b"]
    # it is not the one that comes
    play("bad a-0 late; see state.rounds.refused {}; round a-0 a-1 quorum=2")
    play('begins a-0 4 data_state=b"4" cursor=4')
    play.head["b"] = play.head["a-0"]
    play.state.sessions.open[play.s["a-0"]].credits[1] = CallCredit(base=0, called_at=2.0, t_m=5)
    # the older one was whole already
    play("begins a-0 5; whole a-0 b; whole a-0; stages a-0:1:4 a-0:1:5")
    play("see state.sessions.open.a-0.receiving {}")
