"""A shard's pod whose node is lost, beside the one that has taken its place."""

import pytest

from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.situation import situation_of
from unit.kube.cluster_values import SETTINGS
from unit.kube.planner_side import NOW
from unit.kube.scenes import decided, names, scene

ALL = "us-east-0 us-east-1 eu-west-0; Training all; evaluator"
FOLLOWED = "shard @n1 going unready; shard-b @n2; n1 silent=30"


def condition(found: Plan, kind: str) -> tuple[str, str]:
    assert found.status is not None
    (one,) = (each for each in found.status.status["conditions"] if each["type"] == kind)
    return one["status"], one["reason"]


def test_a_pod_that_another_one_has_followed_is_no_trouble_of_the_shard() -> None:
    found = decided(f"{ALL}; {FOLLOWED}")
    assert condition(found, "SyncerReady") == ("True", "Serving")
    assert condition(found, "Degraded") == ("False", "AllWell")


@pytest.mark.parametrize(
    ("text", "silent", "replaced"),
    [
        (FOLLOWED, 0.0, "shard"),
        ("shard @n1; n1 silent=30", 0.0, ""),  # it answers: its kubelet is lost
        ("shard @n1; n1 silent=30", 9.0, "shard"),
        ("shard @n1", 9.0, ""),
    ],
)
def test_a_pod_on_a_lost_node_goes_though_its_shard_answers_if_another_one_serves(
    text: str, silent: float, replaced: str
) -> None:
    seen = scene(f"{ALL}; {text}", silent_seconds={0: silent})
    assert seen.job is not None
    placement = situation_of(seen, seen.job, SETTINGS, NOW).placement
    assert names(placement.replace) == replaced
    if text == FOLLOWED:
        (one,) = placement.replace
        assert one.reason == "its node n1 is silent, and another pod serves the shard"


def test_a_shards_pod_that_has_ended_for_good_fails_the_job() -> None:
    ended = "@n1 unready exit=64 waits=CrashLoopBackOff"
    assert condition(decided(f"shard {ended}"), "Failed") == ("True", "BadInput")
    followed = decided(f"{ALL}; shard {ended}; shard-b @n2")
    assert condition(followed, "Failed")[0] == "False"


def test_a_shards_process_that_was_followed_is_started_again_in_its_place() -> None:
    crashed = "@n1 unready exit=77 waits=CrashLoopBackOff"
    assert decided(f"shard {crashed}").delete == ()
    assert names(decided(f"us-east-0 {crashed}").delete) == "us-east-0"
