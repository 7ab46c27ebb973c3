"""Rule 22: a shard that lost committed data takes it back from its learners."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Fragments
from atoll_syncer.model import log
from unit.syncer.fixtures import Play, lineage
from unit.syncer.shard_side import KEY, RUN, digest, version


def test_every_slice_is_taken_back_where_only_the_model_says_how_many_there_are(play: Play) -> None:
    # The first has died half-way through its first adoptions.
    play.empty("a-0", "b-0", fragments=Fragments.AUTO)
    play("holder a-0 9; wait 31.0; asked a-0:0:9; held a-0 0 9; wait 1.0")
    play('see not state.serving; see shown.reason has "slices 1"; holder b-0 9 8; wait 1.0')
    play("asked b-0:1:8; held b-0 1 8; wait 1.0; see state.serving")
    play("see state.sync.fragment_count 2")


def test_a_held_version_comes_as_a_base_does_or_in_f32_as_a_last_one_does(play: Play) -> None:
    play("empty a-0; holder a-0 9 8; wait 1.0; asked a-0:0:9; clear")
    wanted = pb.Held(version=version(0, 9))
    play.starts("a-0", pb.Transfer(held=wanted, encoding=pb.BF16))
    play("effect Accept 1; see found.0.byte_count 16")
    play.starts("a-0", pb.Transfer(held=wanted, encoding=pb.F32))
    play("effect Accept 1; see found.0.byte_count 32; ends")
    play.starts("a-0", pb.Transfer(held=wanted, encoding=pb.INT8))
    play("effect Accept 0; ends BAD_TRANSFER")


def test_no_seed_is_asked_for_before_registrar_has_said_that_it_has_not_begun(play: Play) -> None:
    play.process(shard=1, shards=2, entries=(log.RunStarted(run=RUN, key=KEY),))
    play('join a-0 incarnation=1; model a-0; sent send_seed; told begun=False alive=["a-0"]')
    play("sent send_seed a-0")


def test_nobody_waits_for_learner_that_began_anew_and_registrar_without_values_does_not_admit_it(
    play: Play,
) -> None:
    known = [pb.SlotTaken(slot="a-1", incarnation=4, instance="before")]
    play("process fresh=False shards=2 regions=a:2")
    play("join a-0 run=old incarnation=4 versions=0:9:old; join a-1")
    play.hello(1, run="old", tick=9, taken=known)
    play("wait 1.0; see history.taken only a-0 a-1; see state.recovery != None")
    play("see state.sessions.open lacks a-1; model a-0; wait 1.0; asked a-0:0:9")


def test_value_comes_back_as_its_number_plus_one_and_rounds_open_when_all_have(play: Play) -> None:
    play("empty a-0; holder a-0 9 8; wait 1.0; held a-0 0 9; see not state.serving; wait 1.0")
    play("held a-0 1 8; wait 1.0; see heads {0: 10, 1: 9}")
    assert [play.history.heads[n].digest for n in (0, 1)] == [digest(0, 9), digest(1, 8)]
    commits = [each for each in play.one.entries if isinstance(each, log.Committed)]
    assert all(each.recovered and (not each.participants) and (each.epoch == 2) for each in commits)
    assert commits[0].tensors
    play("see state.serving; see clock.tick 40")
    assert {
        (each.session, each.slice) for each in play.effects if type(each).__name__ == "PublishHead"
    } == {(play.s["a-0"], 0), (play.s["a-0"], 1)}
    play("see shown.state SHARD_SERVING; tape commit 2")
    assert [line["version"] for line in play.lines if line["recovered"]] == [10, 9]


def test_the_highest_number_wins_and_among_equals_the_later_epoch(play: Play) -> None:
    play("empty a-0 a-1 b-0; holder a-0 7 5 epoch=3; holder a-1 9 5 epoch=1")
    play("holder b-0 9 4 epoch=2; wait 1.0")
    assert play.one.sent("send_held")[0][0] == play.s["b-0"]
    play("see state.recovery.asked.0.holder.number 9")


def test_values_with_another_digest_end_session_and_third_time_is_last(play: Play) -> None:
    play("empty a-0 b-0; holder a-0 9 9; holder b-0 8 8")
    wrong = pb.Held(version=version(0, 9))
    play("wait 1.0; clear")
    play.starts("a-0", pb.Transfer(held=wrong, encoding=pb.BF16))
    play("bad a-0 wrong_digest; ends BAD_TRANSFER; holder a-0 9 9; wait 1.0; clear")
    play.starts("a-0", pb.Transfer(held=wrong, encoding=pb.BF16))
    play("bad a-0 wrong_digest; ends BAD_TRANSFER; holder a-0 9 9; wait 1.0; clear")
    play.starts("a-0", pb.Transfer(held=wrong, encoding=pb.BF16))
    play("bad a-0 wrong_digest; ends BAD_TRANSFER; holder a-0 9 9; wait 1.0")
    play("see state.recovery.asked.0.holder.slot b-0")


def test_joiner_above_head_shows_loss_and_no_session_gets_older_head(play: Play) -> None:
    play("begun a-0 a-1; clear; holder b-0 5 0 epoch=0; see state.recovery != None")
    assert 0 not in {each.slice for each in play.effects if type(each).__name__ == "PublishHead"}
    assert play.publish("a-0", 0) is None
    assert play.publish("a-0", 1) is not None
    play("wait 1.0; asked b-0:0:5; held b-0 0 5 epoch=0; see heads {0: 6, 1: 0}")
    play("see state.recovery None")


def test_what_a_version_holds_of_every_slot_comes_back_with_it_rules_13_and_28(play: Play) -> None:
    # Its learners hear what was merged, and cursors go on.
    play("empty a-0; holder a-0 9 8; wait 1.0")
    merged = lineage("a-0", incarnation=1, base=8, capture=3, cursor=77)
    merged.trained.CopyFrom(
        pb.Trained(
            incarnation=1,
            before=40,
            now=30,
            said=31,
            settled=pb.Settled(merged=20, late=1),
            settled_before=pb.Settled(overlap=40),
            parent=3,
        )
    )
    play.held("a-0", 0, 9, lineage=[merged])
    publish = play.publish("a-0", 0)
    assert (publish.merged.incarnation, publish.merged.base, publish.merged.capture) == (1, 8, 3)
    assert [*publish.lineage] == [merged]
    play('see history.cursors {"a-0": 77}')


def test_another_value_of_the_same_number_is_not_called(play: Play) -> None:
    play("begun a-0 a-1")
    other = [
        pb.SliceProgress(slice=0, held=0, since=pb.Counters(steps=8, tokens=8), digest="f" * 16)
    ]
    for t in range(1, 10):
        play.later(1)
        play.report("a-0", t, slices=other)
        play.report("a-1", t)
    play("calls 0 a-1")


def test_a_held_version_may_take_longer_than_its_first_byte(play: Play) -> None:
    play("empty a-0; holder a-0 9 8; wait 1.0; asked a-0:0:9")
    play.starts("a-0", pb.Transfer(held=pb.Held(version=version(0, 9)), encoding=pb.BF16))
    play("wait 100.0; whole a-0; see heads {0: 10}")


def test_version_before_damaged_one_serves_with_its_own_lineage_rules_13_and_22(
    play: Play,
) -> None:
    # What the damaged one had merged is lost, and said; its number is not given again.
    play("begun a-0; steps 1 9; offer a-0 0 8; steps 9 17; offer a-0 0 16; see heads.0 2")
    tokens = play.history.heads[0].tokens
    before = play.history.previous_merged[0]
    merges = play.history.previous[0].merges
    assert before["a-0"].capture == 8
    play("see history.merged.0.a-0.capture 16")
    assert tokens > 0
    assert merges == 1
    play("restart; lost 0; join a-0; wait 29.0; effect StorePrevious 0; wait 3.0")
    play("effect StorePrevious 1; see found.0.slice 0; see found.0.number 3")
    play("see shown.state SHARD_RECOVERING")
    play.one.feed(play.one.shard.merged(0, "d" * 64, "o", play.one.now))
    play("see heads.0 3; see state.serving")
    assert play.history.merged[0] == before
    assert play.history.heads[0].merges == merges
    play("see history.cursors.a-0 > 0")
    play('see one.entries.-1.reason has "StoreRecovered: version 1 of epoch 1, of the store"')
    lost = f"version 2 is damaged, no learner holds it, and {tokens} tokens that it had merged"
    assert lost in play.newest[0].reason


def test_where_the_version_before_it_is_damaged_too_the_shard_has_failed(play: Play) -> None:
    play("begun a-0; steps 1 9; offer a-0 0 8; restart; lost 0; join a-0; wait 32.0")
    play("effect StorePrevious 1")
    play.one.feed(play.one.shard.previous_lost(0, play.one.now))
    play("wait 1.0; see shown.state SHARD_FAILED; see shown.reason has StoreLost")
