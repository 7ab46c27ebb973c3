"""Slot states, from sessions and reports on a monotonic clock (rule 6)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.roster import Slot


def slot(**report: object) -> Slot:
    one = Slot(name="a-0")
    one.open(1, now=0.0)
    if report:
        one.take(pb.Report(**report), now=0.0)  # type: ignore[arg-type]
    return one


def test_a_session_without_a_report_is_joining_rule_6() -> None:
    assert slot().state(100.0) == pb.SLOT_JOINING


def test_one_that_has_worked_and_does_not_train_yet_is_recovering_rule_6() -> None:
    assert slot(t_m=5).state(0.0) == pb.SLOT_RECOVERING


def test_one_that_lacks_a_lane_does_not_train_whatever_it_reports_rule_34() -> None:
    one = Slot(name="a-0")
    one.open(1, now=0.0, lanes=2)
    one.take(pb.Report(t_m=1, training=True), now=0.0)
    assert one.state(0.0) == pb.SLOT_RECOVERING
    for state in (pb.SLOT_RECOVERING, pb.SLOT_TRAINING):
        one.lanes_missing -= 1
        assert one.state(0.0) == state


def test_no_step_for_three_mean_steps_and_two_seconds_is_stalled_rule_6() -> None:
    fast, slow = (
        slot(t_m=1, training=True, step_seconds=0.1),
        slot(t_m=1, training=True, step_seconds=4.0),
    )
    assert fast.state(2.0) == pb.SLOT_TRAINING
    assert fast.state(2.1) == pb.SLOT_STALLED
    assert slow.state(12.0) == pb.SLOT_TRAINING
    assert slow.state(12.1) == pb.SLOT_STALLED


def test_one_that_waits_for_a_publish_is_training_rule_6() -> None:
    assert slot(t_m=1, training=True, waiting=True).state(1e6) == pb.SLOT_TRAINING


def test_after_a_wait_it_has_the_time_of_a_step_until_it_is_stalled_rules_6_and_40() -> None:
    """So a long wait for a Publish takes no learner out of the next round."""
    one = slot(t_m=1, training=True, waiting=True, step_seconds=0.1)
    one.take(pb.Report(t_m=1, training=True, step_seconds=0.1), now=60.0)
    assert one.state(62.0) == pb.SLOT_TRAINING
    one.take(pb.Report(t_m=1, training=True, step_seconds=0.1), now=62.0)
    assert one.state(62.1) == pb.SLOT_STALLED


def test_a_report_without_a_step_is_no_sign_of_training_rule_6() -> None:
    one = slot(t_m=1, training=True, step_seconds=0.1)
    one.take(pb.Report(t_m=1, training=True, step_seconds=0.1), now=3.0)
    assert one.state(3.0) == pb.SLOT_STALLED


def test_without_a_session_it_is_lost_or_it_has_left_with_its_reason_rule_6() -> None:
    one = slot(t_m=1, training=True)
    one.session = None
    assert one.state(0.0) == pb.SLOT_LOST
    one.left = "SIGTERM"
    assert one.state(0.0) == pb.SLOT_LEFT


def test_a_new_session_begins_its_own_count_and_keeps_the_tokens_of_the_slot() -> None:
    one = slot(t_m=5, training=True, tokens=50)
    one.left = "SIGTERM"
    one.open(2, now=9.0, incarnation=2)
    assert (one.tokens, one.report.t_m, one.t_m_counted, one.left) == (50, 0, 0, "")
    assert one.state(9.0) == pb.SLOT_JOINING


def test_the_tokens_of_an_instance_count_once_over_its_sessions_rule_35() -> None:
    one = Slot(name="a-0")
    for session in range(1, 10):
        one.open(session, now=0.0, incarnation=1)
        assert one.tokens == (50 if session > 1 else 0)
        one.take(pb.Report(t_m=5, training=True, tokens=50), now=0.0)
    one.open(10, now=0.0, incarnation=2)
    one.take(pb.Report(t_m=1, training=True, tokens=10), now=0.0)
    assert one.tokens == 60
