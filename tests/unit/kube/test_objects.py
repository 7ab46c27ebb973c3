"""How objects of the API server are read: containers by name, and what keeps a pod from running."""

from typing import Any

import pytest

from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.cache import EventFailure
from atoll_operator.kube.observed.observation import Pod, workload_name
from atoll_operator.kube.plan.pods import container_names
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.plan.status import problems
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


def waits(reason: str, message: str = "", **last: Any) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **last}


STARTS = waits("PodInitializing")
CRASHED = "CrashLoopBackOff, last exit code 3"
NO_MEMORY = "CrashLoopBackOff, last exit code 137 (OOMKilled)"
WORDS = 'Back-off pulling image "worker:2": not found'
PULLS = waits("ImagePullBackOff", WORDS)
KILLED = waits(
    "CrashLoopBackOff", lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
)


@pytest.mark.parametrize(
    ("containers", "of", "code", "message", "runs"),
    [
        ({"proxy": RUNS, "learner": {"state": ended(64, "bad")}}, "learner", 64, "bad", False),
        ({"agent": {"state": ended(64)}, "learner": RUNS}, "learner", None, "", True),
        ({"main": {"state": ended(65)}, "learner": RUNS}, "main", 65, "", False),
        ({"trainer": {"state": ended(77)}, "agent": RUNS}, "learner", 77, "", False),
    ],
)
def test_the_container_that_trains_is_read_by_its_name_or_as_the_first_of_its_pod(
    containers: dict[str, Any], of: str, code: int | None, message: str, runs: bool
) -> None:
    pod = read(containers, of=of)
    assert (pod.exit_code, pod.exit_message, pod.runs) == (code, message, runs)


def test_a_container_has_the_name_of_the_template_s_first_one_or_of_its_role() -> None:
    named = job("spec.learner.template.spec.containers=[{name: main}, {name: learner}]")
    names = {"learner": "main", "shard": "shard", "evaluator": "evaluator"}
    assert container_names(named) == names


@pytest.mark.parametrize(
    ("containers", "init", "said"),
    [
        ({"learner": STARTS}, {"fetch": RUNS}, ""),
        ({"learner": STARTS}, {"fetch": CRASHES}, f"init container fetch is in {CRASHED}"),
        ({"agent": CRASHES, "learner": RUNS}, {}, f"container agent is in {CRASHED}"),
        ({"learner": PULLS}, {}, f"ImagePullBackOff: {WORDS}"),
        (
            {"learner": {}},
            {"fetch": PULLS},
            f"init container fetch is in ImagePullBackOff: {WORDS}",
        ),
        ({"learner": waits("CrashLoopBackOff", "back-off 10s")}, {}, "CrashLoopBackOff"),
        (
            {"learner": waits("CreateContainerConfigError", 'secret "keys" not found')},
            {},
            'CreateContainerConfigError: secret "keys" not found',
        ),
        ({"learner": KILLED}, {}, NO_MEMORY),
        ({"agent": KILLED, "learner": {}}, {}, f"container agent is in {NO_MEMORY}"),
    ],
)
def test_what_keeps_a_pod_from_running_is_named_with_the_container(
    containers: dict[str, Any], init: dict[str, Any], said: str
) -> None:
    found = problems([read(containers, init=init)], Placement())[1]
    assert found == ([f"tiny-us-east-0 waits: {said}"] if said else [])


@pytest.mark.parametrize(
    ("status", "since", "never"),
    [
        ("False", "00:02", True),
        ("True", "00:02", False),
        ("False", "09:00", False),
        ("Unknown", "09:00", False),
        ("", "", True),
    ],
)
def test_a_node_that_has_not_been_ready_since_it_was_made_is_booting(
    status: str, since: str, never: bool
) -> None:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": f"2027-01-01T10:{since}Z"}
    made = {"name": "n", "creationTimestamp": "2027-01-01T10:00:00Z"}
    raw = {"metadata": made, "status": {"conditions": [ready] if status else []}}
    assert objects.node(raw, "region").never_ready == never


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
    failure = EventFailure(
        uid="u", namespace="demo", event="e", message='secret "s" not found', at=at
    )
    return objects.held_up(objects.pod(raw, {"learner": "learner"}), failure, NOW)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"waiting": "ContainerCreating"}, True),
        ({"waiting": "PodInitializing"}, True),
        ({}, True),
        ({"taken": 9.0}, False),  # it may pass
        ({"taken": 3600.0, "failed": 601.0}, False),  # it is past
        ({"phase": "Running"}, False),
        ({"waiting": "ImagePullBackOff"}, False),
        ({"conditions": [READY_TO_START]}, False),
        ({"initContainerStatuses": _statuses({"fetch": RUNS})}, False),
    ],
)
def test_a_pod_that_its_kubelet_cannot_start_is_named_with_the_words_of_an_event(
    seen: dict[str, Any], said: bool
) -> None:
    assert held_up(**seen) == ('secret "s" not found' if said else "")


@pytest.mark.parametrize(
    ("label", "slot", "host", "workload"),
    [
        ("us-east-1", "us-east-1", 3, "tiny-us-east-1"),
        ("", "us-east-3", 0, "tiny-us-east"),
        ("eu-west-1", "us-east-3", 0, "tiny-us-east"),  # not of its region
        ("us-east-", "us-east-3", 0, "tiny-us-east"),
        ("us-east-x", "us-east-3", 0, "tiny-us-east"),
    ],
)
def test_a_pod_of_a_learner_of_several_hosts_says_which_learner_and_which_host(
    label: str, slot: str, host: int, workload: str
) -> None:
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "3", Label.SLOT: label}
    labels = {Label.ROLE: "learner", **index}
    found = objects.pod({"metadata": {"name": "p", "uid": "u", "labels": labels}})
    assert (found.slot, found.host, found.index) == (slot, host, 3)
    assert workload_name("tiny", found) == workload
