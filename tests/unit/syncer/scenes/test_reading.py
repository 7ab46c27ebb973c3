"""Rule 45: a term begins before its values are read; slices come back one after the other."""

from atoll_syncer.rules.status import why_no_export
from unit.syncer import shard_side
from unit.syncer.fixtures import Play, listed
from unit.syncer.shard_side import RUN


def test_slice_is_called_for_and_its_offers_are_staged_and_it_is_merged_when_it_is_back(
    play: Play,
) -> None:
    play("begun a-0")
    held = [*play.state.heads()]
    play("restart_unread; clear")
    play.join("a-0", run=RUN, incarnation=1, held=held)
    play("sent welcome a-0")
    assert [each.version.number for each in play.messages[0].newest] == [0, 0]
    play("see shown.state SHARD_SERVING; see shown.unread 2; steps 1 6; calls 1 a-0")
    play("offer a-0 1 6; stages a-0:1:6; wait 5.0; merges")
    assert play.one.shard.deadline() > play.now + 0.1
    play("read 1; see shown.unread 1; merges a-0; see heads {0: 0, 1: 1}; publishes a-0:1")


def test_slices_that_are_back_are_merged_while_others_are_not(play: Play) -> None:
    play("begun a-0")
    held = [*play.state.heads()]
    play("restart_unread")
    play.join("a-0", run=RUN, incarnation=1, held=held)
    play("steps 1 10; clear; offer a-0 1 10; offer a-0 0 10; read 0; merges a-0")
    play("see heads {0: 1, 1: 0}")


def test_slice_that_is_due_next_is_read_first_and_before_it_one_whose_round_waits(
    play: Play,
) -> None:
    play("begun a-0")
    held = [*play.state.heads()]
    play("restart_unread")
    play.join("a-0", run=RUN, incarnation=1, held=held)
    assert play.one.shard.next_unread() == 1
    play("steps 1 6; see open only 1")
    assert play.one.shard.next_unread() == 1
    play("read 1")
    assert play.one.shard.next_unread() == 0
    play("read 0")
    assert play.one.shard.next_unread() is None


def test_a_learner_that_lacks_a_version_gets_it_when_it_is_back(play: Play) -> None:
    play("begun a-0; restart_unread; join b-0; publishes")
    assert play.publish("b-0", 1) is None
    play("read 1; publishes b-0:1")
    assert play.publish("b-0", 1).version.version.number == 0
    play("wait 5.0; publishes")


def test_what_is_kept_back_for_learners_that_are_not_there_yet_is_so_when_it_is_back_rule_1(
    play: Play,
) -> None:
    play("begun a-0")
    play.restart_unread(expected=listed(20, a=2))
    play("join a-0 run=RUN incarnation=1; read 1; publishes; join a-1; wait 0.25")
    play("publishes a-0:1 a-1:1; read 0; publishes a-0:0 a-1:0")


def test_in_lock_step_the_hand_overs_wait_for_the_slice(play: Play) -> None:
    play("lockstep a-0 a-1")
    held = [*play.state.heads()]
    play("restart_unread")
    play.join("a-0", run=RUN, incarnation=1, held=held)
    play.join("a-1", run=RUN, incarnation=1, held=held)
    play("report a-0 4 waiting=True; report a-1 4 waiting=True; offer a-0 1 4 t_m=4")
    play("offer a-1 1 4 t_m=4; merges; read 1; merges a-0,a-1")


def test_object_that_is_damaged_is_loss_from_moment_in_which_it_is_read(play: Play) -> None:
    play("begun a-0")
    held = [*play.state.heads()]
    play("restart_unread; see state.recovery None")
    play.join("a-0", run=RUN, incarnation=1, held=held)
    play("steps 1 6; offer a-0 1 6; lost 1; drops a-0:1:6; tape loss 1")
    play("see lines.0.slices [1]; wait 1.0; asked a-0:1:0; held a-0 1 0")
    play("see heads {0: 0, 1: 1}; see state.serving")
    assert play.one.shard.next_unread() == 0


def test_the_end_waits_for_all_values_rule_27(play: Play) -> None:
    play("last_rounds a-0 a-1; slow_disk; offers 9 a-0 a-1")
    for _ in range(2):
        play.one.append(play.one.queue.pop(0))
    play("restart_unread; wait 1.0; see state.rounds.finished {0, 1}; see not history.ended")
    play("read 0; wait 1.0; see not history.ended; read 1; wait 1.0; see history.ended")


def test_a_last_round_whose_slice_is_not_back_stays_open_rule_27(play: Play) -> None:
    play("last_rounds a-0 a-1; restart_unread; hear_tick 20; join b-1 tick_seen=20; wait 30.0")
    play("see open only 0 1")
    assert play.one.shard.deadline() > play.now + 0.1
    play("read 0 1; wait 1.0; see history.ended")


def test_no_export_of_a_job_that_trains_is_taken_while_values_are_read(play: Play) -> None:
    play("begun a-0; restart_unread")
    run_hash = shard_side.run_file().hash
    assert why_no_export(play.state, run_hash, play.now) == "the shard reads its values back"
    play("read 0 1")
    assert not why_no_export(play.state, run_hash, play.now)
