"""A job over several clusters, in each of them: pure, from an observation to a plan."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.runfile import field_of, run_file
from atoll_operator.kube.objects import rfc3339
from atoll_operator.kube.observation import Observation, Remembered
from atoll_operator.kube.plan import accepted, elsewhere
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.planner import plan
from atoll_protos.exits import FINISHED
from unit.kube.cluster_values import SETTINGS, children, job, learner, reply, shard
from unit.kube.test_lifecycle import replicas, said
from unit.kube.test_planner import CHANGES, NOW, raw, seen

WAY = "spec.syncer.endpoints=['lb:7700']"
NO_EVALUATOR = "spec.evaluator=null"
EU_WEST = replace(SETTINGS, regions=("eu-west",))  # us-east, with the syncer, is elsewhere
US_EAST = replace(SETTINGS, regions=("us-east",))


def stored(**syncer: Any) -> dict[str, Any]:
    """The job's object with one shard."""
    one = raw()
    return one | {"spec": one["spec"] | {"syncer": {"shards": 1, **syncer}}}


def live_children(*changes: str, settings: Any = EU_WEST) -> list[dict[str, Any]]:
    found = copy.deepcopy(children(*CHANGES, WAY, *changes, settings=settings).objects())
    for each in found:
        each["metadata"] |= {"uid": f"uid-{each['metadata']['name']}", "generation": 1}
        each["status"] = {"observedGeneration": 1}
    return found


def there(*changes: str, settings: Any = EU_WEST, **more: Any) -> Observation:
    """The job in a cluster that serves only some of its regions."""
    live = live_children(*changes, settings=settings)
    return seen(WAY, *changes, **({"children": live} | more))


def decided(found: Observation, settings: Any = EU_WEST) -> Plan:
    return plan(found, settings, NOW)


def again(found: Observation, plan_: Plan, **more: Any) -> Observation:
    """The next observation: the status is written, what is applied is there."""
    assert plan_.status is not None
    status = copy.deepcopy(plan_.status.status)
    return replace(found, raw=found.raw | {"status": status}, **more)


def heard(registrar: pb.StatusReply | None = None, silent: float = 0.0, **more: Any) -> Remembered:
    return Remembered(
        replies=(registrar,), registrar_address="lb:7700", silent_seconds={0: silent}, **more
    )


def serving(*changes: str, **slots: str) -> pb.StatusReply:
    """The answer of the syncer's cluster, whose manifest has these changes."""
    found = reply(**slots)
    found.intent = pb.INTENT_RUN
    found.must_equal = run_file(job(*CHANGES, *changes)).must_equal
    return found


def message(found: Plan, kind: str) -> str:
    assert found.status is not None
    (one,) = (each for each in found.status.status["conditions"] if each["type"] == kind)
    return str(one["message"])


# ---------------------------------------------------------------- what is made


def test_a_cluster_without_the_syncer_makes_its_own_learners_and_nothing_else() -> None:
    found = children(*CHANGES, WAY, settings=EU_WEST).objects()
    kinds = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert ("StatefulSet", "tiny-eu-west") in kinds
    assert {kind for kind, _ in kinds} == {
        "ServiceAccount", "ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet",
    }  # fmt: skip
    assert not any("us-east" in name or "-syncer" in name for _, name in kinds)


def environment_of(settings: Any, name: str) -> dict[str, str]:
    found = children(*CHANGES, WAY, settings=settings).objects()
    (one,) = (e for e in found if e["metadata"]["name"] == name and e["kind"] != "Service")
    (container,) = one["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_learners_elsewhere_dial_the_endpoints_and_those_at_home_the_services() -> None:
    assert environment_of(EU_WEST, "tiny-eu-west")["ATOLL_ENDPOINTS"] == "lb:7700"
    own = "tiny-syncer-0.demo.svc:7700"
    assert environment_of(US_EAST, "tiny-us-east")["ATOLL_ENDPOINTS"] == own
    assert environment_of(US_EAST, "tiny-syncer-0")["ATOLL_ENDPOINTS"] == own


def test_without_endpoints_the_manifest_is_not_accepted_and_the_remedy_is_named() -> None:
    reading = accepted.read(stored(), [], serves=EU_WEST.serves)
    assert (reading.job, reading.reason) == (None, "EndpointsMissing")
    assert "kubectl get dtj tiny -o jsonpath={.status.syncer.endpoints}" in reading.error
    found = decided(Observation(at=0.0, raw=raw(), reason=reading.reason, error=reading.error))
    assert said(found, "Accepted") == ("False", "EndpointsMissing")
    assert said(found, "Stalled") == ("True", "Rejected")
    assert accepted.read(stored(), [], serves=US_EAST.serves).job is not None


def test_an_edit_that_takes_the_endpoints_away_leaves_what_runs_as_it_is() -> None:
    kept = {
        "kind": "ConfigMap",
        "metadata": {"name": "tiny-accepted"},
        "data": {"spec.json": json.dumps(stored(endpoints=["lb:7700"])["spec"])},
    }
    reading = accepted.read(stored(), [kept], serves=EU_WEST.serves)
    assert reading.reason == "EndpointsMissing"
    assert reading.job is not None
    assert reading.job.spec.syncer.endpoints == ["lb:7700"]


def test_an_install_that_serves_no_region_of_the_job_says_so_and_makes_nothing() -> None:
    ap_south = replace(SETTINGS, regions=("ap-south",))
    reading = accepted.read(stored(), [], serves=ap_south.serves)
    assert not reading.error
    found = decided(seen(children=[], remembered=heard()), ap_south)
    assert said(found, "Accepted") == ("True", "NotServed")
    assert not found.apply


def test_a_region_that_leaves_the_manifest_takes_its_learners_with_it() -> None:
    only = "spec.regions=[{name: us-east, learners: 2}]"
    live = live_children()
    pods = (learner("eu-west-0", "n1"),)
    found = decided(seen(WAY, only, children=live, pods=pods, remembered=heard(serving())))
    assert ("StatefulSet", "tiny-eu-west") in {(e.kind, e.name) for e in found.prune}


def test_a_job_that_restores_another_one_asks_for_no_volumes_here() -> None:
    one = stored(endpoints=["lb:7700"], storage={"type": "PersistentVolumeClaim"})
    one["spec"]["restore"] = {"fromJob": {"name": "former"}}
    reading = accepted.read(one, [], serves=EU_WEST.serves)
    assert reading.job is not None
    assert run_file(reading.job).job == "former"
    named = accepted.read(one, [], serves=EU_WEST.serves, run_name="first").job
    assert named is not None  # the run of `former` began under another name
    assert run_file(named).job == "first"
    assert accepted.read(one, [], serves=US_EAST.serves).reason == "RestoreRefused"


# ---------------------------------------------------------------- the same progress


def test_the_status_is_that_of_the_syncers_cluster_but_for_what_only_pods_show() -> None:
    registrar = serving(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
    pods = (learner("eu-west-0", "n1"),)
    here = decided(there(pods=pods, remembered=heard(registrar)))
    home_pods = (learner("us-east-0", "n1"), learner("us-east-1", "n2"), shard(0, "n1"))
    live = live_children(settings=US_EAST)
    home = decided(
        there(settings=US_EAST, children=live, pods=home_pods, remembered=heard(registrar)),
        US_EAST,
    )
    assert here.status is not None
    assert home.status is not None
    for name in ("run", "learnersLive", "learnersDesired", "quorum", "columns", "progress"):
        assert here.status.status.get(name) == home.status.status.get(name), name
    for kind in ("SyncerReady", "LearnersAvailable", "Progressing", "Degraded", "Ready"):
        assert said(here, kind) == said(home, kind), kind
    by_region = {each["name"]: each for each in here.status.status["regions"]}
    assert "ready" not in by_region["us-east"]
    assert by_region["eu-west"]["ready"] == 1


def test_endpoints_that_do_not_answer_are_named_with_the_remedy() -> None:
    found = decided(there(remembered=heard(None, silent=20.0)))
    assert said(found, "SyncerReady") == ("Unknown", "NoAnswer")
    assert "nothing answers at lb:7700: compare spec.syncer.endpoints" in message(
        found, "SyncerReady"
    )


def test_only_the_syncers_cluster_tells_the_shards_what_becomes_of_the_job() -> None:
    assert decided(there(remembered=heard(serving()))).intent.intent == pb.INTENT_UNSPECIFIED
    for change, word in (("spec.steps=600", "RUN"), ("spec.suspend=true", "SUSPEND")):
        home = there(change, settings=US_EAST, remembered=heard(serving()))
        assert decided(home, US_EAST).intent.intent == pb.Intent.Value(f"INTENT_{word}")


# ---------------------------------------------------------------- a manifest that differs


def test_a_manifest_that_differs_in_what_must_be_equal_starts_no_learner() -> None:
    other = serving("spec.sync.overlap=3", us_east_0="Training")
    found = decided(there(remembered=heard(other)))
    assert replicas(found)["tiny-eu-west"] == 0
    assert said(found, "SpecDrift") == ("True", "OtherManifest")
    assert said(found, "Degraded") == ("True", "OtherManifest")
    assert said(found, "Progressing") == ("True", "Training")  # the others train on
    assert message(found, "SpecDrift").startswith(
        "spec.sync.overlap is 2 here and 3 in the cluster of us-east"
    )


def test_a_manifest_that_differs_stays_so_while_the_syncer_is_silent() -> None:
    before = there(remembered=heard(serving("spec.seed=7")))
    found = decided(before)
    later = decided(again(before, found, remembered=heard(None, silent=20.0)))
    assert said(later, "SpecDrift") == ("True", "OtherManifest")
    edited = raw(generation=2) | {"status": again(before, found).raw["status"]}
    fixed = decided(replace(before, raw=edited, remembered=heard(None, silent=20.0)))
    assert said(fixed, "SpecDrift")[1] == "InStep"


@pytest.mark.parametrize(
    "change", ["spec.regions=[{name: us-east, learners: 5}, {name: eu-west}]", "spec.steps=900"]
)
def test_what_need_not_be_equal_is_no_difference(change: str) -> None:
    found = decided(there(remembered=heard(serving(change))))
    assert said(found, "SpecDrift") == ("False", "InStep")
    assert not any(each["kind"] == "StatefulSet" for each in found.apply)


def test_a_shard_of_an_earlier_version_is_not_judged() -> None:
    old = serving("spec.seed=7")
    old.must_equal = ""
    assert elsewhere.mismatch(job(*CHANGES, WAY), [old]) == ""
    broken = serving()
    broken.must_equal = "{"
    assert "in words not known here" in elsewhere.mismatch(job(*CHANGES, WAY), [broken])


def test_endpoints_in_another_order_are_told() -> None:
    ways = job("spec.syncer.endpoints=['a:1', 'b:2']")
    said_by = []
    for number in (1, 0):
        one = serving()
        one.shard = number
        said_by.append(one)
    words = elsewhere.mismatch(ways, said_by)
    assert words.startswith("spec.syncer.endpoints[0], a:1, leads to shard 1")


def test_every_field_that_must_be_equal_has_a_name_in_the_manifest() -> None:
    document = json.loads(run_file(job()).must_equal)
    spec = job().spec
    for name in [*document, *(f"sync.{each}" for each in document["sync"])]:
        path = field_of(name)
        if name == "sync" or path == "metadata.name":
            continue
        found: Any = spec
        for word in path.removeprefix("spec.").split("."):
            fields = {f.alias or n: n for n, f in type(found).model_fields.items()}
            assert word in fields, path
            found = getattr(found, fields[word])


# ---------------------------------------------------------------- the syncer is lost


def lost_syncer() -> tuple[Observation, Plan]:
    pods = (learner("eu-west-0", "n1"),)
    start = there(pods=pods, remembered=heard(serving(eu_west_0="Training")))
    known = again(start, decided(start), remembered=heard(None, silent=3600.0))
    return known, decided(known)


def test_learners_train_on_alone_until_the_syncer_is_lost_for_long() -> None:
    pods = (learner("eu-west-0", "n1"),)
    found = decided(there(pods=pods, remembered=heard(None, silent=3599.0)))
    assert not any(each["kind"] == "StatefulSet" for each in found.apply)
    _, later = lost_syncer()
    assert replicas(later)["tiny-eu-west"] == 0
    for kind, status in (("Progressing", "False"), ("Degraded", "True"), ("Ready", "False")):
        assert said(later, kind) == (status, "SyncerLost")
    assert said(later, "Stalled")[0] == "False"  # it comes back by itself
    assert "no shard at lb:7700 has answered for 3600 s" in message(later, "Degraded")


def test_no_learner_starts_before_a_shard_has_answered_for_the_first_time() -> None:
    new = there(children=[], workloads={}, remembered=heard(None, silent=3.0))
    found = decided(new)
    assert replicas(found)["tiny-eu-west"] == 0
    assert said(found, "Degraded") == ("Unknown", "SyncerSilent")
    assert message(found, "Degraded") == (
        "the learners of this cluster start once a shard has answered"
    )
    answered = decided(there(children=[], workloads={}, remembered=heard(serving())))
    assert replicas(answered)["tiny-eu-west"] == 1
    known = again(new, answered, remembered=heard(None, silent=3.0))  # such as after a resume
    assert replicas(decided(known))["tiny-eu-west"] == 1


def test_an_operator_that_was_restarted_keeps_them_away_until_a_shard_answers() -> None:
    known, later = lost_syncer()
    forgotten = again(known, later, pods=(), remembered=heard(None, silent=0.0))
    assert said(decided(forgotten), "Degraded") == ("True", "SyncerLost")
    back = decided(again(known, later, remembered=heard(serving())))
    assert said(back, "Progressing")[1] != "SyncerLost"
    assert not any(each["kind"] == "StatefulSet" for each in back.apply)  # as it is live: 1


def test_a_silent_shard_beside_one_that_answers_is_no_lost_syncer() -> None:
    two = (
        "spec.syncer.shards=2",
        "spec.syncer.endpoints=['a:1', 'b:2']",
        "spec.export={url: 'file:///m'}",
    )
    live = live_children(*two)
    answers = serving(*two)
    answers.shard = 1
    heard_of = Remembered(replies=(None, answers), silent_seconds={0: 9999.0, 1: 0.0})
    one = seen(WAY, *two, children=live, remembered=heard_of)
    assert said(decided(one), "Degraded")[1] == "SyncerSilent"


def test_at_home_nothing_is_held_however_long_the_shards_are_silent() -> None:
    home = there(settings=US_EAST, remembered=heard(None, silent=9999.0))
    assert said(decided(home, US_EAST), "Ready")[1] == "Starting"


# ---------------------------------------------------------------- suspended, failed, complete


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
    durable = "spec.syncer.storage={type: PersistentVolumeClaim}"
    live = live_children(durable, settings=US_EAST)
    for registrar, seconds, shards in (
        (serving(eu_west_0="Training"), 5.0, None),
        (serving(eu_west_0="Left"), 5.0, 0),
        (serving(us_east_0="Training"), 5.0, 0),  # its own: its pods are gone
        (serving(eu_west_0="Training"), 31.0, 0),
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


def completed(evaluation: int | None = None) -> pb.StatusReply:
    found = serving()
    found.state = pb.SHARD_COMPLETE
    if evaluation is not None:
        found.evaluation.CopyFrom(pb.Evaluation(tick=evaluation, loss=2.0))
    return found


def test_a_job_is_complete_everywhere_once_its_last_evaluation_is_known() -> None:
    one = there(remembered=heard(completed(evaluation=50), final_seconds=1.0))
    assert said(decided(one), "Progressing") == ("True", "Evaluating")
    for remembered in (
        heard(completed(evaluation=60), final_seconds=1.0),
        heard(completed(evaluation=50), final_seconds=130.0),
        heard(None, silent=2.0),  # the shards have gone: the home saw the end
    ):
        later = again(one, decided(one), remembered=remembered)
        assert said(decided(later), "Complete") == ("True", "Trained")
    without = there(NO_EVALUATOR, remembered=heard(completed(), final_seconds=0.0))
    assert said(decided(without), "Complete") == ("True", "Trained")


def test_the_model_is_shown_where_it_can_be_found() -> None:
    claim = "spec.syncer.storage={type: PersistentVolumeClaim}"
    found = decided(there(NO_EVALUATOR, claim, remembered=heard(completed())))
    assert found.status is not None
    assert "exportURL" not in found.status.status  # that claim is in another cluster
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


def test_the_last_reports_of_learners_reach_the_status_of_a_job_that_is_over() -> None:
    registrar = completed(evaluation=60)
    registrar.slots.extend(serving(us_east_0="Left").slots)
    one = there(remembered=heard(registrar, final_seconds=1.0))
    first = decided(one)
    assert first.status is not None
    assert first.status.status["progress"]["tokens"] == 100
    registrar.slots[0].tokens = 128
    later = decided(again(one, first, remembered=heard(registrar)))
    assert later.status is not None
    assert later.status.status["progress"]["tokens"] == 128
    registrar.slots[0].tokens = 64  # a shard that was started again
    assert decided(again(one, later, remembered=heard(registrar))).status is None
