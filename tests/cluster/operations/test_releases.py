"""The life of a release while a job trains: every step of it restarts no pod of the job."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster import previous
from cluster.conftest import LabCommand
from cluster.installed import CHART, NAMESPACE, OPERATOR_NODE, RELEASE, SELECTOR, Installed
from cluster.kubectl import Kubectl, until
from cluster.person import Person

CRD = "decoupledtrainingjobs.atoll.dev"
OTHER, ELSEWHERE = "other", "atoll-elsewhere"
SLOTS = ["us-east-0", "eu-west-0"]
TRAINED = "was trained"

pytestmark = pytest.mark.long


@dataclass(slots=True, kw_only=True)
class Helm:
    """helm, as a person types it."""

    program: str
    kube: Kubectl
    told: str = field(default="", init=False)

    def __call__(self, *words: str) -> str:
        program = (self.program, f"--kubeconfig={self.kube.kubeconfig}")
        done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}{done.stdout}"
        self.told = done.stdout
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
    _hand_over(kube, RELEASE, NAMESPACE)
    chosen = "install", RELEASE, str(CHART), "-n", NAMESPACE, "--force-conflicts", *WAIT
    kept = subprocess.run(
        [atoll.helm, f"--kubeconfig={kube.kubeconfig}", *chosen, "--values=-"],
        input=values, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert kept.returncode == 0, kept.stderr


def _hand_over(kube: Kubectl, release: str, namespace: str) -> None:
    """Type the two commands of the chart's notes."""
    owner = (f"meta.helm.sh/release-name={release}", f"meta.helm.sh/release-namespace={namespace}")
    kube("label", "--overwrite", "crd", CRD, "app.kubernetes.io/managed-by=Helm")
    kube("annotate", "--overwrite", "crd", CRD, *owner)


def _settings(image_of: Callable[[str], str], operator: str, node: str) -> list[str]:
    values = {f"images.{role}": image_of(role) for role in ("worker", "syncer")}
    values |= {"images.operator": operator, r"nodeSelector.kubernetes\.io/hostname": node}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def test_upgrade_rollback_uninstall_and_a_new_name_restart_no_pod_of_a_running_job(
    lab: LabCommand,
    helm: Helm,
    kube: Kubectl,
    person: Person,
    image_of: Callable[[str], str],
    tmp_path: Path,
) -> None:
    former = previous.checkout(tmp_path / "previous")
    archive = tmp_path / "previous.oci"
    former_operator = previous.image(former, archive)
    lab("load", str(archive))
    here = ("-n", NAMESPACE)

    def replicas() -> list[str]:
        found = kube.get("-n", NAMESPACE, "pods", "-l", SELECTOR)["items"]
        return [each["spec"]["containers"][0]["image"] for each in found]

    def goes_on() -> None:
        person.goes_on(SLOTS)
        assert person.uids() == pods
        assert restarts() == dict.fromkeys(pods, 0)

    def restarts() -> dict[str, int]:
        return {
            name: each["status"]["containerStatuses"][0]["restartCount"]
            for name, each in person.job.pods().items()
        }

    helm("uninstall", RELEASE, *here, *WAIT)
    values = _settings(image_of, former_operator, OPERATOR_NODE)
    helm("install", RELEASE, str(former / "helm/atoll"), *here, *values, *WAIT, "--force-conflicts")
    assert replicas() == [former_operator]
    pods = person.starts()

    # upgrade, with the values that the former release was given
    again = ("upgrade", RELEASE, str(CHART), *here, "--reuse-values", "--force-conflicts", *WAIT)
    helm(*again, "--set", f"images.operator={image_of('operator')}")
    goes_on()
    until("two replicas", lambda: replicas() == [image_of("operator")] * 2)
    person.reads("Progressing", "True")

    # rollback
    helm("rollback", RELEASE, "1", *here, "--force-conflicts", *WAIT)
    until("one replica", lambda: replicas() == [former_operator])
    goes_on()
    helm(*again, "--set", f"images.operator={image_of('operator')}")
    goes_on()

    # uninstall
    helm("uninstall", RELEASE, *here, *WAIT)
    until("no operator", lambda: not replicas())
    kube("get", "crd", CRD)
    goes_on()
    left = kube("get", "clusterrole,clusterrolebinding", "-o", "name", "-l", SELECTOR)
    assert left == ""

    # another name, in another namespace
    values = _settings(image_of, image_of("operator"), OPERATOR_NODE)
    new = (OTHER, str(CHART), "-n", ELSEWHERE, *values, *WAIT)
    notes = helm("install", *new, "--create-namespace")
    assert f"is not this release's (but of {NAMESPACE}/{RELEASE})" in notes
    goes_on()
    kube("label", "namespace", ELSEWHERE, "pod-security.kubernetes.io/enforce=restricted")
    _hand_over(kube, OTHER, ELSEWHERE)
    assert "is not this release's" not in helm("upgrade", *new, "--force-conflicts")
    goes_on()
    person.edits(("eu-west, learners: 1", "eu-west, learners: 2"))  # the new one acts
    person.trains(3)
    assert pods.items() <= person.uids().items()
    person.types("kubectl delete dtj tiny --wait=false")

    assert TRAINED in helm("test", OTHER, "-n", ELSEWHERE, "--logs", "--timeout", "600s")
    found = json.loads(kube("get", "dtj", "-n", ELSEWHERE, "-o", "json"))
    assert found["items"] == []
