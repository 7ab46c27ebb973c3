"""Which run a log belongs to, and a registrar that has lost its store (rules 1 and 2)."""

import dataclasses
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.rules.runs import of_another_job
from unit.syncer import shard_side
from unit.syncer.fixtures import Play, lineage, listed, taken


def test_an_incarnation_that_log_and_learner_both_know_is_written_once_rule_2(play: Play) -> None:
    play.process(fresh=False, entries=(taken("a-0", 4, uid="a-0-uid"),))
    play("join a-0 run=old incarnation=4 versions=0:9:old; wait 31.0; see history.run old")
    assert [each for each in play.one.entries if isinstance(each, log.Taken)] == [
        taken("a-0", 4, uid="a-0-uid")
    ]


def test_an_empty_shard_passes_on_the_run_that_its_learners_hold_rule_2(play: Play) -> None:
    play("process shard=1 shards=2; join a-0 run=old incarnation=4 versions=0:9:old; wait 3.0")
    hellos = [each.request for each in play.effects if type(each).__name__ == "Ask"]
    assert [(each.run, each.slot) for each in hellos[-1].named] == [("old", "a-0")]
    assert hellos[-1].run == ""


def test_one_that_is_started_no_more_is_not_asked_rule_2(play: Play) -> None:
    play("process fresh=False regions=a:2 start_seconds=20; join a-0")
    play.read_list(dataclasses.replace(listed(20, a=2), absent=("a-1",)))
    play("wait 0.25")
    play("see history.run RUN")


def test_a_shard_with_values_is_marked_again_where_its_mark_may_be_lost_rule_1(play: Play) -> None:
    # Else it would take a seed over a trained model if its store were lost as well.
    play("begun a-0")
    before = History.of(play.one.entries)
    before.lose(1)
    play.process(history=before.copy(), pod="next")
    play("hello run=RUN; see history.begun has 1")
    play.process(history=before.copy(), pod="next")
    play("hello run=RUN empty=True; see history.begun lacks 1")
    play.process(history=before.copy(), pod="next")
    play("hello run=another; see history.begun lacks 1")
    # it marks itself, and may be about to
    play("begun a-0; restart pod=next; hello run=RUN; see history.begun lacks 1")


def test_the_run_that_most_learners_hold_is_carried_on_not_that_of_one_rule_2(play: Play) -> None:
    # [A learner that names a smaller run would throw away what all others hold.]
    play("process fresh=False regions=a:2,b:2; holds b-0 a-false 90; holds a-0 true 4")
    play("holds a-1 true 3; wait 31.0; see history.run true; see history.begun {0}")
    assert {slot: each.incarnation for slot, each in play.history.taken.items()} == {
        "a-0": 4,
        "a-1": 3,
    }
    play("process fresh=False; holds a-1 true 3; holds a-0 true 4; holds b-0 a-false 90")
    play("wait 31.0; see history.run true; see history.taken only a-0 a-1")


def test_the_log_of_another_shard_is_believed_before_all_learners_rule_2(play: Play) -> None:
    play("process fresh=False shards=3; holds a-0 a-false 50; holds a-1 a-false 50")
    play("holds b-0 a-false 50")
    play.hello(
        1,
        run="true_",
        tick=9,
        taken=[pb.SlotTaken(slot="b-1", incarnation=6, uid="uid", instance="b-1")],
    )
    play.hello(2, empty=True, named=[pb.RunNamed(run="a-false", slot="b-0")])
    play("wait 31.0; see history.run true_; see history.taken only b-1")
    play("see history.begun {0, 1, 2}")


def test_an_instance_has_one_slot_whatever_it_says_rule_4(play: Play) -> None:
    play("process fresh=False shards=2 regions=a:2,b:2; join a-0 mine run=true_ incarnation=5")
    play("join a-1 hers run=true_ incarnation=2; join b-0 hers run=true_ incarnation=4")
    play.hello(
        1,
        run="true_",
        tick=9,
        taken=[pb.SlotTaken(slot="b-1", incarnation=6, uid="uid", instance="mine")],
    )
    play("wait 31.0")
    assert {each.instance: slot for slot, each in play.history.taken.items()} == {
        "mine": "b-1",
        "hers": "a-1",
    }


def test_what_learners_say_to_an_empty_shard_counts_at_the_registrar_rule_2(play: Play) -> None:
    play("process fresh=False shards=2; holds b-0 a-false")
    play.hello(
        empty=True, named=[pb.RunNamed(run="true", slot="a-0"), pb.RunNamed(run="true", slot="a-1")]
    )
    play("wait 31.0; see history.run true")


def test_a_shard_tells_the_registrar_which_run_and_incarnations_it_knows_rule_2(play: Play) -> None:
    play("empty a-0; join a-0 incarnation=6; clear; wait 2.5")
    said = next(e.request for e in play.effects if type(e).__name__ == "Ask")
    assert [(t.slot, t.incarnation) for t in said.taken] == [("a-0", 6)]
    play("process fresh=False shards=2")
    play.call(said)
    play("effect SendReply 1; wait 31.0; see history.taken.a-0.incarnation 6")


def test_new_process_gets_no_incarnation_before_it_is_known_which_there_were_rule_2(
    play: Play,
) -> None:
    play("process fresh=False; join b-0 run=old incarnation=1 versions=0:9:old,1:9:old")
    play("wait 31.0; model b-0; clear; join a-0; ends NOT_READY")
    merged = lineage("a-0", incarnation=5, base=8, capture=3, cursor=7)
    play("wait 31.0")
    play.held("b-0", 0, 9, run="old", lineage=[merged])
    play("wait 31.0")
    play.held("b-0", 1, 9, run="old", lineage=[merged])
    play("wait 1.0; join a-0; see history.taken.a-0.incarnation 6")


def test_nor_one_whose_tokens_a_version_counts_rules_4_and_35(play: Play) -> None:
    play("process fresh=False; join b-0 run=old incarnation=1 versions=0:9:old,1:9:old")
    play("wait 31.0; model b-0; clear; join a-0; ends NOT_READY")
    merged = lineage("a-0", incarnation=5, trained=pb.Trained(incarnation=7, before=90))
    play("wait 31.0")
    play.held("b-0", 0, 9, run="old", lineage=[merged])
    play("wait 31.0")
    play.held("b-0", 1, 9, run="old", lineage=[merged])
    play("wait 1.0; join a-0; see history.taken.a-0.incarnation 8")


def test_entries_that_start_run_name_its_hash_and_its_layout_and_its_length_may_change_rule_2(
    play: Play,
) -> None:
    play("begun a-0")
    assert play.history.run_hash == play.one.job.hash
    assert play.history.layout_digest == play.state.layout.digest
    assert (
        of_another_job(play.history, play.one.job)
        == of_another_job(play.history, shard_side.run_file(steps=5000))
        == ""
    )
    play("process shard=1 shards=2; told")
    assert play.history.run_hash == play.one.job.hash


def test_a_store_of_another_manifest_is_not_carried_on_rule_2(play: Play) -> None:
    play("begun a-0")
    others: list[dict[str, Any]] = [{"seed": 7}, {"job": "another"}, {"shards": 2}]
    files = [dataclasses.replace(play.one.job, **each) for each in others]
    files = [*files, shard_side.run_file(outer_learning_rate=0.1), shard_side.run_file(fragments=1)]
    assert all(play.one.job.hash in of_another_job(play.history, each) for each in files)
    assert all(each.hash in of_another_job(play.history, each) for each in files)
