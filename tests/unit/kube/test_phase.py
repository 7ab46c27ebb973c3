"""Where a job stands, from what earlier passes wrote, its pods and the registrar."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.facts import Kind, Phase
from atoll_operator.api.shown import Condition
from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status
from atoll_operator.kube.observation import Workload
from atoll_operator.kube.plan import phase, sessions
from atoll_operator.kube.plan.phase import Before
from atoll_protos.exits import FINISHED, ExitCode
from unit.kube.cluster_values import job, learner, reply, shard


def one_shard(*changes: str) -> Job:
    return job("spec.syncer.shards=1", *changes)


def decided(before: Before = Before(), registrar: Any = None, pods: Any = (), **more: Any) -> Phase:  # noqa: B008
    of = more.pop("of", one_shard())
    exited = phase.exited_for_good(
        of, pods, sessions.joined(registrar, pods), more.pop("workloads", {})
    )
    return phase.decide(of, before, pods, registrar, more.pop("final", None), exited)


SLOTS = ("us-east-0", "us-east-1", "eu-west-0")  # of the manifest; its quorum is 1
BAD: dict[str, Any] = {"exit_code": int(ExitCode.BAD_INPUT), "exit_message": "no data"}


def test_learners_that_all_end_for_good_fail_the_job_with_their_reason() -> None:
    found = decided(pods=[learner(slot, "n", **BAD) for slot in SLOTS])
    assert (found.kind, found.reason) == (Kind.FAILED, "BadInput")
    assert "tiny-us-east-0 ended with exit code 64: no data" in found.message


def test_one_learner_that_ends_for_good_fails_nothing_while_the_others_make_a_quorum() -> None:
    bad, *others = (learner(slot, "n") for slot in SLOTS)
    pods = [replace(bad, **BAD), *others]
    assert decided(pods=pods).kind is Kind.RUNNING
    assert decided(pods=pods, of=one_shard("spec.sync.quorum=2")).kind is Kind.RUNNING
    assert decided(pods=pods, of=one_shard("spec.sync.quorum=3")).kind is Kind.FAILED


def test_where_learners_wait_for_each_other_one_that_is_left_goes_on_rule_10() -> None:
    plain = one_shard("spec.sync={preset: DiLoCo}")
    assert plain.spec.quorum == 3
    pods = [learner(slot, "n", **BAD) for slot in SLOTS]
    assert decided(pods=pods[:2], of=plain).kind is Kind.RUNNING
    assert decided(pods=pods, of=plain).kind is Kind.FAILED


def test_of_a_log_only_the_end_is_told() -> None:
    log = "\n".join(["a traceback", *(f"line {n}" for n in range(90)), "spec.data: is missing"])
    told = phase.last_words(learner("us-east-0", "n", exit_code=64, exit_message=log))
    assert "exit code 64: spec.data: is missing; " in told
    long = phase.last_words(learner("us-east-0", "n", exit_code=64, exit_message="x" * 4000))
    assert len(long) < 500


def test_learners_of_other_installs_count_as_ones_that_may_train() -> None:
    assert decided(pods=[learner(slot, "n", **BAD) for slot in SLOTS[:2]]).kind is Kind.RUNNING


def test_an_evaluator_that_ends_for_good_fails_nothing_and_is_not_waited_for() -> None:
    evaluator = replace(learner("us-east-0", "n", **BAD), role="evaluator")
    assert decided(pods=[evaluator]).kind is Kind.RUNNING
    final = reply()
    final.state = pb.SHARD_COMPLETE
    assert decided(registrar=final, pods=[evaluator], final=1.0).kind is Kind.COMPLETE


def test_a_shard_that_ends_for_good_fails_the_job() -> None:
    assert decided(pods=[shard(0, "n", **BAD)]).reason == "BadInput"


def test_a_learner_that_has_come_back_after_its_end_does_not_count() -> None:
    pods = [learner(slot, "n", runs=True, **BAD) for slot in SLOTS]
    joined = reply(us_east_0="Joining")
    assert decided(pods=pods, registrar=joined).kind is Kind.RUNNING
    assert decided(pods=pods, registrar=reply()).kind is Kind.FAILED
    assert decided(pods=pods, registrar=None).kind is Kind.RUNNING  # it may have joined


def test_a_pod_of_an_old_template_does_not_count() -> None:
    pods = [learner(slot, "n", template="old", **BAD) for slot in SLOTS]
    live = {
        f"tiny-{region}": Workload(
            name=f"tiny-{region}", kind="StatefulSet", replicas=2, observed=True, applied="",
            template="new",
        )
        for region in ("us-east", "eu-west")
    }  # fmt: skip
    assert decided(pods=pods, workloads=live).kind is Kind.RUNNING


def test_pods_beyond_the_wanted_learners_do_not_count() -> None:
    pods = [learner(slot, "n", **BAD) for slot in (*SLOTS[:2], "us-east-2")]
    assert decided(pods=pods).kind is Kind.RUNNING


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


def test_complete_names_the_learners_that_made_no_step() -> None:
    final = reply(us_east_0="Left", us_east_1="Left")
    final.state, final.epoch = pb.SHARD_COMPLETE, 1
    final.slots[1].tokens = 0
    assert decided(registrar=final).message.endswith("; us-east-1, eu-west-0 made no step")
    final.epoch = 2  # a registrar that started again knows only who has joined it since
    assert "no step" not in decided(registrar=final).message


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
        ("spec.export={url: 's3://x/y'}", "spec.export.url"),
        ("spec.syncer.shards=2", "spec.export"),
    ],
)
def test_what_this_version_cannot_do_is_not_accepted(change: str, field: str) -> None:
    found = decided(of=one_shard(change))
    assert found.kind is Kind.REJECTED
    assert found.message.startswith(field)


FINAL: dict[str, Any] = {"exit_code": 0, "exit_message": f"{FINISHED}\n"}


def test_learners_that_have_finished_hold_nothing_though_no_shard_can_be_asked() -> None:
    pods = [learner(slot, "n", **FINAL) for slot in SLOTS]
    found = decided(pods=pods)
    assert (found.kind, found.reason) == (Kind.FINISHING, "LearnersFinished")
    assert not phase.running(found, Before(), keeps_shards=False).learners
    assert phase.running(found, Before(), keeps_shards=False).shards
    assert decided(Before(finished=True)).kind is Kind.FINISHING  # their pods are gone now
    assert decided(Before(finished=True), registrar=reply()).kind is Kind.RUNNING
    complete = pb.StatusReply(state=pb.SHARD_COMPLETE, tick=600)
    assert decided(Before(finished=True), registrar=complete, pods=pods).kind is Kind.COMPLETE


def test_a_loop_that_ends_early_or_a_learner_that_still_trains_is_no_end_of_the_job() -> None:
    first, *others = (learner(slot, "n", **FINAL) for slot in SLOTS)
    early = replace(first, exit_message="")
    trains = replace(first, exit_code=None, exit_message="")
    for one in (early, trains):
        assert decided(pods=[one, *others]).kind is Kind.RUNNING
    assert decided(pods=[]).kind is Kind.RUNNING
    assert decided(pods=[first, *others], registrar=reply()).kind is Kind.RUNNING


def test_that_the_learners_have_finished_is_read_from_the_status() -> None:
    said = Condition(type="Progressing", status="True", reason="LearnersFinished", message="")
    assert phase.before(Status(conditions=[said]), 0.0).finished
    assert not phase.before(Status(), 0.0).finished
