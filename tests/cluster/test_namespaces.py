"""Namespaces that are served: whatever is lost of some, jobs of another one continue to be judged.

The jobs are suspended, so no pod of theirs runs: that a pass has judged one is in its status. An
open watch outlives the right to it by minutes, so the operator's pods are replaced after them.
"""

import json
from collections.abc import Callable, Iterator

import pytest

from cluster.installed import NAMESPACE, SELECTOR, Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest

STAYS = "team-stays"
ROLE = ("role", f"{NAMESPACE}-atoll-operator")
JOBS = "decoupledtrainingjobs"


def without(kube: Kubectl, namespace: str, plural: str) -> None:
    """Take the right to watch one kind away."""
    rules = kube.get("-n", namespace, *ROLE)["rules"]
    for each in rules:
        if plural in each["resources"]:
            each["verbs"] = [verb for verb in each["verbs"] if verb not in ("list", "watch")]
    patch = json.dumps({"rules": rules})
    kube("-n", namespace, "patch", *ROLE, "--type=merge", "-p", patch)


LOSSES: dict[str, dict[str, Callable[[Kubectl, str], object]]] = {
    "namespace": {"team-leaves": lambda kube, name: kube("delete", "namespace", name)},
    "rights": {
        "team-without-children": lambda kube, name: without(kube, name, "statefulsets"),
        "team-without-jobs": lambda kube, name: without(kube, name, JOBS),
        "team-without-role": lambda kube, name: kube("-n", name, "delete", *ROLE),
    },
}


@pytest.fixture(scope="module")
def served(atoll: Installed, kube: Kubectl) -> Iterator[None]:
    """Let the release serve these namespaces and no other."""
    teams = [name for lost in LOSSES.values() for name in lost]
    for each in (STAYS, *teams):
        kube("create", "namespace", each)
    revision = atoll.upgrade({"namespaces": f"{{{','.join([STAYS, *teams])}}}"})
    yield
    for each in teams:  # the release's Roles are deleted from it
        kube.attempt("create", "namespace", each)
    atoll.rollback(revision)
    kube("delete", "namespace", STAYS, *teams, "--wait=false")


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.usefixtures("served")
def test_what_is_lost_of_some_namespaces_is_nothing_to_the_jobs_of_another_one(
    atoll: Installed, kube: Kubectl, lost: str
) -> None:
    for name, lose in LOSSES[lost].items():
        lose(kube, name)
    kube("-n", NAMESPACE, "delete", "pod", "-l", SELECTOR)
    job = Job(kube=kube, namespace=STAYS, name=f"after-{lost}")
    kube.apply(STAYS, manifest(job.name, {"us-east": 1}, suspend=True))
    until("the job is judged", lambda: job.is_true("Accepted"))
    if lost == "namespace":
        until("it is left out", lambda: "NamespaceLeftOut" in _told(kube))
        until("the replicas are ready", lambda: len(atoll.ready()) == len(atoll.pods()))


def _told(kube: Kubectl) -> set[str]:
    return {each["reason"] for each in kube.get("-n", NAMESPACE, "events")["items"]}
