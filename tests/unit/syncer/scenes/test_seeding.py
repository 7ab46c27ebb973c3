"""Learners begin a run together, as far as they are there (rule 1)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.history import History
from atoll_syncer.rules import seeding
from unit.syncer import shard_side
from unit.syncer.fixtures import Play, listed
from unit.syncer.shard_side import RUN


def test_a_seed_that_is_on_its_way_or_is_being_stored_is_waited_for_rule_1(play: Play) -> None:
    play("process; join a-0; model a-0")
    play.starts("a-0", pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32))
    play("wait 60.0; whole a-0")
    play.starts("a-0", pb.Transfer(seed=pb.Seed(slice=1), encoding=pb.F32))
    # StoreSeed is not performed yet
    play.one.shard.transfer_verified(play.s["a-0"], play.head["a-0"], play.now)
    play("wait 60.0; ends")


def test_one_with_another_model_gets_the_runs_and_hears_who_brought_it_rule_1(play: Play) -> None:
    play("process regions=a:2,b:1 start_seconds=3600; join a-0; model a-0")
    play("join a-1 layout_digest=another; seed a-0")
    assert play.history == History.of(play.one.entries)
    play("ends OTHER_LAYOUT")
    assert play.last[0].model == shard_side.layout_of(1).to_model()
    assert play.last[0].reason == "another model than this run's, which a-0 brought"
    play('see last.0.remedy "give every learner the same model, or start another job"')
    # who brought it need not be there
    play("leave a-0; join a-1 layout_digest=another; ends OTHER_LAYOUT")
    play('see last.0.reason has "which a-0 brought"')
    assert play.last[0].model == shard_side.layout_of(1).to_model()


def test_a_slot_is_waited_for_again_once_another_learner_has_dialled_in_it(play: Play) -> None:
    play("waiting 3600 a=2 b=1; join a-1 run_hash=another")
    assert seeding.missing(play.state) == ["b-0"]
    play("join a-1; leave a-1")
    assert seeding.missing(play.state) == ["a-1", "b-0"]


def test_one_whose_next_start_may_be_taken_and_observer_change_nothing_for_their_slot(
    play: Play,
) -> None:
    play("waiting 20 a=2; join a-1 protocol=1")
    assert len(play.one.ends()) == 1
    assert seeding.missing(play.state) == ["a-1"]
    play("waiting 20 a=2; join a-1 run=former")
    assert len(play.one.ends()) == 1
    assert seeding.missing(play.state) == ["a-1"]
    play("waiting 20 a=2; join a-1 observer=True layout_digest=another; ends OTHER_LAYOUT")
    assert seeding.missing(play.state) == ["a-1"]


def test_learners_that_train_already_are_not_stopped_by_registrar_that_starts_again(
    play: Play,
) -> None:
    play("begun a-0")
    held = [*play.state.heads()]
    play.restart(expected=listed(20, a=2))
    play.join("a-0", run=RUN, incarnation=1, held=held)
    play("given; report a-0 3; join a-1; wait 0.25; given a-1")
