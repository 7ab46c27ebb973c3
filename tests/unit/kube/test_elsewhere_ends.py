"""How a job over several clusters is suspended, fails and completes, in each of them."""

from dataclasses import replace
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observed.objects import rfc3339
from atoll_protos.exits import FINISHED
from unit.kube.cluster_values import SETTINGS, hosts, learner, shard
from unit.kube.other_cluster import (
    EU_WEST,
    NO_EVALUATOR,
    US_EAST,
    again,
    decided,
    heard,
    live_children,
    message,
    serving,
    there,
)
from unit.kube.planner_side import NOW, raw
from unit.kube.test_lifecycle import replicas, said


def words(intent: str, why: str = "") -> pb.StatusReply:
    found = serving(us_east_0="Training", eu_west_0="Training")
    found.ClearField("intent")
    found.MergeFrom(pb.StatusReply(intent=f"INTENT_{intent}", why=why))
    return found


def test_a_job_that_is_suspended_at_home_is_suspended_everywhere() -> None:
    pods = (learner("eu-west-0", "n1"),)
    one = there(pods=pods, remembered=heard(words("SUSPEND")))
    found = decided(one)
    assert said(found, "Suspended") == ("True", "SuspendedElsewhere")
    assert said(found, "Ready") == ("False", "Suspended")
    assert replicas(found)["tiny-eu-west"] == 0
    gone = again(one, found, remembered=heard(None, silent=60.0))
    assert said(decided(gone), "Suspended") == ("True", "SuspendedElsewhere")
    unsaid = again(one, found, remembered=heard(words("UNSPECIFIED")))
    assert replicas(decided(unsaid))["tiny-eu-west"] == 0
    assert decided(unsaid).status is None  # it stands there already
    back = again(one, found, remembered=heard(words("RUN")))
    assert said(decided(back), "Suspended") == ("False", "NotSuspended")


def test_a_region_that_is_suspended_alone_stops_its_own_learners() -> None:
    found = decided(there("spec.suspend=true", remembered=heard(words("RUN"))))
    assert said(found, "Suspended") == ("True", "Suspended")
    assert replicas(found)["tiny-eu-west"] == 0
    assert "the other regions train on" in message(found, "Ready")


def test_suspended_shards_wait_for_the_learners_of_other_clusters_but_not_for_ever() -> None:
    durable = "spec.syncer.storage={type: ObjectStore, url: 's3://b'}"
    live = live_children(durable, settings=US_EAST)
    for registrar, seconds, shards in (
        (serving(eu_west_0="Training"), 5.0, None),
        (serving(eu_west_0="Left"), 5.0, 0),
        (serving(us_east_0="Training"), 5.0, 0),  # its own: its pods are gone
        (serving(eu_west_0="Training"), 31.0, 0),
        (None, 5.0, None),  # it has not answered in time
        (None, 31.0, 0),
    ):
        remembered = heard(registrar, suspended_seconds=seconds)
        one = there(durable, "spec.suspend=true", settings=US_EAST, children=live,
                    pods=(shard(0, "n1"),), remembered=remembered)  # fmt: skip
        assert replicas(decided(one, US_EAST)).get("tiny-syncer-0") == shards


def test_a_job_that_fails_at_home_stops_everywhere_until_it_is_tried_again() -> None:
    pods = (learner("eu-west-0", "n1"),)
    one = there(pods=pods, remembered=heard(words("FAIL", "DeadlineExceeded: too long")))
    found = decided(one)
    assert replicas(found)["tiny-eu-west"] == 0
    assert said(found, "Degraded") == ("True", "HomeFailed")
    assert said(found, "Failed")[0] == "False"  # nobody needs to lift it here
    assert message(found, "Degraded").endswith("DeadlineExceeded: too long")
    gone = again(one, found, remembered=heard(None, silent=60.0))
    assert said(decided(gone), "Degraded") == ("True", "HomeFailed")
    back = again(one, found, remembered=heard(words("RUN")))
    assert said(decided(back), "Degraded")[1] != "HomeFailed"


def test_a_deadline_is_judged_at_home_alone() -> None:
    started = {"status": {"startTime": rfc3339(NOW - 100), "conditions": []}}
    late = "spec.activeDeadlineSeconds=50"
    here = there(late, raw=raw() | started, remembered=heard(serving()))
    assert said(decided(here), "Failed")[0] == "False"
    home = there(late, raw=raw() | started, settings=US_EAST, remembered=heard(serving()))
    assert said(decided(home, US_EAST), "Failed") == ("True", "DeadlineExceeded")


def completed(*, measured: bool | None = None) -> pb.StatusReply:
    """`measured`: whether the newest evaluation is of the final values; None: there is none."""
    found = serving()
    found.state = pb.SHARD_COMPLETE
    if measured is not None:
        found.evaluation.CopyFrom(pb.Evaluation(tick=found.tick, loss=2.0, final=measured))
    return found


def test_a_job_is_complete_everywhere_once_its_last_evaluation_is_known() -> None:
    one = there(remembered=heard(completed(measured=False), final_seconds=1.0))
    assert said(decided(one), "Progressing") == ("True", "Evaluating")
    for remembered in (
        heard(completed(measured=True), final_seconds=1.0),
        heard(completed(measured=False), final_seconds=130.0),
        heard(None, silent=2.0),  # the shards have gone: the home saw the end
    ):
        later = again(one, decided(one), remembered=remembered)
        assert said(decided(later), "Complete") == ("True", "Trained")
    without = there(NO_EVALUATOR, remembered=heard(completed(), final_seconds=0.0))
    assert said(decided(without), "Complete") == ("True", "Trained")


def test_the_model_is_shown_where_it_can_be_found() -> None:
    bucket = "spec.syncer.storage={type: ObjectStore, url: 's3://b'}"
    for kept in ("spec.syncer.storage={type: PersistentVolumeClaim}", bucket):
        found = decided(there(NO_EVALUATOR, kept, remembered=heard(completed())))
        assert found.status is not None
        assert "exportURL" not in found.status.status  # the job has another UID there
        assert "status.exportURL in the cluster of us-east" in message(found, "Complete")
    shared = decided(
        there(NO_EVALUATOR, "spec.export={url: 'file:///m'}", remembered=heard(completed()))
    )
    assert shared.status is not None
    assert shared.status.status["exportURL"] == "file:///m"


def test_learners_that_have_all_finished_complete_the_job_when_the_syncer_is_gone() -> None:
    ended = learner("eu-west-0", "n1", exit_code=0, exit_message=FINISHED)
    one = there(pods=(ended,), remembered=heard(None, silent=30.0))
    found = decided(one)
    assert said(found, "Progressing") == ("True", "LearnersFinished")
    assert replicas(found)["tiny-eu-west"] == 0
    later = again(one, found, pods=(), remembered=heard(None, silent=3600.0))
    assert said(decided(later), "Complete") == ("True", "Trained")
    for codes, finished in (((0, 75), True), ((75, 0), False)):  # of several hosts the head counts
        pair = hosts("eu-west-0", "n1", "n2", exit_code=codes)
        pods = tuple(replace(p, exit_message="" if p.exit_code else FINISHED) for p in pair)
        reason = said(decided(replace(one, pods=pods)), "Progressing")[1]
        assert (reason == "LearnersFinished") == finished


def test_shards_stay_a_while_to_tell_other_clusters_that_the_job_is_over() -> None:
    def shards_at(seconds: float, settings: Any) -> int | None:
        conditions = [{"type": "Complete", "status": "True", "reason": "Trained", "message": ""}]
        status = {"conditions": conditions, "completionTime": rfc3339(NOW - seconds)}
        live = live_children(settings=settings)
        one = there(settings=settings, children=live, raw=raw() | {"status": status},
                    pods=(shard(0, "n1"),), remembered=heard(completed()))  # fmt: skip
        return replicas(decided(one, settings)).get("tiny-syncer-0")

    assert shards_at(5.0, US_EAST) is None  # as they are: 1
    assert shards_at(121.0, US_EAST) == 0
    assert shards_at(5.0, SETTINGS) == 0  # all regions are here


def test_each_cluster_deletes_its_own_object_after_its_time_to_live_and_not_before_all_know() -> (
    None
):
    ttl = "spec.ttlSecondsAfterFinished=60"
    done = {"type": "Complete", "status": "True", "reason": "Trained", "message": "to step 600"}

    def expires(seconds: float, settings: Any, **more: Any) -> bool:
        status = {"conditions": [done], "completionTime": rfc3339(NOW - seconds)}
        live = live_children(ttl, settings=settings)
        one = there(ttl, settings=settings, children=live, raw=raw() | {"status": status},
                    **({"pods": (), "remembered": heard(completed())} | more))  # fmt: skip
        settled = again(one, decided(one, settings), pods=one.pods)
        return decided(settled, settings).expire is not None

    for settings in (US_EAST, EU_WEST):
        assert not expires(59.0, settings)
        assert expires(130.0, settings)
    assert expires(61.0, EU_WEST)
    assert not expires(61.0, US_EAST, pods=(shard(0, "n1"),))  # it still tells the others


def test_the_last_reports_of_learners_reach_the_status_of_a_job_that_is_over() -> None:
    registrar = completed(measured=True)
    registrar.slots.extend(serving(us_east_0="Left").slots)
    registrar.trained = 100
    one = there(remembered=heard(registrar, final_seconds=1.0))
    first = decided(one)
    assert first.status is not None
    assert first.status.status["progress"]["tokens"] == 100
    registrar.trained = 128
    later = decided(again(one, first, remembered=heard(registrar)))
    assert later.status is not None
    assert later.status.status["progress"]["tokens"] == 128
    registrar.trained = 64  # a shard that was started again
    assert decided(again(one, later, remembered=heard(registrar))).status is None
