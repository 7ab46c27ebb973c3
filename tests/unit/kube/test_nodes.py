"""Which nodes count as lost, by their conditions and Leases."""

from dataclasses import replace

import pytest

from atoll_operator.kube.observed.observation import Node
from atoll_operator.kube.plan.replacements import Leases, NodeState, state_of
from unit.kube.cluster_values import node

LOSS = 20


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (None, NodeState.GONE),
        (node("n", silent=5), NodeState.WELL),
        (node("n", silent=12), NodeState.DOUBTFUL),
        (node("n", silent=21.4), NodeState.DOUBTFUL),
        (node("n", silent=21.6), NodeState.SILENT),
        (node("n", silent=5, ready=False), NodeState.NOT_READY),
        (node("n", silent=5, out_of_service=True), NodeState.NOT_READY),
        (node("n", silent=100, settled_seconds=5), NodeState.DOUBTFUL),
        (node("n", silent=100, settled_seconds=12), NodeState.SILENT),
        (replace(node("n"), silent_seconds=None), NodeState.WELL),
    ],
)
def test_a_nodes_state_follows_its_condition_and_its_lease(
    seen: Node | None, state: NodeState
) -> None:
    assert state_of(seen, LOSS) is state


def test_a_lease_of_long_duration_is_waited_for_longer() -> None:
    assert state_of(node("n", silent=50, lease_seconds=120.0), LOSS) is NodeState.DOUBTFUL
    assert state_of(node("n", silent=65, lease_seconds=120.0), LOSS) is NodeState.SILENT


def test_the_time_without_ready_is_counted_from_when_it_was_first_seen() -> None:
    leases, down = Leases(), node("n", ready=False)
    assert leases.look(down, 100.0).not_ready_seconds == 0.0
    assert leases.look(down, 119.0).not_ready_seconds == 19.0
    assert leases.look(node("n"), 120.0).not_ready_seconds == 0.0
    assert leases.look(down, 121.0).not_ready_seconds == 0.0


def test_silence_is_counted_from_the_last_change_of_renew_time() -> None:
    leases = Leases()
    leases.seen("n", "10:00:00", 40, now=100.0)
    leases.seen("n", "10:00:00", 40, now=110.0)
    assert leases.look(node("n"), 115.0).silent_seconds == 15.0
    leases.seen("n", "10:00:10", 40, now=116.0)
    assert leases.look(node("n"), 120.0).silent_seconds == 4.0


def test_after_a_gap_of_the_watch_a_renewal_more_is_waited_for() -> None:
    leases = Leases()
    leases.seen("n", "10:00:00", 40, now=100.0)
    leases.resumed(150.0)
    assert state_of(leases.look(node("n"), 155.0), LOSS) is NodeState.DOUBTFUL
    assert state_of(leases.look(node("n"), 162.0), LOSS) is NodeState.SILENT
