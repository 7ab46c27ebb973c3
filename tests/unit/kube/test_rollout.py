"""A new template reaches pods region by region, keeping the quorum."""

from dataclasses import replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observation import Workload
from atoll_operator.kube.plan.rollout import counted, next_to_restart, shards_to_hold
from unit.kube.cluster_values import learner

REGIONS = ("us-east", "eu-west")
WANTED = dict.fromkeys(REGIONS, "new")
OLD = [learner(name, "n", template="old") for name in ("us-east-0", "us-east-1", "eu-west-0")]
ALL = {pod.slot for pod in OLD}


def restarted(pods: list[object], training: set[str], quorum: int) -> list[str]:
    found = next_to_restart(REGIONS, pods, WANTED, training, quorum)  # type: ignore[arg-type]
    return [pod.slot for pod in found]


def test_as_many_of_the_first_region_as_the_quorum_can_spare() -> None:
    assert restarted([*OLD], ALL, quorum=2) == ["us-east-0"]
    assert restarted([*OLD], ALL, quorum=1) == ["us-east-0", "us-east-1"]


def test_the_next_region_waits_until_this_one_trains_again() -> None:
    new = [replace(pod, template="new") for pod in OLD[:2]]
    assert restarted([*new, OLD[2]], ALL - {"us-east-1"}, quorum=1) == []
    assert restarted([*new, OLD[2]], ALL, quorum=1) == ["eu-west-0"]


def test_a_pod_that_does_not_train_costs_nothing() -> None:
    assert restarted([*OLD], ALL - {"us-east-1"}, quorum=2) == ["us-east-1"]


def test_a_quorum_of_all_learners_still_lets_one_restart_at_a_time() -> None:
    assert restarted([*OLD], ALL, quorum=3) == ["us-east-0"]


def live(number: int, template: str) -> Workload:
    return Workload(
        name=f"s{number}", kind="Deployment", replicas=1, observed=True, applied="",
        template=template,
    )  # fmt: skip


def test_shards_restart_one_at_a_time() -> None:
    shards = [(live(0, "old"), "new"), (live(1, "old"), "new")]
    assert shards_to_hold(shards, ready=2) == {"s1"}
    assert shards_to_hold(shards, ready=1) == {"s0", "s1"}
    assert shards_to_hold([(live(0, "new"), "new"), (live(1, "old"), "new")], ready=2) == set()


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
