"""When the planner lets an edit, or a fix, take the pods of shards."""

from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observation import Pod, Remembered
from atoll_operator.kube.plan.actions import Plan
from atoll_protos.names import Label
from unit.kube.cluster_values import job, learner, reply, shard
from unit.kube.planner_side import CHANGES, answers, applied, planned, raw, seen


def shard_edit(*pods: Pod, registrar: pb.StatusReply | None, **status: Any) -> Plan:
    """A running job of one shard whose shard's template is edited."""
    edit = raw(generation=2) | status
    found = seen(pods=pods, remembered=Remembered(replies=(registrar,)), raw=edit)
    edited = ("spec.syncer.template={spec: {containers: [{image: fixed}]}}",)
    return planned(replace(found, job=job(*CHANGES, *edited)))


def applied_names(found: Plan) -> list[str]:
    """Names of the shards' Deployments that are applied."""
    return [
        each["metadata"]["name"]
        for each in found.apply
        if each["kind"] == "Deployment" and Label.SHARD in each["metadata"]["labels"]
    ]


def test_a_shard_that_is_not_ready_gets_its_fix_at_once() -> None:
    broken = shard(0, "n1", ready=False, waiting="ImagePullBackOff")
    assert applied_names(shard_edit(broken, registrar=None)) == ["tiny-syncer-0"]


def test_the_only_copy_of_a_run_is_not_restarted_while_no_learner_could_restore_it() -> None:
    holds = {"status": {"run": "r1"}}
    ready = shard(0, "n1")
    assert applied_names(shard_edit(ready, registrar=reply(), **holds)) == []
    trains = reply(us_east_0="Training")
    assert applied_names(shard_edit(ready, registrar=trains, **holds)) == ["tiny-syncer-0"]
    nothing_yet = reply()
    nothing_yet.run = ""
    assert applied_names(shard_edit(ready, registrar=nothing_yet)) == ["tiny-syncer-0"]


def test_an_edit_while_suspended_or_finishing_takes_no_shard_that_holds_the_only_copy() -> None:
    holds = raw(generation=2) | {"status": {"run": "r1"}}
    template = "spec.syncer.template={spec: {containers: [{image: fixed}]}}"

    def edited(registrar: pb.StatusReply, *changes: str, **more: Any) -> list[str]:
        pods = (shard(0, "n1"), replace(learner("us-east-0", "n2"), role="evaluator"))
        found = seen(*changes, pods=pods, raw=holds, remembered=answers(registrar, **more))
        return applied_names(planned(replace(found, job=job(*CHANGES, *changes, template))))

    assert "tiny-syncer-0" not in edited(reply(), "spec.suspend=true")
    claim = "spec.syncer.storage={type: PersistentVolumeClaim}"
    assert "tiny-syncer-0" in edited(reply(), "spec.suspend=true", claim)
    final = reply()
    final.state = pb.SHARD_COMPLETE
    assert "tiny-syncer-0" not in edited(final, final_seconds=1.0)
    assert "tiny-syncer-0" not in edited(final, claim, final_seconds=1.0)


def test_what_else_has_the_name_of_a_shard_that_waits_does_not_wait() -> None:
    live = [each for each in applied() if each["metadata"]["name"] != "tiny-syncer-0"]
    live += [each for each in applied() if each["kind"] == "Deployment"][:1]
    holds = raw(generation=2) | {"status": {"run": "r1"}}
    found = seen(children=live, pods=(shard(0, "n1"),), raw=holds, remembered=answers(reply()))
    template = "spec.syncer.template={spec: {containers: [{image: fixed}]}}"
    again = planned(replace(found, job=job(*CHANGES, template)))
    names = [(each["kind"], each["metadata"]["name"]) for each in again.apply]
    assert ("Service", "tiny-syncer-0") in names
    assert ("Deployment", "tiny-syncer-0") not in names
