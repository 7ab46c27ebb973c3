"""The end of a shard's part: last rounds, Final, the export, other lengths (rule 27)."""

import dataclasses

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.schedule import Length
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model import log
from unit.syncer.fixtures import Play
from unit.syncer.shard_side import RUN


def test_at_t_every_slice_gets_one_last_round_without_k_rule_27(play: Play) -> None:
    play("last_rounds a-0 a-1 reach=False; merges; last_rounds a-0 a-1")
    assert all(each.last for each in play.open.values())
    play("see open only 0 1; offers 9 a-0 a-1; merges a-0,a-1 a-0,a-1")
    assert all(each.last for each in play.merging)
    assert all(each.last for each in play.history.heads.values())


def test_a_last_round_closes_at_its_deadline_be_it_with_nothing_rule_27(play: Play) -> None:
    play.last_rounds("a-0", "a-1", wire_down=Wire.F32)
    play("clear; wait 1.0; see not history.ended; idle 60; see history.ended; merges")
    play("see heads {0: 0, 1: 0}")


def test_last_round_with_nothing_gives_values_in_f32_where_wire_rounds_rule_17(play: Play) -> None:
    play("last_rounds a-0 a-1; clear; idle 60; see history.ended; effect MergeOffers 2")
    assert [(each.participants, each.last) for each in play.found] == [((), True)] * 2
    assert [(each.number, each.last, each.merges) for each in play.history.heads.values()] == [
        (1, True, 0)
    ] * 2
    commits = [each for each in play.one.entries if isinstance(each, log.Committed)]
    assert [each.reason for each in commits] == ["last round: no offer, the same values in f32"] * 2
    play("see history.merged {}")
    assert [each.number for each in commits] == [1, 1]


def test_a_round_that_is_open_on_a_final_version_becomes_the_last_rule_27(play: Play) -> None:
    # A shard that starts again may not know at once that the job's tokens are trained.
    play("begun a-0 a-1 steps=20 quorum=2; steps 1 19; see not open.0.last")
    play.history.heads[0] = dataclasses.replace(play.history.heads[0], last=True)
    play("steps 20 21; see open.0.last; see state.rounds.finished set()")


def test_then_final_goes_to_every_session_with_the_versions_rule_27(play: Play) -> None:
    play("over a-0 a-1")
    assert {play.s["a-0"], play.s["a-1"]} <= {to for to, _ in play.one.sent("final")}
    play("effect WritePart 1; over a-0 a-1")
    finals = dict(play.one.sent("final"))
    assert [each.version.number for each in finals[play.s["a-0"]].versions] == [
        *play.heads.values()
    ]


def test_the_end_is_logged_once_however_long_the_disk_takes_rule_27(play: Play) -> None:
    play("last_rounds a-0 a-1; slow_disk; offers 9 a-0 a-1")
    for _ in range(2):
        play.one.append(play.one.queue.pop(0))
    assert isinstance(play.one.queue[0], log.Ended)
    play("wait 2.0; steps 22 24 a-0 a-1")
    assert len(play.one.queue) == 1
    play("sent final; flush; wait 2.0")
    assert len({to for to, _ in play.one.sent("final")} & {play.s["a-0"], play.s["a-1"]}) == 2
    play("effect WritePart 1")


def test_only_with_the_index_is_the_job_complete_rule_27(play: Play) -> None:
    play("over a-0 a-1; see shown.state SHARD_FINAL; part part-0 digest_; effect WriteIndex 1")
    play('see found.0.parts ((0, "part-0", "digest_"),); see shown.state SHARD_FINAL')
    play.one.feed(play.one.shard.exported())
    play("see shown.state SHARD_COMPLETE; tape closed 1")


def test_the_registrar_waits_for_the_part_of_every_shard_rule_27(play: Play) -> None:
    play("process shards=2; part part-0 a; effect WriteIndex 0; clear")
    final = pb.ReportFinalRequest(shard=1, file="part-1", file_digest="b")
    play.call(final)
    play("effect WriteIndex 1")
    play.call(final)
    play("effect WriteIndex 0; effect SendReply 2")


def test_another_shard_reports_its_part_and_again_to_registrar_that_lost_it_rule_27(
    play: Play,
) -> None:
    play.process(shard=1, shards=2, entries=(log.RunStarted(run=RUN),))
    play("clear; part part-1 b; effect Ask 1; see found.0.request.file part-1")
    play("see found.0.request.file_digest b; told final=True; told final=False")
    play("effect WritePart 0")
    play.told(pb.ReportFinalReply)
    play("told final=True; effect WritePart 0; told final=False; effect WritePart 1")
    play("told final=False; effect WritePart 0")


def test_the_end_waits_for_the_first_work_of_a_learner_that_is_there_rule_27(play: Play) -> None:
    play("begun a-0 a-1 steps=20; steps 1 21 a-0; offers 20 a-0; clear; wait 5.0; merges")
    play("report a-1 1")
    assert [(to, call.slice) for to, call in play.one.sent("call")] == [
        (play.s["a-1"], 0),
        (play.s["a-1"], 1),
    ]
    play("offers 1 a-1; merges a-0,a-1 a-0,a-1; see history.ended")


def test_a_longer_job_puts_off_its_end_and_every_session_hears_of_it_rule_27(play: Play) -> None:
    play("last_rounds a-0 a-1; offer a-0 0 9; clear; length 2 29")
    assert not any(each.last or each.deadline for each in play.open.values())
    told = {to: tick.length for to, tick in play.one.sent("tick")}
    assert [told[play.s[slot]] for slot in ("a-0", "a-1")] == [
        pb.Length(revision=2, steps=29, ends=[20, 29])
    ] * 2
    # it is no news any more
    play("see shown.steps 29; wait 60.0; see not history.ended; clear; length 2 29; sent tick")


def test_a_version_that_was_the_last_gets_a_last_round_at_the_new_end_rule_27(play: Play) -> None:
    play("last_rounds a-0 a-1; offer a-0 0 9; offer a-1 0 9; see history.heads.0.last")
    play("see state.rounds.finished {0}; length 2 29; see state.rounds.finished set()")
    play("report a-0 25; report a-1 25; clear; hear_tick 29; join b-2 tick_seen=29")
    play("report a-0 30; report a-1 30")
    assert {to for to, call in play.one.sent("call") if call.slice == 0} >= {
        play.s["a-0"],
        play.s["a-1"],
    }
    play("see open.0.last")


def test_in_lock_step_a_hand_over_at_a_former_end_may_come_rule_15(play: Play) -> None:
    play("begun a-0 steps=10 overlap=0 lockstep=True; length 1 100")
    for t in range(1, 11):
        play.report("a-0", t)
    play("offer a-0 0 10 t_m=10; offer a-0 1 10 t_m=10; ends")


def test_in_lock_step_the_hand_overs_at_a_longer_end_are_the_last_rule_27(play: Play) -> None:
    play("begun a-0 a-1 lockstep=True steps=8; steps 1 8")
    both = ("a-0", "a-1")
    # slice 0 had its last round
    play("steps 1 8")
    for each in both:
        play.offer(each, 0, 8, t_m=8)
    play("length 1 16")
    for each in both:
        play.offer(each, 1, 8, t_m=8)
    play("steps 9 16")
    for n in (0, 1):
        for each in both:
            play.offer(each, n, 8, t_m=16)
    play("wait 0.25; see history.ended; see heads {0: 2, 1: 2}")


def test_a_shard_beyond_a_shorter_length_ends_at_its_tick_rule_27(play: Play) -> None:
    play("begun a-0 a-1 steps=1000 quorum=2; steps 1 10")
    tick = play.clock.tick
    play("length 1 7")
    assert [(n, each.last) for n, each in play.open.items()] == [(1, True), (0, True)]
    play("see shown.steps 7; offers 2 a-0 a-1; see history.ended")
    assert play.clock.tick == tick
    assert [each.tick for each in play.one.entries if isinstance(each, log.Ended)] == [tick]
    assert all(head.last for head in play.history.heads.values())


def test_an_older_revision_says_nothing_rule_27(play: Play) -> None:
    play("begun a-0 a-1 steps=1000; length 3 100; length 2 5000")
    play("see state.ending.length.steps 100; clear; join b-0; sent welcome b-0")
    play("see messages.0.length.revision 3; length 4 200; length 3 100")
    play("see state.ending.length.steps 200; tape length 1; see lines.0.steps 200")
    # an edit of something else
    play("clear; length 5 200")
    assert {tick.length.revision for _, tick in play.one.sent("tick")} == {5}
    play("tape length 0; see state.ending.length.revision 5; begun a-0")
    play.state.ending.length = Length(tokens=1000)
    play("length 3 tokens=100; length 2 tokens=5000; see state.ending.length.tokens 100")
    play("tape length 1; see lines.0.tokens 100")


def test_a_shorter_length_that_is_taken_back_puts_the_end_off_rule_27(play: Play) -> None:
    play("begun a-0 a-1 steps=1000 quorum=2; steps 1 10; length 1 5; see state.over")
    play("length 2 1000; see not state.over")
    assert not any(each.last for each in play.open.values())
    play("wait 60.0; see not history.ended")


def test_fewer_tokens_than_are_trained_end_the_job_rule_27(play: Play) -> None:
    play("begun a-0 steps=20")
    play.state.ending.length = Length(tokens=1000)
    play.state.sessions.tokens = 150
    play("see not state.over; length 1 tokens=100; see state.over; length 2 tokens=200")
    play("see not state.over")


def test_in_lock_step_beyond_end_slice_is_handed_over_when_it_is_due_next_rule_27(
    play: Play,
) -> None:
    # Slices are due at 8, 16 and at 12, 20; the learners are at step 9.
    play("nine; length 1 5")
    began = play.now
    assert len(play.state.rounds.finished) == 0
    play("on 10 12; see state.rounds.finished {1}; on 13 16")
    assert play.now > began + 10.0
    play("merges a-0,a-1 a-0,a-1")
    assert all(each.last for each in play.merging)
    play("see history.ended")


def test_in_lock_step_beyond_tokens_slice_is_handed_over_when_it_is_due_next_rule_27(
    play: Play,
) -> None:
    play("nine")
    play.state.ending.length = Length(tokens=1000)
    play.state.sessions.tokens = 500
    play("length 1 tokens=5")
    began = play.now
    assert len(play.state.rounds.finished) == 0
    play("on 10 12; see state.rounds.finished {1}; on 13 16")
    assert play.now > began + 10.0
    play("merges a-0,a-1 a-0,a-1")
    assert all(each.last for each in play.merging)
    play("see history.ended")


def test_in_lock_step_head_beyond_shorter_length_still_gets_its_last_round_rule_17(
    play: Play,
) -> None:
    # It was merged as one of many: its last version has all bits.
    play("nine; length 1 3; leave a-0; leave a-1; wait 1.0; see history.ended")
    assert all(each.last for each in play.history.heads.values())


def test_shards_tell_each_other_the_length_in_hello_rule_27(play: Play) -> None:
    play("begun a-0 a-1 steps=20; clear")
    play.hello(length=Length(revision=2, steps=29, ends=(29,)).message())
    play("effect SendReply 1")
    told = play.found[0].message.length
    assert told == pb.Length(revision=2, steps=29, ends=[20, 29])
    assert {to for to, tick in play.one.sent("tick") if tick.length.steps} == {
        play.s["a-0"],
        play.s["a-1"],
    }
    play("join a-2; sent welcome a-2")
    assert play.messages[0].length == told
    play("process shard=1 shards=2 steps=20")
    play.told(length=told)
    assert play.state.ending.length.message() == told


def test_after_its_end_is_logged_a_shard_stays_at_its_length_rule_27(play: Play) -> None:
    play("over a-0 a-1; length 2 29")
    assert play.state.ending.length.steps == play.shown.steps == 20
    play("length 3 11")
    assert play.state.ending.length.steps == play.shown.steps == 20


def test_a_shard_that_starts_beyond_a_shorter_length_ends_there_rule_27(play: Play) -> None:
    play("over a-0 a-1")
    kept = tuple(each for each in play.one.entries if not isinstance(each, log.Ended))
    file = Length(revision=1, steps=20, ends=(20,))
    play.process(entries=kept, length=file, steps=120)
    play("see state.over; see shown.steps 20; length 0 220; see state.over")
    play.process(entries=kept, length=file, steps=1)
    play("see state.over; see shown.steps 20")
    play.process(entries=kept, steps=120)
    play("see not state.over")
