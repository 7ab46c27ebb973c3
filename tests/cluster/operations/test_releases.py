"""The life of a release while a job trains: every step of it restarts no pod of the job."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.installed import CHART, CRD, NAMESPACE, RELEASE, REPLICAS, SELECTOR, Installed
from cluster.kubectl import Kubectl, until
from cluster.person import Person

OTHER, ELSEWHERE = "other", "atoll-elsewhere"
SLOTS = ["us-east-0", "eu-west-0"]
TRAINED = "was trained"

pytestmark = pytest.mark.long


@dataclass(slots=True, kw_only=True)
class Helm:
    """helm, as a person types it."""

    program: str
    kube: Kubectl
    printed: str = field(default="", init=False)

    def __call__(self, *words: str) -> str:
        program = (self.program, f"--kubeconfig={self.kube.kubeconfig}")
        done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}{done.stdout}"
        self.printed = done.stdout
        return done.stdout


WAIT = ("--wait", "--timeout", "600s")


@pytest.fixture
def helm(atoll: Installed, kube: Kubectl) -> Iterator[Helm]:
    """Return helm; afterwards the release of the other tests is there again, with the CRD."""
    helm = Helm(program=atoll.helm, kube=kube)
    values = helm("get", "values", RELEASE, "-n", NAMESPACE, "-o", "yaml")
    yield helm
    for release, namespace in ((OTHER, ELSEWHERE), (RELEASE, NAMESPACE)):
        helm("uninstall", release, "-n", namespace, "--ignore-not-found", *WAIT)
    atoll.owns_the_crd()
    chosen = "install", RELEASE, str(CHART), "-n", NAMESPACE, "--force-conflicts", *WAIT
    kept = subprocess.run(
        [atoll.helm, f"--kubeconfig={kube.kubeconfig}", *chosen, "--values=-"],
        input=values, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert kept.returncode == 0, kept.stderr


def test_upgrade_rollback_uninstall_and_a_new_name_restart_no_pod_of_a_running_job(
    helm: Helm, atoll: Installed, kube: Kubectl, person: Person, tmp_path: Path
) -> None:
    here = ("-n", NAMESPACE)
    values = tmp_path / "values.yaml"
    values.write_text(helm("get", "values", RELEASE, *here, "-o", "yaml"))
    given = (str(CHART), f"--values={values}", "--force-conflicts", *WAIT)

    def goes_on() -> None:
        person.goes_on(SLOTS)
        assert person.uids() == pods
        assert restarts() == dict.fromkeys(pods, 0)

    def restarts() -> dict[str, int]:
        return {
            name: each["status"]["containerStatuses"][0]["restartCount"]
            for name, each in person.job.pods().items()
        }

    pods = person.starts()

    # upgrade, to another default image and one replica, and rollback
    revision = atoll.upgrade({"images.worker": "atoll.test/another-worker:2", "replicas": "1"})
    goes_on()
    until("one replica", lambda: len(atoll.pods()) == 1)
    person.reads("Progressing", "True")
    atoll.rollback(revision)
    until("two replicas", lambda: len(atoll.pods()) == REPLICAS)
    goes_on()

    # uninstall
    helm("uninstall", RELEASE, *here, *WAIT)
    until("no operator", lambda: not atoll.pods())
    kube("get", "crd", CRD)
    goes_on()
    left = kube("get", "clusterrole,clusterrolebinding", "-o", "name", "-l", SELECTOR)
    assert left == ""

    # another name, in another namespace
    new = (OTHER, "-n", ELSEWHERE, *given)
    notes = helm("install", *new, "--create-namespace")
    assert f"is not this release's (but of {NAMESPACE}/{RELEASE})" in notes
    goes_on()
    kube("label", "namespace", ELSEWHERE, "pod-security.kubernetes.io/enforce=restricted")
    atoll.owns_the_crd(OTHER, ELSEWHERE)
    assert "is not this release's" not in helm("upgrade", *new)
    goes_on()
    person.edits(("eu-west, learners: 1", "eu-west, learners: 2"))  # the new one acts
    person.trains(3)
    assert pods.items() <= person.uids().items()
    person.types("kubectl delete dtj tiny --wait=false")

    assert TRAINED in helm("test", OTHER, "-n", ELSEWHERE, "--logs", "--timeout", "600s")
    found = json.loads(kube("get", "dtj", "-n", ELSEWHERE, "-o", "json"))
    assert found["items"] == []
