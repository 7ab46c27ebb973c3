"""The operator and the CRD change in the middle of a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.installed import DEPLOYMENT, NAMESPACE, RELEASE, Installed
from cluster.kubectl import Kubectl, until
from cluster.person import Person

CRD = "decoupledtrainingjobs.atoll.dev"
CRD_FILE = Path(__file__).resolve().parents[3] / "crds/decoupledtrainingjobs.yaml"


@pytest.mark.long  # test_leader has an upgrade in training
def test_an_operator_that_is_restarted_changes_nothing(person: Person, kube: Kubectl) -> None:
    before = person.starts()
    kube("-n", NAMESPACE, "rollout", "restart", DEPLOYMENT)
    kube("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=600s")
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.uids() == before
    person.edits(("eu-west, learners: 1", "eu-west, learners: 2"))  # it acts again
    person.trains(3)


@pytest.mark.long
def test_an_upgrade_and_a_rollback_of_the_chart_restart_no_pod_of_a_running_job(
    person: Person, atoll: Installed
) -> None:
    before = person.starts()
    revision = atoll.upgrade({"images.worker": "atoll.test/another-worker:2"})
    try:
        person.goes_on(["us-east-0", "eu-west-0"])
        person.reads("Progressing", "True")
        assert person.uids() == before
    finally:
        atoll.rollback(revision)
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.uids() == before


@pytest.mark.long
def test_a_crd_that_is_applied_again_changes_nothing(person: Person, kube: Kubectl) -> None:
    before = person.starts()
    kube("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    person.goes_on(["us-east-0", "eu-west-0"])
    assert person.uids() == before


@pytest.fixture
def helms_crd(atoll: Installed, kube: Kubectl) -> Iterator[None]:
    """Give the CRD back to the release, with the commands of the chart's notes."""
    yield
    owner = (f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={NAMESPACE}")
    kube("label", "--overwrite", "crd", CRD, "app.kubernetes.io/managed-by=Helm")
    kube("annotate", "--overwrite", "crd", CRD, *owner)


@pytest.mark.long
def test_a_crd_that_is_deleted_and_made_again_serves_new_jobs(
    person: Person, kube: Kubectl, helms_crd: None
) -> None:
    person.starts()
    kube("delete", "crd", CRD)
    until("no pod is left", lambda: not person.uids())
    kube("apply", "--server-side", "-f", str(CRD_FILE))
    kube("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=600s")
    person.starts()
