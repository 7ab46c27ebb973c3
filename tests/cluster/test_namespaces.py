"""Two served namespaces: whatever is lost of the one, jobs of the other go on being judged.

The jobs are suspended, so no pod of theirs runs: that a pass has judged one is in its status. An
open watch outlives the right to it by minutes, so the operator's pods are replaced after each loss.
"""

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from cluster.installed import NAMESPACE, SELECTOR, Installed
from cluster.kubectl import Kubectl
from cluster.training import Job, Stopwatch, manifest

STAYS, LEAVES = "team-stays", "team-leaves"
ROLE = ("role", f"{NAMESPACE}-atoll-operator")
JOBS = "decoupledtrainingjobs"


@pytest.fixture(scope="module")
def two(atoll: Installed, kube: Kubectl) -> Iterator[None]:
    """Let the release serve two namespaces and no other."""
    for each in (STAYS, LEAVES):
        kube("create", "namespace", each)
    revision = atoll.upgrade({"namespaces": f"{{{STAYS},{LEAVES}}}"})
    yield
    kube.attempt("create", "namespace", LEAVES)  # the release's Roles are deleted from it
    atoll.rollback(revision)
    kube("delete", "namespace", STAYS, LEAVES, "--wait=false")


def without(kube: Kubectl, plural: str) -> None:
    """Take the right to watch one kind away."""
    rules = kube.get("-n", LEAVES, *ROLE)["rules"]
    for each in rules:
        if plural in each["resources"]:
            each["verbs"] = [verb for verb in each["verbs"] if verb not in ("list", "watch")]
    patch = json.dumps({"rules": rules})
    kube("-n", LEAVES, "patch", *ROLE, "--type=merge", "-p", patch)


LOSSES: dict[str, Callable[[Kubectl], object]] = {
    "children": lambda kube: without(kube, "statefulsets"),
    "jobs": lambda kube: without(kube, JOBS),
    "role": lambda kube: kube("-n", LEAVES, "delete", *ROLE),
    "namespace": lambda kube: kube("delete", "namespace", LEAVES),
}


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.usefixtures("two")
def test_what_is_lost_of_one_namespace_is_nothing_to_the_jobs_of_the_other(
    atoll: Installed, kube: Kubectl, lost: str
) -> None:
    watch = Stopwatch()
    LOSSES[lost](kube)
    kube("-n", NAMESPACE, "delete", "pod", "-l", SELECTOR)
    name = f"after-{lost}"
    kube.apply(STAYS, manifest(name, {"us-east": 1}, suspend=True))
    job = Job(kube=kube, namespace=STAYS, name=name)
    watch.until("the job is judged", lambda: job.is_true("Accepted"))
    if lost == "namespace":
        watch.until("it is left out", lambda: "NamespaceLeftOut" in _told(kube))
        watch.until("the replicas are ready", lambda: len(atoll.ready()) == len(atoll.pods()))
    sys.stderr.write(f"\n{lost} lost: {watch.laps}\n")


def _told(kube: Kubectl) -> set[str]:
    return {each["reason"] for each in kube.get("-n", NAMESPACE, "events")["items"]}
