"""Where a job stands, from what earlier passes wrote, its pods and the registrar."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.conditions import Condition, Kind, Phase
from atoll_operator.api.spec import Job
from atoll_operator.kube.plan import phase
from atoll_operator.kube.plan.phase import Before
from atoll_protos.exits import ExitCode
from unit.kube.cluster_values import job, learner, reply


def one_shard(*changes: str) -> Job:
    return job("spec.syncer.shards=1", *changes)


def decided(before: Before = Before(), registrar: Any = None, pods: Any = (), **more: Any) -> Phase:  # noqa: B008
    return phase.decide(
        more.pop("of", one_shard()), before, pods, registrar, more.pop("final", None)
    )


def test_a_permanent_exit_code_fails_the_job_with_its_reason() -> None:
    bad = learner("us-east-0", "n", exit_code=int(ExitCode.BAD_INPUT), exit_message="no data")
    found = decided(pods=[bad])
    assert (found.kind, found.reason) == (Kind.FAILED, "BadInput")
    assert "no data" in found.message


def test_an_exit_that_may_be_tried_again_fails_nothing() -> None:
    for code in (ExitCode.FINAL, ExitCode.BUG, ExitCode.TRY_AGAIN, ExitCode.SUPERSEDED, 1, 137):
        assert decided(pods=[learner("us-east-0", "n", exit_code=int(code))]).kind is Kind.RUNNING


def test_complete_comes_from_the_registrar_after_the_last_evaluation() -> None:
    final = reply()
    final.state = pb.SHARD_COMPLETE
    evaluator = replace(learner("us-east-0", "n"), role="evaluator")
    assert decided(registrar=final, pods=[evaluator], final=1.0).kind is Kind.FINISHING
    measured = replace(evaluator, exit_code=0)
    assert decided(registrar=final, pods=[measured], final=1.0).kind is Kind.COMPLETE
    assert decided(registrar=final, pods=[evaluator], final=500.0).kind is Kind.COMPLETE


def test_complete_and_failed_stay() -> None:
    complete = Condition(type="Complete", status="True", reason="Trained", message="to step 600")
    failed = Condition(type="Failed", status="True", reason="OfALaterVersion")
    assert decided(Before(complete=complete)).kind is Kind.COMPLETE
    assert decided(Before(failed=failed)).kind is Kind.FAILED


def test_the_deadline_does_not_run_while_suspended() -> None:
    late = one_shard("spec.activeDeadlineSeconds=60")
    assert decided(Before(running_seconds=61.0), of=late).reason == "DeadlineExceeded"
    stopped = one_shard("spec.activeDeadlineSeconds=60", "spec.suspend=true")
    assert decided(Before(running_seconds=61.0), of=stopped).kind is Kind.SUSPENDED


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("spec.learner.hosts=2", "spec.learner.hosts"),
        ("spec.syncer.storage.type=ObjectStore", "spec.syncer.storage.type"),
        ("spec.checkpoint={everySteps: 5}", "spec.checkpoint"),
        ("spec.export={url: 's3://x/y'}", "spec.export.url"),
        ("spec.syncer.shards=2", "spec.export"),
    ],
)
def test_what_this_version_cannot_do_is_not_accepted(change: str, field: str) -> None:
    found = decided(of=one_shard(change))
    assert found.kind is Kind.REJECTED
    assert found.message.startswith(field)
