"""What the status of a job on a cluster says, and when it is written."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.conditions import Phase, PhaseKind
from atoll_operator.api.status.job_status import Condition
from atoll_operator.kube.observed.objects import workload
from atoll_operator.kube.observed.observation import ChildRefusal, Observation, Remembered
from atoll_operator.kube.plan import status
from atoll_operator.kube.plan.actions import StatusWrite
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.replacements import NodeState, Placement
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.status import (
    BUSY_SECONDS,
    BUSY_WRITES,
    WRITE_SECONDS,
    problems,
    unbound_claims,
)
from atoll_protos.exits import FINISHED, returned_early
from unit.kube.cluster_values import SETTINGS, job, learner, reply, shard

NOW = 1_800_000_000.0
RUNNING = Phase(kind=PhaseKind.RUNNING, reason="Running", message="")
TOKENS = ("spec.steps=null", "spec.tokens=900")
COMPLETE = Phase(kind=PhaseKind.COMPLETE, reason="Trained", message="trained to step 600")


def seen(old: dict[str, Any] | None = None, **remembered: Any) -> Observation:
    registrar = reply(us_east_0="Training")
    return Observation(
        at=0.0,
        raw={
            "metadata": {"name": "tiny", "namespace": "demo", "uid": "u", "generation": 1},
            "status": old or {},
        },
        remembered=Remembered(**{"replies": (registrar, reply()), "asked_at": "then"} | remembered),
    )


def case_of(
    found: Observation, phase: Phase = RUNNING, before: Before | None = None, changes: Any = ()
) -> Situation:
    return Situation(
        seen=found, job=job(*changes), settings=SETTINGS, now=NOW, before=before or Before(),
        phase=phase, placement=Placement(),
    )  # fmt: skip


def said(*found: Any) -> Any:
    return status.of_job(case_of(*found))


def condition(write: StatusWrite | None, kind: str) -> dict[str, Any]:
    assert write is not None
    found: list[dict[str, Any]] = write.status["conditions"]
    return next(each for each in found if each["type"] == kind)


@pytest.mark.parametrize(
    ("changes", "lengths", "words"),
    [
        ((), {"steps": 600}, ""),
        ((), {"steps": 500}, "spec.steps is 600, and still 500 at shard 0"),
        ((), {"steps": 700}, "spec.steps is 600, and still 700 at shard 0"),
        (TOKENS, {"tokens": 900}, ""),
        (TOKENS, {"tokens": 800}, "and still 800 at shard 0"),
        (TOKENS, {"tokens": 1000}, "spec.tokens is 900, and still"),
    ],
)
def test_a_length_that_shards_do_not_know_yet_is_said(
    changes: tuple[str, ...], lengths: dict[str, int], words: str
) -> None:
    replies = (reply(us_east_0="Training"), reply())
    for each in replies:
        each.steps, each.tokens = lengths.get("steps", 0), lengths.get("tokens", 0)
    found = condition(status.of_job(case_of(seen(replies=replies), changes=changes)), "Progressing")
    assert (found["reason"] == "LengthDiffers") == bool(words)
    assert words in found.get("message", "")


def every() -> pb.StatusReply:
    return reply(us_east_0="Training", us_east_1="Training", eu_west_0="Training")


def first() -> StatusWrite:
    found: StatusWrite = said(seen())
    return found


def test_a_learner_that_the_manifest_does_not_have_is_told_and_not_counted() -> None:
    registrar = every()
    registrar.slots.add(slot="eu-west-1", state=pb.SLOT_TRAINING, step_seconds=0.5)
    found = said(seen(replies=(registrar, reply())))
    assert found.status["columns"]["learners"] == "3/3"
    live = {each["name"]: each["live"] for each in found.status["regions"]}
    assert live == {"us-east": 2, "eu-west": 1}
    assert condition(found, "Progressing")["message"].startswith("3 of 3 in training")
    drift = condition(found, "Degraded")
    assert drift["reason"] == "OtherCounts"
    assert "eu-west-1 trains, and is not in this manifest" in drift["message"]


def test_the_first_status_is_written_with_an_event_for_what_became_true() -> None:
    assert [each.type for each in first().changed] == [
        "Accepted", "SyncerReady", "Progressing",
    ]  # fmt: skip
    assert len(first().events) == len(first().changed)


def at_step(step: int) -> dict[str, Any]:
    replies = (reply(us_east_0="Training"), reply())
    for each in replies:
        each.tick = step
    return {"replies": replies}


GONE: dict[str, Any] = {"replies": (None, None)}
BUSY: dict[str, Any] = GONE | {"writes_a_minute": BUSY_WRITES}


@pytest.mark.parametrize(
    ("now", "seconds", "written"),
    [
        ({}, 1e4, False),
        ({"asked_at": "later"}, 1e4, False),
        (at_step(61), WRITE_SECONDS - 1, False),
        (at_step(61), WRITE_SECONDS, True),
        (GONE, 0.0, True),  # a condition changes
        (BUSY, BUSY_SECONDS - 1, False),
        (BUSY, BUSY_SECONDS, True),
    ],
)
def test_a_change_of_a_condition_is_written_at_once_and_mere_progress_later(
    now: dict[str, Any], seconds: float, written: bool
) -> None:
    found = said(seen(dict(first().status), unwritten_seconds=seconds, **now))
    assert (found is not None) == written
    if written and now.get("replies") == GONE["replies"]:
        assert "SyncerReady" in {each.type for each in found.changed}
    elif written:
        assert found.status["progress"]["step"] == 61


def test_a_job_that_stands_still_is_not_written_each_second() -> None:
    old = dict(said(seen(still_seconds=200.0)).status)
    for second in range(60):
        assert said(seen(old, still_seconds=201.0 + second, unwritten_seconds=1.0 + second)) is None


def test_a_message_alone_waits_as_long_as_progress() -> None:
    case = case_of(seen())

    def refusal(pods: int) -> ChildRefusal:
        message = f"exceeded quota, used: pods={pods}"
        return ChildRefusal(kind="StatefulSet", name="x", applied="", message=message)

    written = status.of_job(case, [refusal(3)])
    assert written is not None
    for seconds, again in ((WRITE_SECONDS - 1, False), (WRITE_SECONDS, True)):
        later = replace(case, seen=seen(dict(written.status), unwritten_seconds=seconds))
        assert (status.of_job(later, [refusal(4)]) is not None) == again


def told(found: StatusWrite) -> set[str]:
    """Reasons of the Events that a person gets to see."""
    return {each.reason for each in found.events if not each.silent}


def test_of_a_start_is_told_what_is_there_and_not_what_is_missing_yet_and_no_warning() -> None:
    starting = pb.StatusReply(state=pb.SHARD_STARTING, steps=600)
    one = (reply(us_east_0="Training"), reply())  # of three learners
    old: dict[str, Any] = {}
    for replies, words in (
        ((None, None), {"AcceptedTrue"}),
        ((starting, starting), set()),
        (one, {"SyncerReadyTrue", "ProgressingTrue"}),
    ):
        found = said(seen(old, replies=replies))
        assert (told(found), [each for each in found.events if each.warning]) == (words, [])
        old = dict(found.status)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (PhaseKind.SUSPENDED, "SuspendedTrue"),
        (PhaseKind.FAILED, "FailedTrue"),
        (PhaseKind.COMPLETE, "CompleteTrue"),
    ],
)
def test_a_job_that_stops_says_so_in_one_event(kind: PhaseKind, reason: str) -> None:
    well = dict(said(seen(replies=(every(), reply()))).status)
    assert told(said(seen(well), Phase(kind=kind, reason="Why", message="why"))) == {reason}


def test_a_learner_that_is_missing_later_is_a_warning_and_a_silent_syncer_is_told_once() -> None:
    well = dict(said(seen(replies=(every(), reply()))).status)
    assert told(said(seen(well, replies=(None, None)))) == {"SyncerReadyUnknown"}
    two_lost = reply(us_east_0="Training", us_east_1="Lost", eu_west_0="Lost")
    (lost,) = said(seen(well, replies=(two_lost, reply()))).events
    assert (lost.reason, lost.warning, lost.settles) == ("DegradedTrue", True, True)


def test_what_was_written_before_the_end_stays_after_it() -> None:
    old = dict(said(seen(), COMPLETE).status)
    gone = seen(old, replies=(None, None))
    message = "trained to step 600"
    complete = Condition(type="Complete", status="True", reason="Trained", message=message)
    before = Before(complete=complete)
    assert said(gone, COMPLETE, before) is None


TRACEBACK = """    loss.backward()
  File "/app/train.py", line 12, in main
    raise ValueError("boom")
ValueError: boom
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: 1 leaked semaphore
"""
BOOM = "last exit code 1: ValueError: boom (/app/train.py:12)"
EARLY = returned_early(14, 400)
LOOPS = {"waiting": "CrashLoopBackOff"}
MAKES = {"waiting": "ContainerCreating"}
CRASHED = {"exit_code": 1, "exit_message": TRACEBACK}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"node": "", "unschedulable": "0/3 are available"}, "waits for a node: 0/3 are available"),
        (MAKES, ""),
        (MAKES | {"held_up": 'secret "s" not found'}, 'cannot start on n2: secret "s" not found'),
        (LOOPS | {"exit_code": 70}, "waits: CrashLoopBackOff, last exit code 70"),
        (LOOPS | CRASHED, f"waits: CrashLoopBackOff, {BOOM}"),
        (CRASHED | {"runs": True}, f"is started again, {BOOM}"),
        (CRASHED | {"runs": True, "uid": "back"}, ""),
        ({"exit_code": 137, "exit_reason": "OOMKilled", "runs": True}, ""),
        (
            LOOPS | {"exit_code": 0, "exit_message": EARLY},
            f"waits: CrashLoopBackOff, last exit code 0: {EARLY}",
        ),
        (
            {"exit_code": 0, "exit_message": EARLY, "runs": True},
            f"is started again, last exit code 0: {EARLY}",
        ),
        ({"exit_code": 0, "exit_message": "terminated", "runs": True}, ""),
        ({"exit_code": 0, "exit_message": FINISHED, "runs": True}, ""),
    ],
)
def test_a_pod_that_is_not_as_it_should_be_is_named_with_its_reason(
    fields: dict[str, Any], words: str
) -> None:
    one = learner("us-east-0", **({"node": "n2"} | fields))
    found = [f"tiny-us-east-0 {words}"] if words else []
    assert problems([one], Placement(), frozenset({"back"})) == ([], found)
    joined_is_known = not fields.get("runs")
    assert problems([one], Placement()).learners == (found if joined_is_known else [])


def test_pods_on_lost_nodes_and_learners_without_budget_are_named_in_their_order() -> None:
    lost = Placement(lost={"n1": NodeState.SILENT}, exhausted=("tiny-us-east-0",))
    pods = [learner("us-east-1", "n1"), learner("us-east-0", "n1"), shard(0, "n1")]
    silent = "is on n1, which is silent"
    shards, learners = problems(pods, lost)
    assert shards == [f"tiny-syncer-0-x {silent}"]
    spent = "tiny-us-east-0 has used its spec.failure.maxReplacementsPerSlot of a day"
    assert learners == [spent, f"tiny-us-east-0 {silent}", f"tiny-us-east-1 {silent}"]
    assert EARLY.startswith("returned at tick 14 of 400; the job is not final: loop")


def test_pods_that_a_controller_cannot_make_are_named() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
    live = workload(
        {
            "kind": "Deployment",
            "metadata": {"name": "tiny-syncer-0"},
            "spec": {"template": {"metadata": {}}},
            "status": {"conditions": [refused]},
        }
    )
    found = said(replace(seen(), workloads={live.name: live}))
    degraded = condition(found, "Degraded")
    assert degraded["message"] == "Deployment tiny-syncer-0 cannot make a pod: exceeded quota: pods"


def test_a_shard_whose_pod_is_ready_and_that_cannot_be_reached_names_the_remedy() -> None:
    silent: dict[str, Any] = {"replies": (None, None), "silent_seconds": {0: 30.0, 1: 30.0}}
    pods = (shard(0, "n"), shard(1, "n", ready=False))
    blocked = replace(seen(**silent), pods=pods)
    message = condition(said(blocked), "SyncerReady")["message"]
    assert "the pod of shard 0 is Ready, but the operator gets no answer from it" in message
    assert "NetworkPolicies" in message
    soon = replace(seen(**silent | {"silent_seconds": {0: 1.0}}), pods=pods)
    assert "NetworkPolicies" not in str(said(soon).status["conditions"])


def test_a_claim_without_a_volume_is_named_with_its_storage_class() -> None:
    claim = {
        "kind": "PersistentVolumeClaim", "metadata": {"name": "tiny-syncer-0"},
        "spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"},
    }  # fmt: skip
    bound = {**claim, "status": {"phase": "Bound"}}
    said = "claim tiny-syncer-0 of the storage class fast has no volume yet"
    assert unbound_claims([claim, bound, {"kind": "Service"}]) == [said]
    default = {**claim, "spec": {}}
    assert unbound_claims([default]) == ["claim tiny-syncer-0 has no volume yet"]


def test_a_learner_that_cannot_join_anew_is_named_with_its_own_words() -> None:
    found = said(seen(troubles={"us-east-0": "tls.crt: expired at noon"}))
    degraded = condition(found, "Degraded")
    told_ = (degraded["reason"], degraded["message"])
    assert told_ == ("CredentialsExpire", "us-east-0: tls.crt: expired at noon")


def test_the_newest_checkpoint_is_known_also_when_all_shards_are_gone() -> None:
    registrar = reply(us_east_0="Training")
    registrar.checkpoint = "s3://b/step-40"
    first = said(seen(replies=(registrar, reply()))).status
    assert first["checkpoint"] == "s3://b/step-40"
    gone = said(seen(dict(first), replies=(None, None), unwritten_seconds=WRITE_SECONDS)).status
    assert gone["checkpoint"] == "s3://b/step-40"


def test_that_a_job_has_lost_a_run_is_told_with_what_to_do() -> None:
    for old, expected in ((None, 0), ("r1", 0), ("old", 1)):
        found: StatusWrite = said(seen({"run": old} if old else None))
        events = [each for each in found.events if each.reason == "RunLost"]
        assert len(events) == expected
        for each in events:
            assert each.warning
            assert "run old is lost" in each.message
            assert "now at step 60" in each.message
            assert "spec.checkpoint.from" in each.message
