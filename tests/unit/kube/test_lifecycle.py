"""What edits, upgrades and retries do to a job that has begun or has ended."""

import copy
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.names import Annotation, JobOwner, asked_checkpoint
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import Observation
from atoll_operator.kube.plan import accepted, children
from atoll_operator.kube.plan.actions import Plan
from atoll_protos.job.run_file import Expected
from unit.kube.cluster_values import job, learner, reply
from unit.kube.planner_side import (
    CHANGES,
    NOW,
    answers,
    applied,
    lost,
    planned,
    raw,
    seen,
    template_of,
)

SPEC: dict[str, Any] = raw()["spec"] | {"syncer": {"shards": 1}}


def said(found: Plan, kind: str) -> tuple[str, str]:
    """Status and reason of a condition that the plan writes."""
    assert found.status is not None
    (one,) = (each for each in found.status.status["conditions"] if each["type"] == kind)
    return one["status"], one["reason"]


def written(found: Observation) -> Observation:
    """The observation after the plan's status has been written."""
    wrote = planned(found).status
    assert wrote is not None
    return replace(found, raw=found.raw | {"status": copy.deepcopy(wrote.status)})


def replicas(found: Plan) -> dict[str, int]:
    """Of the workloads that the plan applies."""
    return {
        each["metadata"]["name"]: each["spec"]["replicas"]
        for each in found.children.apply
        if each["kind"] in ("StatefulSet", "Deployment")
    }


# ---------------------------------------------------------------- manifests that are not accepted


UNSUPPORTED = "spec.export.url: is not supported yet; use file:///FOLDER"


def unaccepted(**more: Any) -> dict[str, Any]:
    return {"reason": "NotSupported", "error": UNSUPPORTED} | more


def test_a_running_job_with_an_edit_that_is_not_supported_trains_on_and_says_so() -> None:
    pods = (learner("us-east-0", "n1", template=template_of(seen(), "us-east")),)
    live = seen(pods=pods, **unaccepted(), remembered=answers(reply(us_east_0="Training")))
    found = planned(live)
    assert (found.children.apply, found.children.prune, found.restart) == ((), (), ())
    assert said(found, "Accepted") == ("False", "NotSupported")
    assert said(found, "Progressing") == ("True", "Training")
    assert said(found, "Stalled") == ("True", "Rejected")
    assert found.status is not None
    message = found.status.status["conditions"][0]["message"]
    assert message.startswith(f"{UNSUPPORTED}; until then the job continues")


def test_its_lost_nodes_are_replaced_and_its_end_is_seen() -> None:
    moved = planned(lost(**unaccepted()))
    assert [each["kind"] for each in moved.children.apply] == ["StatefulSet"]
    final = reply()
    final.state = pb.SHARD_COMPLETE
    ended = planned(seen("spec.evaluator=null", remembered=answers(final), **unaccepted()))
    assert said(ended, "Complete") == ("True", "Trained")
    assert set(replicas(ended).values()) == {0}


def test_the_accepted_manifest_is_kept_beside_the_job() -> None:
    live = [each for each in applied() if each["metadata"]["name"] != "tiny-accepted"]
    (kept,) = planned(seen(children=live)).children.apply
    assert kept["metadata"]["name"] == "tiny-accepted"
    assert kept["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    reading = accepted.read(raw() | {"spec": {"steps": "many"}}, [kept])
    assert reading.job == job(*CHANGES).model_copy(update={"uid": "job-uid"})


def over(kind: str) -> dict[str, Any]:
    conditions = [
        {"type": "Accepted", "status": "True", "reason": "Valid", "message": ""},
        {"type": kind, "status": "True", "reason": "Trained", "message": "to step 600"},
    ]
    return {
        "conditions": conditions, "run": "r1", "startTime": "2027-01-01T00:00:00Z",
        "completionTime": "2027-01-02T00:00:00Z", "exportURL": "pvc://x",
        "progress": {
            "step": 600, "tokens": 9, "progressPercentage": 100, "lastUpdatedTime": "then",
        },
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_a_manifest_that_cannot_be_read_takes_nothing_back(kind: str) -> None:
    before = over(kind)
    found = planned(
        Observation(at=0.0, raw=raw() | {"status": before}, reason="Invalid", error="spec.x: no")
    )
    assert found.status is not None
    status = found.status.status
    assert said(found, "Accepted") == ("False", "Invalid")
    assert said(found, kind) == ("True", "Trained")
    assert {name: status[name] for name in before if name != "conditions"} == {
        name: before[name] for name in before if name != "conditions"
    }
    assert found.children.apply == ()


def test_of_a_job_that_runs_on_without_a_manifest_nothing_is_said_to_be_false() -> None:
    began = {"run": "r1", "startTime": "2027-01-01T00:00:00Z"}
    found = planned(Observation(at=0.0, raw=raw() | {"status": began}, error="spec.x: no"))
    assert said(found, "Progressing") == ("Unknown", "NotAccepted")
    assert said(found, "Complete") == ("False", "NotAccepted")
    assert found.status is not None
    assert found.status.status["run"] == "r1"
    new = planned(Observation(at=0.0, raw=raw(), error="spec.x: no"))
    assert said(new, "Progressing") == ("False", "NotAccepted")


def test_an_annotation_tells_the_shards_which_checkpoint_is_asked_for() -> None:
    asked = raw(annotations={Annotation.CHECKPOINT: "51"})
    listed = children.slots_map(JobOwner.of(asked, "tiny"), job(), 1)["data"]["slots.json"]
    assert Expected.from_json(listed).checkpoint == 51
    for spoilt in ("", "0", "-3", "1e5", "9" * 40, "51\n", 7.5, None):
        assert asked_checkpoint({Annotation.CHECKPOINT: spoilt}) == 0


# ---------------------------------------------------------------- failed jobs


CLAIM = "spec.syncer.storage={type: PersistentVolumeClaim}"
BUCKET = "spec.syncer.storage={type: ObjectStore, url: 's3://b'}"


def failed(*changes: str, **metadata: Any) -> Observation:
    """A job that has failed because its time was over, as it was written."""
    began = {"status": {"startTime": rfc3339(NOW - 61), "run": "r1"}}
    late = ("spec.activeDeadlineSeconds=60", *changes)
    found = written(seen(*late, raw=raw(**metadata) | began))
    assert said(planned(replace(found, raw=found.raw | {"status": {}})), "Failed")[0] == "False"
    return found


def edited(found: Observation, **metadata: Any) -> Observation:
    return replace(found, raw=found.raw | {"metadata": found.raw["metadata"] | metadata})


def annotated(found: Observation, value: str) -> Observation:
    return edited(found, annotations={Annotation.RETRY: value})


def test_a_failed_job_stays_failed_and_runs_nothing() -> None:
    found = planned(failed())
    assert found.status is None
    assert set(replicas(found).values()) == {0}


@pytest.mark.parametrize("storage", [CLAIM, BUCKET])
@pytest.mark.parametrize("change", ["an edit", "the annotation"])
def test_an_edit_or_the_annotation_lets_a_failed_job_try_again(change: str, storage: str) -> None:
    before = failed(storage)
    tried = edited(before, generation=2) if change == "an edit" else annotated(before, "1")
    found = planned(tried)
    assert said(found, "Failed") == ("False", "NotFailed")
    assert found.status is not None
    status = found.status.status
    assert status["startTime"] == rfc3339(NOW)  # the deadline counts from here
    assert {"completionTime", "failure"}.isdisjoint(status)
    assert status["run"] == "r1"
    later = replace(tried, raw=tried.raw | {"status": status})
    assert planned(later).status is None or said(planned(later), "Failed")[0] == "False"


def test_one_value_of_the_annotation_is_good_for_one_try() -> None:
    again = annotated(failed(), "1")
    status = planned(again).status
    assert status is not None
    late = {**status.status, "startTime": rfc3339(NOW - 61)}
    second = written(replace(again, raw=again.raw | {"status": late}))
    assert planned(second).status is None
    assert said(planned(annotated(second, "2")), "Failed")[0] == "False"
    removed = edited(second, annotations={})
    assert planned(removed).status is None


def test_a_manifest_that_is_not_accepted_lifts_no_failure() -> None:
    found = edited(replace(failed(), reason="NotSupported", error=UNSUPPORTED), generation=2)
    assert said(planned(found), "Failed")[0] == "True"


def test_the_failure_says_what_another_try_starts_from() -> None:
    def message(*changes: str) -> str:
        (one,) = (c for c in failed(*changes).raw["status"]["conditions"] if c["type"] == "Failed")
        return str(one["message"])

    assert (
        "to try again from step 0, because Ephemeral storage keeps nothing: edit the job, or"
        in message()
    )
    for storage in (CLAIM, BUCKET):
        assert "to try again from its last commits: edit the job, or" in message(storage)
    assert "kubectl annotate dtj tiny atoll.dev/retry=1" in message()


def test_without_its_only_copy_a_retried_job_is_another_run() -> None:
    found = planned(annotated(failed(), "1")).status
    assert found is not None
    assert "run" not in found.status


def test_a_failure_of_which_the_status_was_edited_can_be_lifted_too() -> None:
    old = failed()
    status = {key: value for key, value in old.raw["status"].items() if key != "failure"}
    before = replace(old, raw=old.raw | {"status": status})
    assert planned(before).status is None
    assert said(planned(annotated(before, "1")), "Failed")[0] == "False"
    assert said(planned(edited(before, generation=2)), "Failed")[0] == "False"


def test_the_run_is_named_also_while_the_shards_are_silent() -> None:
    began = {"status": {"startTime": rfc3339(NOW - 9), "run": "r1"}}
    found = planned(seen(raw=raw() | began)).status
    assert found is not None
    assert found.status["run"] == "r1"
