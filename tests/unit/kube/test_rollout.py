"""A new template reaches pods region by region, keeping the quorum."""

from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observation import Pod, Workload
from atoll_operator.kube.plan.rollout import Roll, counted, next_to_restart, shards_to_hold
from unit.kube.cluster_values import learner

NOW = 1_800_000_000.0
REGIONS = ("us-east", "eu-west")
OLD = [learner(name, "n", template="old") for name in ("us-east-0", "us-east-1", "eu-west-0")]
ALL = {pod.slot for pod in OLD}
WANTED = dict.fromkeys(ALL, "new")


def restarted(
    pods: list[Pod], training: set[str], quorum: int, idle: tuple[str, ...] = (), **more: Any
) -> list[str]:
    found = next_to_restart(
        Roll(
            regions=REGIONS, pods=pods, wanted=WANTED, training=frozenset(training),
            idle=frozenset(idle), quorum=quorum,
            **({"now": NOW, "share": len(ALL) - quorum, "desired": len(ALL)} | more),
        )
    )  # fmt: skip
    return [pod.slot for pod in found]


def test_as_many_of_the_first_region_as_the_quorum_can_spare() -> None:
    assert restarted([*OLD], ALL, quorum=2) == ["us-east-0"]
    assert restarted([*OLD], ALL, quorum=1) == ["us-east-0", "us-east-1"]


def test_the_next_region_waits_until_this_one_trains_again() -> None:
    new = [replace(pod, template="new", made_at=NOW - 10) for pod in OLD[:2]]
    assert restarted([*new, OLD[2]], ALL - {"us-east-1"}, quorum=1) == []
    assert restarted([*new, OLD[2]], ALL, quorum=1) == ["eu-west-0"]


def test_pods_that_do_not_train_go_first_whatever_their_region() -> None:
    idle = ("eu-west-0",)
    assert restarted([*OLD], ALL - {"eu-west-0"}, quorum=2, idle=idle) == ["eu-west-0"]
    assert restarted([*OLD], ALL - {"eu-west-0"}, quorum=3, idle=idle) == ["eu-west-0"]


def test_pods_without_a_running_container_go_also_when_nothing_is_known_of_sessions() -> None:
    crashing = replace(OLD[1], waiting="CrashLoopBackOff", exit_code=137)
    pending = replace(OLD[2], node="")
    found = restarted([OLD[0], crashing, pending], set(), quorum=3, serving=False)
    assert found == ["us-east-1", "eu-west-0"]
    running = replace(OLD[1], runs=True, exit_code=137)
    assert restarted([running], set(), quorum=1, serving=False) == []


def test_a_pod_that_trains_stays_while_a_shard_does_not_serve() -> None:
    assert restarted([*OLD], ALL, quorum=1, serving=False) == []


def test_a_template_that_does_not_work_stops_at_what_the_quorum_can_spare() -> None:
    crashes = replace(OLD[0], template="new", made_at=NOW - 3600, waiting="CrashLoopBackOff")
    assert restarted([crashes, *OLD[1:]], ALL - {"us-east-0"}, quorum=1) == []


def test_a_learner_that_makes_a_pause_goes_first_of_those_that_train_and_not_before() -> None:
    stalled = frozenset({"us-east-1"})
    training = ALL - stalled
    assert restarted([*OLD], training, quorum=1, stalled=stalled) == ["us-east-1"]
    new = replace(OLD[0], template="new", made_at=NOW - 10)
    starting = restarted([new, *OLD[1:]], {"eu-west-0"}, quorum=1, stalled=stalled)
    assert starting == []


def test_a_slot_without_capacity_holds_the_others_back_only_for_a_while() -> None:
    pending = replace(OLD[0], template="new", made_at=NOW - 10, node="")
    training = ALL - {"us-east-0"}
    assert restarted([pending, *OLD[1:]], training, quorum=1) == []
    waited = replace(pending, made_at=NOW - 301)
    assert restarted([waited, *OLD[1:]], training, quorum=1) == ["us-east-1"]
    assert restarted([waited, *OLD[1:]], training, quorum=2) == ["us-east-1"]
    assert restarted([waited, *OLD[1:]], training, quorum=3) == ["us-east-1"]


def test_a_new_pod_that_trains_shows_that_another_ones_trouble_is_its_own() -> None:
    crashes = replace(OLD[0], template="new", made_at=NOW - 3600, waiting="CrashLoopBackOff")
    trains = replace(OLD[1], template="new", made_at=NOW - 3600)
    assert restarted([crashes, trains, OLD[2]], ALL - {"us-east-0"}, quorum=1) == ["eu-west-0"]


def test_a_slot_whose_pod_was_just_deleted_is_waited_for() -> None:
    deleted = {"tiny-us-east-0": 2.0}
    assert restarted(OLD[1:], ALL - {"us-east-0"}, 1, restarted_seconds=deleted) == []
    assert restarted(OLD[1:], ALL - {"us-east-0"}, 1, restarted_seconds={"tiny-us-east-0": 301})


def test_a_quorum_of_all_learners_still_lets_one_restart_at_a_time() -> None:
    assert restarted([*OLD], ALL, quorum=3) == ["us-east-0"]


def live(number: int, template: str) -> Workload:
    return Workload(
        name=f"s{number}", kind="Deployment", replicas=1, observed=True, applied="",
        template=template,
    )  # fmt: skip


def held(*shards: tuple[str, bool], restorable: bool = True) -> set[str]:
    """Of shards with these templates, ready or not; all are to get "new"."""
    given = [(live(n, template), "new", ready) for n, (template, ready) in enumerate(shards)]
    return {*shards_to_hold(given, restorable=restorable)}


def test_ready_shards_restart_one_at_a_time() -> None:
    assert held(("old", True), ("old", True)) == {"s1"}
    assert held(("new", True), ("old", True)) == set()
    assert held(("new", False), ("old", True)) == {"s1"}


def test_a_shard_that_is_not_ready_gets_its_template_at_once() -> None:
    assert held(("old", False)) == set()
    assert held(("old", False), ("old", False)) == set()
    assert held(("old", True), ("old", False)) == {"s0"}


def test_ready_shards_wait_while_nothing_could_restore_them() -> None:
    assert held(("old", True), ("old", False), restorable=False) == {"s0"}
    assert held(("old", True), restorable=False) == {"s0"}


def test_the_time_of_a_restart_is_no_part_of_a_shards_template() -> None:
    assert held(("new@12:00", True)) == set()


def test_a_pod_on_its_way_out_does_not_count_for_the_quorum() -> None:
    slots = [
        pb.SlotStatus(slot=f"us-east-{i}", uid=f"uid-us-east-{i}", state=pb.SLOT_TRAINING)
        for i in range(4)
    ]
    slots.append(pb.SlotStatus(slot="eu-west-0", uid="elsewhere", state=pb.SLOT_TRAINING))
    pods = [
        learner("us-east-0", "n"),
        learner("us-east-1", "n", terminating=True),
        learner("us-east-2", "n", uid="new"),
    ]  # and the pod of us-east-3 has just been deleted
    found = counted(slots, pods, lambda region: region == "us-east")
    assert found == {"us-east-0", "eu-west-0"}


# ---------------------------------------------------------------- several clusters


def test_a_cluster_restarts_at_most_its_share_of_the_learners_that_can_be_spared() -> None:
    assert restarted([*OLD], ALL, quorum=1, share=1) == ["us-east-0"]
    # where others are gone already, what the quorum can spare now counts
    assert restarted(OLD[:2], ALL - {"eu-west-0"}, quorum=1, share=2) == ["us-east-0"]


def test_a_cluster_without_a_share_takes_one_learner_while_all_train() -> None:
    assert restarted([OLD[2]], ALL, quorum=2, share=0) == ["eu-west-0"]
    assert restarted([OLD[2]], ALL - {"us-east-0"}, quorum=2, share=0) == []
    # of a job that can spare none each takes one: who waits for it waits for all
    assert restarted([OLD[2]], ALL - {"us-east-0"}, quorum=3, share=0) == ["eu-west-0"]
