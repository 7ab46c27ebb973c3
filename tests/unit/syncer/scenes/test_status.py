"""What the Status call tells, at every stage of a shard."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from unit.syncer.fixtures import Play
from unit.syncer.shard_side import RUN


def test_a_young_shard_says_what_it_waits_for(play: Play) -> None:
    play("process fresh=False; see shown.state SHARD_STARTING; see shown.reason")
    play.process(fresh=False, entries=(log.RunStarted(run=RUN),))
    play("see shown.state SHARD_SEEDING; see shown.reason")


def test_a_shard_says_how_many_learners_the_manifest_of_its_cluster_has_now(play: Play) -> None:
    play("process regions=a:2,b:1")
    assert dict(play.shown.learners) == {"a": 2, "b": 1}
    play("listing a=2")
    assert dict(play.shown.learners) == {"a": 2}


def test_a_shard_that_is_not_marked_yet_waits_for_the_registrar(play: Play) -> None:
    play("begun a-0")
    entries = tuple(each for each in play.one.entries if not isinstance(each, log.Begun))
    play.process(entries=entries, started=False)
    play("slow_disk; start")
    play.one.append(play.one.queue.pop(0))
    assert isinstance(play.one.queue[0], log.Begun)
    play('see shown.reason "waits for the registrar"')


def test_each_slot_says_state_incarnation_owner_and_how_long_it_was_silent(play: Play) -> None:
    play("begun a-0 a-1; report a-0 3 tokens=30 loss=2.5 finished=True; owner a-1 a-1-uid")
    play("leave a-1; later 1.5")
    first, second = play.shown.slots
    assert (first.slot, first.state, first.incarnation) == ("a-0", pb.SLOT_TRAINING, 1)
    assert (first.t_m, first.tokens, first.loss, first.finished) == (3, 30, 2.5, True)
    assert first.seconds_since_report == 1.5
    assert (second.state, second.owner_uid, second.owner_generation) == (pb.SLOT_LOST, "a-1-uid", 1)
    play("see shown.state SHARD_SERVING; see shown.quorum 1; see shown.registrar True")
    play("see shown.run RUN; see shown.epoch 1; see shown.steps 100")


def test_an_evaluation_is_said_once_there_is_one(play: Play) -> None:
    play("begun a-0")
    assert not play.shown.HasField("evaluation")
    play("join - observer=True")
    play.say("eye", evaluation=pb.Evaluation(tick=50, loss=1.25))
    play("see shown.evaluation.loss 1.25; tape evaluation 1; see lines.0.tick 50")
    play("see lines.0.loss 1.25")


def test_a_slot_that_left_says_its_reason_rule_6(play: Play) -> None:
    play("begun a-0")
    play.say("a-0", leave=pb.Leave(reason="SIGTERM"))
    play('see slots.a-0.state SLOT_TRAINING; see slots.a-0.reason ""; leave a-0')
    play("see slots.a-0.state SLOT_LEFT; see slots.a-0.reason SIGTERM")


def test_a_slot_says_why_its_learner_could_not_join_anew_also_after_its_session(play: Play) -> None:
    play("begun a-0")
    play.report("a-0", 3, trouble="tls.crt:expired\nat_noon" + "!" * 1000)
    assert play.slots["a-0"].trouble.startswith("tls.crt:expired at_noon!")
    assert len(play.slots["a-0"].trouble) <= 500
    play("leave a-0")
    assert (play.slots["a-0"].state, play.slots["a-0"].trouble[:8]) == (pb.SLOT_LOST, "tls.crt:")
    play('join a-0 again; see slots.a-0.trouble ""')


def test_late_work_is_a_share_of_what_the_present_processes_have_trained(play: Play) -> None:
    # Both counts are those of one report, so a shard that starts again divides like by like.
    play("begun a-0 a-1; see shown.late_share 0.0; report a-0 3 tokens=300 late=30")
    play("report a-1 3 tokens=100 late=90")
    assert [slot.late_share for slot in play.shown.slots] == [0.1, 0.9]
    play("see shown.late_share 0.3")


def test_the_rate_of_the_clock_leaves_out_a_break_without_learners_rule_8(play: Play) -> None:
    # [Else the time that remains is told in months after a suspension of hours.]
    play("begun a-0 a-1")
    for t in range(1, 6):
        play.report("a-0", t)
        play.report("a-1", t)
        play.one.wait(1.0)
    assert 0.8 < play.clock.ticks_per_second < 1.3
    play("leave a-0; leave a-1; wait 3600.0; join a-0 new-0; join a-1 new-1")
    for t in range(1, 6):
        play.report("a-0", t)
        play.report("a-1", t)
        play.one.wait(1.0)
    assert 0.8 < play.clock.ticks_per_second < 1.3
