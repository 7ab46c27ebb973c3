"""How objects of the API server are read: containers by name, and what keeps a pod from running."""

from typing import Any

import pytest

from atoll_operator.kube import objects
from atoll_operator.kube.cache import Failure
from atoll_operator.kube.observation import Pod, workload_name
from atoll_operator.kube.plan.pods import container_names
from atoll_operator.kube.plan.problems import problems
from atoll_operator.kube.plan.replacements import Placement
from atoll_protos.names import Label
from unit.kube.cluster_values import job


def read(
    containers: dict[str, Any], *, init: dict[str, Any] | None = None, of: str = "learner"
) -> Pod:
    """A learner's pod whose containers are in these states, in the order of the kubelet."""
    raw = {
        "metadata": {"name": "tiny-us-east-0", "uid": "u", "labels": {Label.ROLE: "learner"}},
        "spec": {"containers": [{"name": name} for name in sorted(containers, reverse=True)]},
        "status": {
            "phase": "Running",
            "containerStatuses": _statuses(containers),
            "initContainerStatuses": _statuses(init or {}),
        },
    }
    return objects.pod(raw, {"learner": of})


def _statuses(states: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name} | states[name] for name in sorted(states)]


def ended(code: int, message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message}}


RUNS: dict[str, Any] = {"state": {"running": {}}}
CRASHES: dict[str, Any] = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": ended(3),
}


def test_the_container_that_trains_is_read_whatever_sidecar_is_before_it() -> None:
    pod = read({"istio-proxy": RUNS, "learner": {"state": ended(64, "no data")}})
    assert (pod.exit_code, pod.exit_message, pod.runs) == (64, "no data", False)


def test_the_exit_of_a_sidecar_is_not_the_learner_s() -> None:
    pod = read({"agent": {"state": ended(64)}, "learner": RUNS})
    assert (pod.exit_code, pod.runs) == (None, True)


def test_a_container_has_the_name_of_the_template_s_first_one_or_of_its_role() -> None:
    named = job("spec.learner.template.spec.containers=[{name: main}, {name: learner}]")
    assert container_names(named) == {
        "learner": "main", "shard": "shard", "evaluator": "evaluator",
    }  # fmt: skip
    assert read({"main": {"state": ended(65)}, "learner": RUNS}, of="main").exit_code == 65


def test_a_pod_of_a_template_with_another_name_is_read_by_its_own_first_container() -> None:
    assert read({"trainer": {"state": ended(77)}, "agent": RUNS}).exit_code == 77


def said(pod: Pod) -> str:
    return problems([pod], Placement())[1][0]


def test_an_init_container_that_fails_is_named() -> None:
    waits = {"state": {"waiting": {"reason": "PodInitializing"}}}
    pod = read({"learner": waits}, init={"fetch": CRASHES})
    assert said(pod) == (
        "tiny-us-east-0 waits: init container fetch is in CrashLoopBackOff, last exit code 3"
    )


def test_a_sidecar_that_fails_is_named() -> None:
    pod = read({"agent": CRASHES, "learner": RUNS})
    assert said(pod) == (
        "tiny-us-east-0 waits: container agent is in CrashLoopBackOff, last exit code 3"
    )


def test_a_pod_that_starts_is_no_problem() -> None:
    waits = {"state": {"waiting": {"reason": "PodInitializing"}}}
    pod = read({"learner": waits}, init={"fetch": RUNS})
    assert problems([pod], Placement()) == ([], [])


def test_a_node_that_has_not_been_ready_since_it_was_made_is_booting() -> None:
    made = {"name": "n", "creationTimestamp": "2027-01-01T10:00:00Z"}

    def never_ready(status: str, since: str) -> bool:
        ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
        raw = {"metadata": made, "status": {"conditions": [ready]}}
        return objects.node(raw, "region").never_ready

    assert never_ready("False", "2027-01-01T10:00:02Z")
    assert not never_ready("True", "2027-01-01T10:00:02Z")
    assert not never_ready("False", "2027-01-01T10:09:00Z")
    assert not never_ready("Unknown", "2027-01-01T10:09:00Z")
    assert objects.node({"metadata": made}, "region").never_ready


NOW = 1_800_000_000.0
READY_TO_START = {"type": "PodReadyToStartContainers", "status": "True"}


def held_up(taken: float = 10.0, failed: float = 5.0, waiting: str = "", **status: Any) -> str:
    """What is said of a pod that was taken up so many seconds ago, with a failure that old."""
    state = {"state": {"waiting": {"reason": waiting}}}
    raw = {
        "metadata": {"name": "tiny-us-east-0", "uid": "u", "labels": {Label.ROLE: "learner"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "learner"}]},
        "status": {
            "phase": "Pending", "startTime": objects.rfc3339(NOW - taken),
            "containerStatuses": _statuses({"learner": state}),
            **status,
        },
    }  # fmt: skip
    at = objects.rfc3339(NOW - failed)
    failure = Failure(uid="u", namespace="demo", event="e", message='secret "s" not found', at=at)
    return objects.held_up(objects.pod(raw, {"learner": "learner"}), failure, NOW)


@pytest.mark.parametrize("waiting", ["ContainerCreating", "PodInitializing", ""])
def test_a_pod_that_its_kubelet_cannot_start_is_named_with_the_words_of_an_event(
    waiting: str,
) -> None:
    assert held_up(waiting=waiting) == 'secret "s" not found'


def test_a_failure_that_may_pass_or_is_past_is_not_said() -> None:
    assert not held_up(taken=9.0)
    assert not held_up(taken=3600.0, failed=601.0)
    assert not held_up(phase="Running")
    assert not held_up(waiting="ImagePullBackOff")
    assert not held_up(conditions=[READY_TO_START])
    assert not held_up(initContainerStatuses=_statuses({"fetch": RUNS}))


def test_an_image_that_cannot_be_pulled_is_named_with_the_kubelets_words() -> None:
    words = 'Back-off pulling image "worker:2": not found'
    waits = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": words}}}
    said = f"tiny-us-east-0 waits: ImagePullBackOff: {words}"
    assert problems([read({"learner": waits})], Placement())[1] == [said]
    init = problems([read({"learner": {}}, init={"fetch": waits})], Placement())[1]
    assert init == [f"tiny-us-east-0 waits: init container fetch is in ImagePullBackOff: {words}"]


def test_a_message_that_counts_seconds_is_left_out() -> None:
    waits = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    pod = read({"learner": {"state": {"waiting": waits}}})
    assert problems([pod], Placement())[1] == ["tiny-us-east-0 waits: CrashLoopBackOff"]


def test_a_container_that_was_killed_for_its_memory_is_said_so() -> None:
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    waits = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": killed}
    assert problems([read({"learner": waits})], Placement())[1] == [
        "tiny-us-east-0 waits: CrashLoopBackOff, last exit code 137 (OOMKilled)"
    ]
    assert problems([read({"agent": waits, "learner": {}})], Placement())[1] == [
        "tiny-us-east-0 waits: container agent is in CrashLoopBackOff,"
        " last exit code 137 (OOMKilled)"
    ]


def hosts_pod(**labels: str) -> Pod:
    raw = {"metadata": {"name": "p", "uid": "u", "labels": {Label.ROLE: "learner", **labels}}}
    return objects.pod(raw)


def test_a_pod_of_a_learner_of_several_hosts_says_which_learner_and_which_host() -> None:
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "3"}
    alone = hosts_pod(**index)
    assert (alone.slot, alone.host, alone.index) == ("us-east-3", 0, 3)
    assert workload_name("tiny", alone) == "tiny-us-east"
    one_of = hosts_pod(**index, **{Label.SLOT: "us-east-1"})
    assert (one_of.slot, one_of.host, one_of.index) == ("us-east-1", 3, 3)
    assert workload_name("tiny", one_of) == "tiny-us-east-1"


def test_a_label_of_a_slot_that_is_not_of_the_region_says_nothing() -> None:
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "3"}
    for slot in ("", "eu-west-1", "us-east-", "us-east-x"):
        assert not hosts_pod(**index, **{Label.SLOT: slot}).has_own_set
