"""A job over several clusters, in each of them: pure, from an observation to a plan."""

import json
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.process_inputs import field_of, run_file
from atoll_operator.kube.observed.observation import Node, Observation, Remembered, ShardRefusal
from atoll_operator.kube.plan import accepted, certificates
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.actions import Plan
from unit.docs.tree import ROOT
from unit.kube.cluster_values import SETTINGS, children, job, learner, shard
from unit.kube.other_cluster import (
    EU_WEST,
    US_EAST,
    WAY,
    again,
    decided,
    heard,
    live_children,
    message,
    serving,
    stored,
    there,
)
from unit.kube.planner_side import CHANGES, NOW, raw, seen
from unit.kube.test_lifecycle import replicas, said

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
    assert "`kubectl get dtj tiny -o jsonpath='{.status.syncer.endpoints}'`" in reading.error
    found = decided(Observation(at=0.0, raw=raw(), reason=reading.reason, error=reading.error))
    assert said(found, "Accepted") == ("False", "EndpointsMissing")
    assert said(found, "Stalled") == ("True", "Rejected")
    assert accepted.read(stored(), [], serves=US_EAST.serves).job is not None


def test_the_page_has_the_commands_that_conditions_name() -> None:
    walk = (ROOT / "docs/clusters.md").read_text()
    error = accepted.read(stored(), [], serves=EU_WEST.serves).error
    endpoints = error.split("`")[1]
    assert endpoints.startswith("kubectl get dtj tiny ")
    bring, _, apply = certificates.command("NAME", "NAMESPACE", "eu-west").partition(", ")
    apply = apply[apply.index("kubectl apply") :]
    for command in (endpoints.partition(" tiny ")[2], bring, apply.removesuffix(" here")):
        assert command in walk


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


def test_an_install_that_forgets_its_regions_starts_no_second_syncer() -> None:
    one = stored(endpoints=["lb:7700"])
    everything: Any = {"serves": SETTINGS.serves, "spans_regions": True}
    new = accepted.read(one, [], **everything)
    assert (new.job, new.reason) == (None, "TwoHomes")
    assert "spec.syncer.endpoints" in new.error
    assert "chart's value `regions`" in new.error
    found = decided(Observation(at=0.0, raw=raw(), reason=new.reason, error=new.error), SETTINGS)
    assert said(found, "Accepted") == ("False", "TwoHomes")
    assert not found.children.apply
    joined = live_children()  # learners of eu-west, which dial the endpoints
    named = accepted.read(one, joined, serves=replace(EU_WEST, regions=("us-east",)).serves)
    assert named.reason == "TwoHomes"
    assert "have joined that of another cluster" in named.error


def test_a_home_whose_manifest_has_the_endpoints_for_the_others_stays_a_home() -> None:
    one = stored(endpoints=["lb:7700"])
    live = live_children(settings=SETTINGS)
    everything: Any = {"serves": SETTINGS.serves, "spans_regions": True}
    assert accepted.read(one, live, **everything).job is not None  # its shards are here
    assert accepted.read(one, [], serves=US_EAST.serves).job is not None  # it names its regions
    assert accepted.read(one, [], serves=EU_WEST.serves).job is not None


def test_an_install_that_serves_no_region_of_the_job_says_so_and_makes_nothing() -> None:
    ap_south = replace(SETTINGS, regions=("ap-south",))
    reading = accepted.read(stored(), [], serves=ap_south.serves)
    assert not reading.error
    found = decided(seen(children=[], remembered=heard()), ap_south)
    assert said(found, "Accepted") == ("True", "NotServed")
    assert not found.children.apply


def test_a_region_that_leaves_the_manifest_takes_its_learners_with_it() -> None:
    only = "spec.regions=[{name: us-east, learners: 2}]"
    live = live_children()
    pods = (learner("eu-west-0", "n1"),)
    found = decided(seen(WAY, only, children=live, pods=pods, remembered=heard(serving())))
    assert ("StatefulSet", "tiny-eu-west") in {(e.kind, e.name) for e in found.children.prune}


# ---------------------------------------------------------------- the same progress


def test_the_status_is_that_of_the_syncers_cluster_but_for_what_only_pods_show() -> None:
    registrar = serving(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
    pods = (learner("eu-west-0", "n1"),)
    here = decided(there(pods=pods, remembered=heard(registrar)))
    home_pods = (learner("us-east-0", "n1"), learner("us-east-1", "n2"), shard(0, "n1"))
    live = live_children(settings=US_EAST)
    home = decided(
        there(settings=US_EAST, children=live, pods=home_pods, remembered=heard(registrar)), US_EAST
    )
    assert here.status is not None
    assert home.status is not None
    for name in ("run", "learnersLive", "learnersDesired", "quorum", "columns", "progress"):
        assert here.status.status.get(name) == home.status.status.get(name), name
    for kind in ("SyncerReady", "Progressing", "Degraded", "Ready"):
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
    assert said(found, "Degraded") == ("True", "OtherManifest")
    assert said(found, "Progressing") == ("True", "Training")  # the others train on
    assert message(found, "Degraded").startswith(
        "spec.sync.overlap is 2 here and 3 in the cluster of us-east"
    )


def test_a_manifest_that_differs_stays_so_while_the_syncer_is_silent() -> None:
    before = there(remembered=heard(serving("spec.seed=7")))
    found = decided(before)
    later = decided(again(before, found, remembered=heard(None, silent=20.0)))
    assert said(later, "Degraded") == ("True", "OtherManifest")
    edited = raw(generation=2) | {"status": again(before, found).raw["status"]}
    fixed = decided(replace(before, raw=edited, remembered=heard(None, silent=20.0)))
    assert said(fixed, "Degraded")[1] != "OtherManifest"


def test_other_counts_than_the_homes_are_told_and_hold_nobody_up() -> None:
    other = serving("spec.steps=900")
    other.steps = 900
    other.learners.update({"us-east": 5, "eu-west": 1})
    found = decided(there(remembered=heard(other)))
    assert said(found, "Degraded") == ("True", "OtherCounts")
    words = message(found, "Degraded")
    assert "spec.steps is 600 here and 900 in the cluster of us-east, where the syncer" in words
    assert "spec.regions gives us-east 2 learners here and 5 in the cluster of us-east" in words
    assert "eu-west 1 " not in words  # that is the same
    assert not any(each["kind"] == "StatefulSet" for each in found.children.apply)


def test_a_region_that_the_home_does_not_have_is_told() -> None:
    other = serving()
    other.learners.update({"us-east": 2})
    words = phases.differences(job(*CHANGES, WAY), other)
    assert [each.split(" in the cluster")[0] for each in words] == [
        "spec.regions gives eu-west 1 learners here and 0"
    ]


def test_counts_are_no_difference_where_they_are_equal_or_not_told() -> None:
    spec = job(*CHANGES, WAY).spec
    same = serving()
    same.steps = spec.steps or 0
    assert phases.differences(job(*CHANGES, WAY), same) == ()
    same.learners.update({each.name: each.learners for each in spec.regions})
    assert phases.differences(job(*CHANGES, WAY), same) == ()
    assert phases.differences(job(*CHANGES, WAY), None) == ()


def test_a_shard_of_an_earlier_version_is_not_judged() -> None:
    old = serving("spec.seed=7")
    old.must_equal = ""
    assert phases.mismatch(job(*CHANGES, WAY), [old]) == ""
    broken = serving()
    broken.must_equal = "{"
    assert "in words not known here" in phases.mismatch(job(*CHANGES, WAY), [broken])


def test_endpoints_in_another_order_are_told() -> None:
    ways = job("spec.syncer.endpoints=['a:1', 'b:2']")
    said_by = []
    for number in (1, 0):
        one = serving()
        one.shard = number
        said_by.append(one)
    words = phases.mismatch(ways, said_by)
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
        of_two = path == "spec.sync.adopt"  # its mode and its blendPercent are one field there
        assert of_two or not isinstance(found, BaseModel), f"{path} is several fields"


# ---------------------------------------------------------------- the syncer is lost


def lost_syncer() -> tuple[Observation, Plan]:
    pods = (learner("eu-west-0", "n1"),)
    start = there(pods=pods, remembered=heard(serving(eu_west_0="Training")))
    known = again(start, decided(start), remembered=heard(None, silent=3600.0))
    return known, decided(known)


def test_learners_train_on_alone_until_the_syncer_is_lost_for_long() -> None:
    pods = (learner("eu-west-0", "n1"),)
    found = decided(there(pods=pods, remembered=heard(None, silent=3599.0)))
    assert not any(each["kind"] == "StatefulSet" for each in found.children.apply)
    _, later = lost_syncer()
    assert replicas(later)["tiny-eu-west"] == 0
    for kind, status in (("Progressing", "False"), ("Degraded", "True"), ("Ready", "False")):
        assert said(later, kind) == (status, "SyncerLost")
    assert said(later, "Stalled")[0] == "False"  # it comes back by itself
    assert "no shard has answered for 3600 s or longer (now asked: lb:7700)" in message(
        later, "Degraded"
    )


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
    assert "tiny-eu-west" not in replicas(back)  # as it is live: 1


def test_the_home_says_where_to_look_for_learners_of_another_cluster_and_who_was_refused() -> None:
    registrar = serving(us_east_0="Training", us_east_1="Training")
    registrar.refused_peer = "its certificate was not issued by an authority of ca.crt"
    registrar.seconds_since_refused_peer = 12.0
    registrar.state = pb.SHARD_SERVING
    found = decided(there(settings=US_EAST, remembered=heard(registrar)), US_EAST)
    said_ = message(found, "Degraded")
    assert "eu-west: served by another cluster, see `kubectl get dtj tiny` there, or" in said_
    assert "not issued by an authority" in said_
    registrar.seconds_since_refused_peer = 600.0  # it has not dialled since
    found = decided(there(settings=US_EAST, remembered=heard(registrar)), US_EAST)
    assert "not issued" not in message(found, "Degraded")


def test_stale_endpoints_at_home_are_a_drift() -> None:
    node = Node(name="n1", region="us-east", address="lb", ready=True)
    expose = "spec.syncer.expose={type: NodePort}"
    live = live_children(expose, settings=US_EAST)
    for each in live:
        if each["kind"] == "Service" and "-syncer-" in each["metadata"]["name"]:
            each["spec"]["ports"][0]["nodePort"] = 30_700
    found = seen(WAY, expose, children=live, nodes={"n1": node}, remembered=heard(serving()))
    assert said(decided(found, US_EAST), "Degraded") == ("True", "StaleEndpoints")


def test_a_pod_whose_slot_another_cluster_has_is_named_after_a_minute() -> None:
    registrar = serving(eu_west_0="Training")
    registrar.slots[0].uid = "uid-of-another-cluster"
    pod = learner("eu-west-0", "n1", runs=True, made_at=NOW - 61.0)
    found = decided(there(pods=(pod,), remembered=heard(registrar)))
    assert said(found, "Degraded") == ("True", "SlotHeldElsewhere")
    assert "waits for eu-west-0, which pod uid-of-another-cluster has" in message(found, "Degraded")
    for other in (replace(pod, made_at=NOW - 59.0), replace(pod, uid="uid-of-another-cluster")):
        found = decided(there(pods=(other,), remembered=heard(registrar)))
        assert said(found, "Degraded")[1] != "SlotHeldElsewhere"


def test_a_shard_that_refuses_this_clusters_credentials_is_not_lost() -> None:
    pods = (learner("eu-west-0", "n1"),)
    silent = heard(None, silent=4000.0)
    for other_run, replicas_ in ((False, None), (True, 0)):  # of another run: the former is gone
        refusals = {0: ShardRefusal(text="not issued by an authority", other_run=other_run)}
        found = decided(there(pods=pods, remembered=silent, refusals=refusals))
        assert replicas(found).get("tiny-eu-west") == replicas_
        unreachable = message(found, "SyncerReady")
        assert "refuses the credentials of this cluster" in unreachable
        assert "nothing answers" not in unreachable


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
