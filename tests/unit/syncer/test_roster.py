"""Slot states, from sessions and reports on a monotonic clock (rule 6)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.roster import Slot

FAST: dict[str, Any] = {"t_m": 1, "training": True, "step_seconds": 0.1}
SLOW = FAST | {"step_seconds": 4.0}
WAITS = FAST | {"waiting": True}


def slot(*reports: tuple[float, dict[str, Any]]) -> Slot:
    one = Slot(name="a-0")
    one.open(1, now=0.0)
    for now, report in reports:
        one.take(pb.Report(**report), now=now)
    return one


@pytest.mark.parametrize(
    ("reports", "at", "state"),
    [
        ([], 100.0, pb.SLOT_JOINING),
        ([(0.0, {"t_m": 5})], 0.0, pb.SLOT_RECOVERING),  # has worked and does not train yet
        ([(0.0, FAST)], 2.0, pb.SLOT_TRAINING),  # no step for three mean steps and 2 s
        ([(0.0, FAST)], 2.1, pb.SLOT_STALLED),
        ([(0.0, SLOW)], 12.0, pb.SLOT_TRAINING),
        ([(0.0, SLOW)], 12.1, pb.SLOT_STALLED),
        ([(0.0, WAITS)], 1e6, pb.SLOT_TRAINING),
        ([(0.0, WAITS), (60.0, FAST)], 62.0, pb.SLOT_TRAINING),  # after a wait it has that time
        ([(0.0, WAITS), (60.0, FAST), (62.0, FAST)], 62.1, pb.SLOT_STALLED),
        ([(0.0, FAST), (3.0, FAST)], 3.0, pb.SLOT_STALLED),  # a report without a step is no sign
    ],
)
def test_a_slot_trains_while_it_steps_or_waits_for_a_publish_rules_6_and_40(
    reports: list[tuple[float, dict[str, Any]]], at: float, state: int
) -> None:
    assert slot(*reports).state(at) == state


def test_without_a_session_it_is_lost_or_has_left_and_a_new_session_begins_its_own_count() -> None:
    """Rule 6."""
    one = slot((0.0, FAST | {"t_m": 5, "tokens": 50}))
    one.session = None
    assert one.state(0.0) == pb.SLOT_LOST
    one.left = "SIGTERM"
    assert one.state(0.0) == pb.SLOT_LEFT
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
