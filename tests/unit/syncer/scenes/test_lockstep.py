"""Lock-step: all hand over at the due tick, and nobody is called (rule 15)."""

import atoll_protos.v1.atoll_pb2 as pb
from unit.syncer.fixtures import Play


def test_no_learner_is_called_and_all_hand_over_rule_15(play: Play) -> None:
    play("lockstep a-0 a-1; calls 1; offer a-0 1 4 t_m=4; merges; offer a-1 1 4 t_m=4")
    play("merges a-0,a-1; see clock.tick 4")
    assert (play.s["a-0"], pb.Tick(tick=4)) in play.one.sent("tick")


def test_no_hand_over_begins_a_round_after_the_end_rule_27(play: Play) -> None:
    play("lockstep a-0 a-1 steps=4; offer a-0 0 4 t_m=4; offer a-0 1 4 t_m=4; leave a-1")
    play("merges a-0 a-0; see history.ended; join a-1 incarnation=1")
    play("report a-1 4 waiting=True; offer a-1 0 2 t_m=4; offer a-1 1 2 t_m=4; merges")
    play("see open {}; tape late 2")
    assert {line["slot"] for line in play.lines} == {"a-1"}


def test_the_offer_of_one_that_was_lost_stands_for_nobody_else_rule_15(play: Play) -> None:
    play("begun a-0 a-1 lockstep=True grace=False")
    for n in range(1, 8):
        play.report("a-0", n)
        play.report("a-1", n, step_seconds=100.0)
    play("report a-0 8; offer a-0 0 8 t_m=8; leave a-0; wait 60.0; merges; report a-1 8")
    play("offer a-1 0 8 t_m=8; merges a-0,a-1")


def test_a_round_is_due_at_the_earliest_step_handed_over_rule_15(play: Play) -> None:
    play("begun a-0 a-1 b-0 lockstep=True")
    for slot, at in (("a-0", 12), ("a-1", 4), ("b-0", 6)):
        for n in range(1, at + 1):
            play.report(slot, n)
    play("offer a-0 1 12 t_m=12; merges; offer a-1 1 4 t_m=4; merges a-0,a-1")


def test_the_hand_overs_of_the_last_step_are_the_end_rule_27(play: Play) -> None:
    play("begun a-0 a-1 lockstep=True steps=8; steps 1 8")
    for n in (0, 1):
        for slot in ("a-0", "a-1"):
            play.offer(slot, n, 8, t_m=8)
    play("wait 0.25; see history.ended; see heads {0: 1, 1: 1}")


def test_a_jump_of_a_learners_position_is_no_work_rule_8(play: Play) -> None:
    play("begun a-0 a-1 overlap=0 lockstep=True; report a-0 1; report a-1 1; clear")
    # while a-0 was cut off
    play.clock.raise_to(24)
    play.state.rounds.starts = {0: 24, 1: 24}
    play("report a-1 2; report a-0 24; see clock.tick 24; report a-0 25; see clock.tick 25")
