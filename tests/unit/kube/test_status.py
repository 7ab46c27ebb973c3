"""What the status of a job on a cluster says, and when it is written."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.facts import Kind, Phase
from atoll_operator.api.shown import Condition
from atoll_operator.kube.objects import workload
from atoll_operator.kube.observation import Observation, Refusal, Remembered
from atoll_operator.kube.plan import status
from atoll_operator.kube.plan.nodes import NodeState
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.problems import problems, unbound_claims
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.status import (
    BUSY_SECONDS,
    BUSY_WRITES,
    WRITE_SECONDS,
    StatusWrite,
)
from atoll_protos.exits import FINISHED, returned_early
from unit.kube.cluster_values import SETTINGS, job, learner, reply, shard

NOW = 1_800_000_000.0
RUNNING = Phase(kind=Kind.RUNNING, reason="Running", message="")
COMPLETE = Phase(kind=Kind.COMPLETE, reason="Trained", message="trained to step 600")


def test_ready_pods_are_counted_by_the_regions_that_are_served() -> None:
    pods = [
        learner("us-east-0", "n"),
        learner("us-east-1", "n", ready=False),
        learner("eu-west-0", "m", terminating=True),
        learner("ap-south-0", "o"),
        shard(0, "n"),
    ]
    assert status.ready_by_region(pods, ("us-east", "eu-west")) == {"us-east": 1, "eu-west": 0}


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


def said(found: Observation, phase: Phase = RUNNING, before: Before = Before()) -> Any:  # noqa: B008
    case = Situation(
        seen=found, job=job(), settings=SETTINGS, now=NOW, before=before, phase=phase,
        placement=Placement(),
    )  # fmt: skip
    return status.of_job(case)


def drift(*changes: str, **lengths: int) -> dict[str, Any]:
    """SpecDrift of a job of 600 steps, unless changed, of whose shards the second knows these."""
    other = reply()
    for name, length in ({"steps": 0} | lengths).items():
        setattr(other, name, length)
    first = reply(us_east_0="Training")
    first.steps, first.tokens = other.steps, other.tokens
    case = Situation(
        seen=seen(replies=(first, other)), job=job(*changes), settings=SETTINGS, now=NOW,
        before=Before(), phase=RUNNING, placement=Placement(),
    )  # fmt: skip
    written = status.of_job(case)
    assert written is not None
    found: list[dict[str, Any]] = written.status["conditions"]
    return next(each for each in found if each["type"] == "SpecDrift")


@pytest.mark.parametrize(
    ("changes", "lengths", "words"),
    [
        ((), {"steps": 600}, ""),
        ((), {"steps": 500}, "spec.steps is 600, and still 500 at shard 0"),
        ((), {"steps": 700}, "spec.steps is 600, and still 700 at shard 0"),
        (("spec.steps=null", "spec.tokens=900"), {"tokens": 900}, ""),
        (("spec.steps=null", "spec.tokens=900"), {"tokens": 800}, "and still 800 at shard 0"),
        (("spec.steps=null", "spec.tokens=900"), {"tokens": 1000}, "spec.tokens is 900, and still"),
    ],
)
def test_a_length_that_shards_do_not_know_yet_is_said(
    changes: tuple[str, ...], lengths: dict[str, int], words: str
) -> None:
    found = drift(*changes, **lengths)
    assert found["status"] == ("True" if words else "False")
    assert words in found.get("message", "")


def first() -> StatusWrite:
    found: StatusWrite = said(seen())
    return found


def test_a_learner_that_the_manifest_does_not_have_is_told_and_not_counted() -> None:
    registrar = reply(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
    registrar.slots.add(slot="eu-west-1", state=pb.SLOT_TRAINING)
    found = said(seen(replies=(registrar, reply())))
    assert found.status["columns"]["learners"] == "3/3"
    assert {each["name"]: each["live"] for each in found.status["regions"]} == {
        "us-east": 2,
        "eu-west": 1,
    }
    by_type = {each["type"]: each for each in found.status["conditions"]}
    assert by_type["LearnersAvailable"]["message"].startswith("3 of 3 in training")
    assert by_type["SpecDrift"]["reason"] == "OtherCounts"
    assert "eu-west-1 trains, and is not in this manifest" in by_type["SpecDrift"]["message"]


def test_the_first_status_is_written_with_an_event_for_what_became_true() -> None:
    assert [each.type for each in first().changed] == [
        "Accepted", "SyncerReady", "LearnersAvailable", "Progressing",
    ]  # fmt: skip
    assert len(first().events) == len(first().changed)


def test_a_status_that_says_nothing_new_is_not_written() -> None:
    assert said(seen(dict(first().status))) is None


def test_mere_progress_is_written_only_a_while_after_the_last_write() -> None:
    old = dict(first().status)
    moved = reply(us_east_0="Training")
    moved.tick = 61
    replies = (moved, reply())
    replies[1].tick = 61
    soon = seen(old, replies=replies, unwritten_seconds=WRITE_SECONDS - 1)
    assert said(soon) is None
    late = replace(soon, remembered=replace(soon.remembered, unwritten_seconds=WRITE_SECONDS))
    assert said(late).status["progress"]["step"] == 61


def test_a_change_of_a_condition_is_written_at_once() -> None:
    old = dict(first().status)
    found = said(seen(old, replies=(None, None), unwritten_seconds=0.0))
    assert "SyncerReady" in {each.type for each in found.changed}


def test_numbers_that_stand_still_are_not_written_again() -> None:
    old = dict(first().status)
    assert said(seen(old, asked_at="later", unwritten_seconds=1e4)) is None


def test_a_job_that_stands_still_is_not_written_each_second() -> None:
    old = dict(said(seen(still_seconds=200.0)).status)
    for second in range(60):
        assert said(seen(old, still_seconds=201.0 + second, unwritten_seconds=1.0 + second)) is None


def test_a_message_alone_waits_as_long_as_progress() -> None:
    case = Situation(
        seen=seen(), job=job(), settings=SETTINGS, now=NOW, before=Before(), phase=RUNNING,
        placement=Placement(),
    )  # fmt: skip

    def refusal(pods: int) -> Refusal:
        message = f"exceeded quota, used: pods={pods}"
        return Refusal(kind="StatefulSet", name="x", applied="", message=message)

    written = status.of_job(case, [refusal(3)])
    assert written is not None
    old = dict(written.status)
    soon = replace(case, seen=seen(old, unwritten_seconds=WRITE_SECONDS - 1))
    assert status.of_job(soon, [refusal(4)]) is None
    late = replace(case, seen=seen(old, unwritten_seconds=WRITE_SECONDS))
    assert status.of_job(late, [refusal(4)]) is not None


def test_a_job_that_flaps_is_written_at_most_every_few_seconds() -> None:
    old = dict(first().status)
    gone: dict[str, Any] = {"replies": (None, None), "writes_a_minute": BUSY_WRITES}
    assert said(seen(old, unwritten_seconds=BUSY_SECONDS - 1, **gone)) is None
    assert said(seen(old, unwritten_seconds=BUSY_SECONDS, **gone)) is not None


def test_a_normal_start_gives_no_warning() -> None:
    starting = said(seen(replies=(None, None)))
    assert not [each.reason for each in starting.events if each.warning]
    known = dict(starting.status)
    joining = reply(us_east_0="Training")
    serving = said(seen(known, replies=(joining, reply())))  # one of three learners is there
    assert "ProgressingTrue" in {each.reason for each in serving.events}
    assert "DegradedTrue" not in {each.reason for each in serving.events}
    assert not [each.reason for each in serving.events if each.warning]


def told(found: StatusWrite) -> set[str]:
    """Reasons of the Events that a person gets to see."""
    return {each.reason for each in found.events if not each.silent}


def test_of_a_start_is_told_what_is_there_and_not_what_is_missing_yet() -> None:
    every = reply(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
    starting = pb.StatusReply(state=pb.SHARD_STARTING, steps=600)
    first = said(seen(replies=(None, None)))
    assert told(first) == {"AcceptedTrue"}
    shards = said(seen(dict(first.status), replies=(starting, starting)))
    assert shards.events
    assert not told(shards)
    trains = said(seen(dict(shards.status), replies=(every, reply())))
    assert told(trains) == {"SyncerReadyTrue", "LearnersAvailableTrue", "ProgressingTrue"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Kind.SUSPENDED, "SuspendedTrue"),
        (Kind.FAILED, "FailedTrue"),
        (Kind.COMPLETE, "CompleteTrue"),
    ],
)
def test_a_job_that_stops_says_so_in_one_event(kind: Kind, reason: str) -> None:
    every = reply(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
    well = dict(said(seen(replies=(every, reply()))).status)
    assert told(said(seen(well), Phase(kind=kind, reason="Why", message="why"))) == {reason}


def test_a_syncer_that_does_not_answer_is_told_once() -> None:
    well = dict(said(seen()).status)
    assert told(said(seen(well, replies=(None, None)))) == {"SyncerReadyUnknown"}


def test_a_learner_that_is_missing_later_is_a_warning() -> None:
    every = reply(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
    well = dict(said(seen(replies=(every, reply()))).status)
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


def test_each_pod_that_is_not_as_it_should_be_is_named_with_its_reason() -> None:
    pods = [
        learner("us-east-0", "n1"),
        learner("us-east-1", "", unschedulable="0/3 nodes are available"),
        learner("eu-west-0", "n2", waiting="CrashLoopBackOff", exit_code=70),
        learner("eu-west-1", "n2", waiting="ContainerCreating"),
        learner("eu-west-3", "n2", waiting="ContainerCreating", held_up='secret "s" not found'),
        learner("eu-west-2", "n2", waiting="CrashLoopBackOff", exit_code=1, exit_message="no /x"),
        shard(0, "n1"),
    ]
    lost = Placement(lost={"n1": NodeState.SILENT}, exhausted=("tiny-us-east-0",))
    shards, learners = problems(pods, lost)
    assert shards == ["tiny-syncer-0-x is on n1, which is silent"]
    assert learners == [
        "tiny-eu-west-0 waits: CrashLoopBackOff, last exit code 70",
        "tiny-eu-west-2 waits: CrashLoopBackOff, last exit code 1: no /x",
        'tiny-eu-west-3 cannot start on n2: secret "s" not found',
        "tiny-us-east-0 has used its spec.failure.maxReplacementsPerSlot of a day",
        "tiny-us-east-0 is on n1, which is silent",
        "tiny-us-east-1 waits for a node: 0/3 nodes are available",
    ]


TRACEBACK = """    loss.backward()
  File "/app/train.py", line 12, in main
    raise ValueError("boom")
ValueError: boom
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: 1 leaked semaphore
"""


def test_a_script_that_fails_is_named_with_its_last_words_from_its_first_end_on() -> None:
    crashed = {"exit_code": 1, "exit_message": TRACEBACK}
    pods = [
        replace(learner("us-east-0", "n1", **crashed), runs=True),
        replace(learner("us-east-1", "n1", **crashed), runs=True, uid="back"),
        replace(learner("us-east-2", "n1", exit_code=137, exit_reason="OOMKilled"), runs=True),
        learner("us-east-3", "n1", waiting="CrashLoopBackOff", **crashed),
    ]
    _, learners = problems(pods, Placement(), frozenset({"back"}))
    boom = "ValueError: boom (/app/train.py:12)"
    assert learners == [
        f"tiny-us-east-0 is started again, last exit code 1: {boom}",
        f"tiny-us-east-3 waits: CrashLoopBackOff, last exit code 1: {boom}",
    ]
    assert len(problems(pods, Placement())[1]) == 1  # who has joined is not known


def test_a_script_that_returns_early_is_told_so() -> None:
    told = returned_early(14, 400)
    early = learner("us-east-0", "n1", exit_code=0, exit_message=told)
    pods = [
        replace(early, waiting="CrashLoopBackOff"),
        replace(early, name="tiny-us-east-1", runs=True),
        learner("us-east-2", "n1", exit_code=0, exit_message="terminated", runs=True),
        learner("us-east-3", "n1", exit_code=0, exit_message=FINISHED, runs=True),
    ]
    _, learners = problems(pods, Placement(), frozenset())
    assert told.startswith("returned at tick 14 of 400; the job is not final: loop")
    assert learners == [
        f"tiny-us-east-0 waits: CrashLoopBackOff, last exit code 0: {told}",
        f"tiny-us-east-1 is started again, last exit code 0: {told}",
    ]


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
    degraded = next(each for each in found.status["conditions"] if each["type"] == "Degraded")
    assert degraded["message"] == "Deployment tiny-syncer-0 cannot make a pod: exceeded quota: pods"


def test_a_shard_whose_pod_is_ready_and_that_cannot_be_reached_names_the_remedy() -> None:
    silent: dict[str, Any] = {"replies": (None, None), "silent_seconds": {0: 30.0, 1: 30.0}}
    pods = (shard(0, "n"), shard(1, "n", ready=False))
    blocked = replace(seen(**silent), pods=pods)
    found = {each["type"]: each["message"] for each in said(blocked).status["conditions"]}
    message = found["SyncerReady"]
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
    (degraded,) = (each for each in found.status["conditions"] if each["type"] == "Degraded")
    assert degraded["message"] == "us-east-0: tls.crt: expired at noon"
    assert degraded["reason"] == "CredentialsExpire"
