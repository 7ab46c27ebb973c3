"""Whose an object is: only what the job controls is the job's."""

from typing import Any

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.observed.objects import is_of
from atoll_operator.kube.plan.applied import obstacle
from atoll_protos.names import Label
from unit.kube.cluster_values import children


def child(kind: str = "Service") -> dict[str, Any]:
    storage = "spec.syncer.storage={type: PersistentVolumeClaim}"
    return next(each for each in children(storage).objects() if each["kind"] == kind)


def found(kind: str = "Service", **metadata: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "x", "namespace": "demo", "uid": "u", **metadata}}


def owner(kind: str, name: str, uid: str = "other") -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": True}]}


def test_what_the_job_controls_is_the_job_s_and_what_an_earlier_version_made_too() -> None:
    assert is_of(found(**owner(KIND, "tiny", "job-uid")), "tiny", "job-uid")
    assert obstacle(child(), child()) == ""


def test_an_owner_that_is_no_controller_makes_no_object_the_job_s() -> None:
    attached: dict[str, Any] = {
        "ownerReferences": [{"kind": KIND, "name": "tiny", "uid": "job-uid"}]
    }
    assert not is_of(found(**attached), "tiny", "job-uid")


def test_an_object_of_ours_whose_owner_reference_was_taken_away_is_still_ours() -> None:
    assert is_of(found(labels={Label.JOB_UID: "job-uid"}), "tiny", "job-uid")
    assert not is_of(found(labels={Label.JOB_UID: "former"}), "tiny", "job-uid")


def test_a_retained_claim_is_taken_up_and_a_user_s_is_not() -> None:
    retained = found("PersistentVolumeClaim", labels={Label.JOB: "tiny", Label.JOB_UID: "former"})
    assert obstacle(retained, child("PersistentVolumeClaim")) == ""
    assert obstacle(found("PersistentVolumeClaim"), child("PersistentVolumeClaim"))
    of_former = found("PersistentVolumeClaim", **owner(KIND, "tiny"))
    assert "former job" in obstacle(of_former, child("PersistentVolumeClaim"))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "was not made by this job and is left alone; rename this job or its region"),
        (owner("Deployment", "api"), "belongs to Deployment api"),
        (owner(KIND, "a-b"), f"belongs to {KIND} a-b"),
        (owner(KIND, "tiny"), "a former job of this name made it, and Kubernetes removes it soon"),
        (
            {"labels": {Label.JOB: "tiny", Label.JOB_UID: "former"}},
            f"serviceaccount,poddisruptionbudget -n demo -l {Label.JOB_UID}=former`",
        ),
        (
            {"labels": {Label.JOB: "tiny"}},
            "has left it, and it is not taken over; `kubectl delete s",
        ),
        ({"deletionTimestamp": "now"}, "is being deleted"),
    ],
)
def test_what_is_in_the_way_is_told_with_its_owner_and_the_remedy(
    metadata: dict[str, Any], words: str
) -> None:
    assert words in obstacle(found(**metadata), child())


def test_a_service_account_that_a_user_made_may_be_named_in_the_template() -> None:
    said = obstacle(found("ServiceAccount"), child("ServiceAccount"))
    assert "name it in the template's serviceAccountName" in said
