"""What jobs that are quiet or at rest cost the API server, by the API server's own record."""

import json
from collections import Counter
from collections.abc import Callable

import pytest

from cluster.installed import NAMESPACE, RELEASE, REPLICAS, Installed
from cluster.kubectl import Kubectl, until
from cluster.lab.layout import run_folder
from cluster.test_changes import apply
from cluster.training import Job, pace, pass_seconds

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
LOG = "c1/log/audit.log"
QUIET_SECONDS, REST_SECONDS = 120.0, 300.0
SETTLE_SECONDS = 30.0  # after which the start's Events and conditions are written
WRITES_A_MINUTE_MAX = 7
SECRETS = 4  # of the authority, the shard and two regions, each read every 5 minutes
LOOKS_A_MINUTE_MAX = 40  # at the Lease, of one replica: every two seconds or a little earlier
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def requests(offset: int, namespace: str = "") -> Counter[str]:
    """The operator's requests since then, by verb and resource; watches that begin count too."""
    with (run_folder() / LOG).open("rb") as lines:
        lines.seek(offset)
        records = [json.loads(line) for line in lines]
    own = [each for each in records if each["user"]["username"] == OPERATOR]
    return Counter(
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in own
        if each["stage"] == "ResponseComplete" and "objectRef" in each
        if not namespace or each["objectRef"].get("namespace") == namespace
    )


def size() -> int:
    return (run_folder() / LOG).stat().st_size


def writes(found: Counter[str]) -> int:
    return sum(count for each, count in found.items() if each.split()[0] in WRITES)


@pytest.mark.long
def test_a_quiet_training_job_costs_no_list_and_at_most_seven_writes_a_minute(
    train: Callable[..., Job], lab: object
) -> None:
    del lab
    job = train("quiet", {"us-east": 1, "eu-west": 1})
    pass_seconds(SETTLE_SECONDS)
    offset, step = size(), job.get()["status"]["progress"]["step"]
    pass_seconds(QUIET_SECONDS)
    found = requests(offset)
    looks = sum(found.pop(f"{verb} leases", 0) for verb in ("get", "patch"))
    assert 0 < looks <= LOOKS_A_MINUTE_MAX * REPLICAS * QUIET_SECONDS / 60, looks
    assert found.pop("get secrets", 0) <= SECRETS, found
    assert not [each for each in found if each.startswith("list ")], found
    assert not [each for each in found if each.startswith("get ")], found
    assert 0 < writes(found) <= WRITES_A_MINUTE_MAX * QUIET_SECONDS / 60, found
    assert job.get()["status"]["progress"]["step"] > step


@pytest.mark.long
def test_at_rest_twenty_jobs_cost_no_write(
    atoll: Installed, kube: Kubectl, namespace: str, lab: object
) -> None:
    del atoll, lab
    wrong = pace(300)
    wrong["template"]["spec"]["containers"][0]["args"] = ["--batch=-1"]
    failed = apply(kube, namespace, "failed", {"us-east": 1}, learner=wrong)
    regions = {"us-east": 1, "eu-west": 1}
    jobs = [apply(kube, namespace, f"rest-{i}", regions, suspend=True) for i in range(19)]
    for job in jobs:
        until("suspended", lambda job=job: job.is_true("Suspended"))  # type: ignore[misc]
    until("failed", lambda: failed.is_true("Failed") and not failed.pods())
    pass_seconds(15)
    offset, versions = size(), _versions(kube, namespace)
    pass_seconds(REST_SECONDS)
    found = requests(offset, namespace)
    assert not writes(found), found
    assert _versions(kube, namespace) == versions


def _versions(kube: Kubectl, namespace: str) -> dict[str, str]:
    items = kube.get("-n", namespace, "dtj")["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in items}
