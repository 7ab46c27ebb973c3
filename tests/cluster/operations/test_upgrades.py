"""The CRD changes in the middle of a run; test_leader and test_releases have the operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.installed import CRD, Installed
from cluster.kubectl import Kubectl, until
from cluster.person import Person

CRD_FILE = Path(__file__).resolve().parents[3] / "crds/decoupledtrainingjobs.yaml"


def test_a_crd_that_is_applied_again_changes_nothing(running: Person, kube: Kubectl) -> None:
    before = running.uids()
    kube("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
    running.goes_on(["us-east-0", "eu-west-0"])
    assert running.uids() == before


@pytest.fixture
def helms_crd(atoll: Installed, kube: Kubectl) -> Iterator[None]:
    """Give the CRD back to the release."""
    yield
    atoll.owns_the_crd()


@pytest.mark.long
def test_a_crd_that_is_deleted_and_made_again_serves_new_jobs(
    person: Person, kube: Kubectl, helms_crd: None
) -> None:
    person.starts()
    kube("delete", "crd", CRD)
    until("no pod is left", lambda: not person.uids())
    kube("apply", "--server-side", "-f", str(CRD_FILE))
    kube.establish(CRD)
    person.starts()
