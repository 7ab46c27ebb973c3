"""Shards with a second process that waits: their objects, and what the plan makes of both pods."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed.objects import key_of
from atoll_operator.kube.observed.observation import Observation
from atoll_operator.kube.plan import pauses
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.losses.exclusions import exclusions
from atoll_operator.kube.plan.losses.sessions import shard_addresses
from atoll_operator.kube.plan.situation import situation_of
from atoll_protos.names import Label
from unit.kube.cluster_values import SETTINGS, Objects, first_container, job, keyed, template
from unit.kube.planner_side import CHANGES, NOW, planned, raw
from unit.kube.scenes import decided, names, scene

BUCKET = "spec.syncer.storage={type: ObjectStore, url: 's3://b'}"
STANDBY = (BUCKET, "spec.syncer.standby=true")
FIRST, SECOND = ("Deployment", "tiny-syncer-0"), ("Deployment", "tiny-syncer-0-b")
BOTH = ("Service", "tiny-syncer-0-all")
TEMPLATE = "spec.syncer.template={spec: {containers: [{image: fixed}]}}"
ALL = "us-east-0 us-east-1 eu-west-0; Training all; evaluator"
WAITS = "shard @n1; shard-b @n2 waits"


# ---------------------------------------------------------------- objects


def without_marks(found: Objects, key: tuple[str, str]) -> dict[str, Any]:
    inner = template(found, *key)
    labels = {name: v for name, v in inner["metadata"]["labels"].items() if name != Label.PROCESS}
    return {"labels": labels, "spec": {**inner["spec"], "affinity": {}}}


def test_each_shard_has_two_deployments_of_one_pod_that_differ_in_their_names_alone() -> None:
    found, alone = keyed(*STANDBY), keyed(BUCKET)
    made = {f"tiny-syncer-{n}-b" for n in range(2)}
    assert {name for _, name in found.keys() - alone.keys() if "-run-" not in name} == made
    assert without_marks(found, FIRST) == without_marks(found, SECOND)
    for key in (FIRST, SECOND):
        spec = found[key]["spec"]
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        container = first_container(spec["template"])
        assert (container["ATOLL_STANDBY"], container["ATOLL_STORE"]) == ("1", "s3://b/job-uid/0")
        assert container["readinessProbe"]["periodSeconds"] == 1
    assert found[FIRST]["spec"]["selector"] == alone[FIRST]["spec"]["selector"]  # it cannot change
    assert found[SECOND]["spec"]["selector"]["matchLabels"][Label.PROCESS] == "b"
    assert "ATOLL_STANDBY" not in first_container(template(alone, *FIRST))


def test_the_two_are_kept_apart_where_that_is_possible_beside_what_the_user_prefers() -> None:
    own = {"weight": 1, "podAffinityTerm": {"topologyKey": "rack"}}
    affinity = f"{{podAntiAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{own}]}}}}"
    found = keyed(*STANDBY, f"spec.syncer.template={{spec: {{affinity: {affinity}}}}}")
    terms = template(found, *FIRST)["spec"]["affinity"]["podAntiAffinity"]
    kept, *ours = terms["preferredDuringSchedulingIgnoredDuringExecution"]
    assert kept == own
    by_key = {each["podAffinityTerm"].pop("topologyKey"): each for each in ours}
    host, zone = by_key["kubernetes.io/hostname"], by_key["topology.kubernetes.io/zone"]
    assert host["weight"] > zone["weight"]
    labels = {Label.JOB_UID: "job-uid", Label.ROLE: "shard", Label.SHARD: "0"}
    assert host["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels


def test_a_pod_is_kept_from_the_other_process_and_not_from_its_own_former_pod() -> None:
    found = keyed(*STANDBY)
    for key, words in ((FIRST, "Exists"), (SECOND, "DoesNotExist")):
        terms = template(found, *key)["spec"]["affinity"]["podAntiAffinity"]
        (one, _) = terms["preferredDuringSchedulingIgnoredDuringExecution"]
        selector = one["podAffinityTerm"]["labelSelector"]
        assert selector["matchExpressions"] == [{"key": Label.PROCESS, "operator": words}]


def test_who_dials_a_shard_gets_the_addresses_of_both_of_its_pods() -> None:
    found = keyed(*STANDBY)
    spec = found[BOTH]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == found["Service", "tiny-syncer-0"]["spec"]["selector"]
    assert Label.PROCESS not in spec["selector"]
    dialled = "tiny-syncer-0-all.demo.svc:7700,tiny-syncer-1-all.demo.svc:7700"
    for kind, name in (FIRST, ("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-evaluator")):
        assert first_container(template(found, kind, name))["ATOLL_ENDPOINTS"] == dialled


def test_a_standby_that_comes_or_goes_restarts_nobody_but_shards() -> None:
    found, alone = keyed(*STANDBY), keyed(BUCKET)
    assert found[BOTH] == alone[BOTH]
    for key in (("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-evaluator")):
        assert template(found, *key) == template(alone, *key)
    assert BOTH not in keyed()  # no second process may come


def test_a_drain_takes_one_shard_at_a_time_though_half_of_the_pods_are_never_ready() -> None:
    key = ("PodDisruptionBudget", "tiny-syncer")
    found = [keyed(*each)[key]["spec"]["maxUnavailable"] for each in ((BUCKET,), STANDBY)]
    assert found == [1, 3]


# ---------------------------------------------------------------- a pod that waits is no trouble


def condition(found: Plan, kind: str) -> tuple[str, str, str]:
    assert found.status is not None
    conditions = found.status.status["conditions"]
    (one,) = (each for each in conditions if each["type"] == kind)
    return one["status"], one["reason"], one.get("message", "")


@pytest.mark.parametrize("text", [WAITS, "shard @n1 waits; shard-b @n2"])
def test_a_shard_of_which_one_pod_waits_is_as_it_should_be(text: str) -> None:
    found = decided(f"{ALL}; {text}", *STANDBY)
    assert condition(found, "SyncerReady")[:2] == ("True", "Serving")
    assert condition(found, "Degraded")[:2] == ("False", "AllWell")
    assert found.status is not None
    assert found.status.status["syncer"]["standbys"] == 1
    assert (found.replace, found.delete, found.children.apply) == ((), (), ())
    seen = scene(f"{ALL}; {text}", *STANDBY)
    assert seen.job is not None
    assert pauses.is_steady(situation_of(seen, seen.job, SETTINGS, NOW), found)


def test_a_job_without_standby_counts_none() -> None:
    found = decided(f"{ALL}; shard")
    assert found.status is not None
    assert "standbys" not in found.status.status["syncer"]


MISSING = [
    ("shard-b pending unschedulable=full unready", "tiny-shard-b waits for a node: full"),
    ("shard-b @n2 unready exit=1 waits=CrashLoopBackOff", "waits: CrashLoopBackOff, last exit c"),
    ("shard-b @n2 unready exit=64 waits=CrashLoopBackOff", "CrashLoopBackOff, last exit code 64"),
    ("shard-b @n2 unready exit=77 waits=CrashLoopBackOff", "CrashLoopBackOff, last exit code 77"),
    ("shard-b @n2 waits; n2 silent=30", "tiny-shard-b is on n2, which is silent"),
]


@pytest.mark.parametrize(("text", "said"), MISSING)
def test_a_second_process_that_cannot_take_over_is_named_and_hurts_nobody(
    text: str, said: str
) -> None:
    found = decided(f"{ALL}; shard @n1; {text}", *STANDBY)
    status, reason, message = condition(found, "SyncerReady")
    assert (status, reason) == ("True", "NoStandby")
    assert message.startswith("shard 0 has no standby: ")
    assert said in message
    assert condition(found, "Degraded")[:2] == ("False", "AllWell")
    assert condition(found, "Failed")[0] == "False"
    assert found.delete == ()
    assert found.status is not None
    assert found.status.status["syncer"]["standbys"] == (1 if "silent" in text else 0)


def test_a_quota_that_refuses_the_second_pod_is_named() -> None:
    seen = scene(f"{ALL}; shard @n1", *STANDBY)
    refused = replace(seen.workloads["tiny-syncer-0-b"], trouble="exceeded quota")
    full = replace(seen, workloads={**seen.workloads, refused.name: refused})
    said = "shard 0 has no standby: Deployment tiny-syncer-0-b cannot make a pod: exceeded quota"
    assert condition(planned(full), "SyncerReady")[1:] == ("NoStandby", said)
    assert condition(planned(full), "Degraded")[1] == "AllWell"


def test_the_only_pod_of_a_shard_that_has_ended_for_good_still_fails_the_job() -> None:
    ended = "shard @n1 unready exit=64 waits=CrashLoopBackOff"
    both = f"{ended}; shard-b @n2 unready exit=64 waits=CrashLoopBackOff"
    for text, changes in ((ended, ()), (both, STANDBY)):
        assert condition(decided(text, *changes), "Failed")[:2] == ("True", "BadInput")


def test_a_shards_process_that_was_followed_is_started_again_in_its_place() -> None:
    crashed = "@n1 unready exit=77 waits=CrashLoopBackOff"
    assert decided(f"shard {crashed}").delete == ()
    assert names(decided(f"us-east-0 {crashed}").delete) == "us-east-0"


# ---------------------------------------------------------------- who is asked


def test_the_pod_that_serves_is_asked_and_another_address_is_dialled_anew() -> None:
    def asked(text: str) -> str:
        pods = scene(text, *STANDBY).pods
        return shard_addresses(job(*CHANGES, *STANDBY), pods, lambda _: True)[0]

    assert asked(WAITS) == "ip-shard:7700"
    assert asked("shard @n1; shard-b @n2") == "ip-shard:7700|ip-shard-b:7700"  # n1 may be gone
    assert asked("shard @n1 waits; shard-b @n2") == "ip-shard-b:7700"
    assert asked("shard @n1 waits; shard-b @n2 waits") == "ip-shard:7700|ip-shard-b:7700"
    assert asked("shard @n1 going; shard-b @n2 waits") == "ip-shard-b:7700"
    assert asked("shard @n1 going unready") == "ip-shard:7700"


# ---------------------------------------------------------------- lost nodes


@pytest.mark.parametrize(
    ("text", "silent", "replaced"),
    [
        ("shard @n1; shard-b @n2; n1 silent=30", 0.0, "shard"),  # the other one has taken over
        ("shard @n1; shard-b @n2 waits; n2 silent=30", 0.0, "shard-b"),
        ("shard @n1; shard-b @n2 waits; n1 silent=30", 0.0, ""),  # it answers: its kubelet is lost
        ("shard @n1; shard-b @n2 waits; n1 silent=30", 9.0, "shard"),  # and the other one does not
        ("shard @n1; shard-b @n2 waits", 9.0, ""),
    ],
)
def test_a_pod_on_a_lost_node_moves_though_its_shard_answers_if_another_one_serves(
    text: str, silent: float, replaced: str
) -> None:
    seen = scene(f"{ALL}; {text}", *STANDBY, silent_seconds={0: silent})
    assert seen.job is not None
    placement = situation_of(seen, seen.job, SETTINGS, NOW).placement
    assert names(placement.replace) == replaced
    changed = {*map(key_of, planned(seen).children.apply)}
    of = {"shard": FIRST, "shard-b": SECOND}
    assert changed == ({of[replaced]} if replaced else set())  # it alone keeps off the node


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("shard @n1; shard-b @n1 waits", "tiny-syncer-0-b"),
        ("shard @n1 waits; shard-b @n1", "tiny-syncer-0"),
        ("shard @n1; shard-b @n1 waits; n2 silent=30", ""),  # not yet
        ("shard @n1; shard-b @n3 waits", ""),  # they are apart
        ("shard @n1; shard-b @n1", ""),  # both are shown as Ready: perhaps it has taken over
        ("shard @n1 unready; shard-b @n1 waits", ""),  # it may take over now
        ("shard @n1 going; shard-b @n1 waits", ""),
    ],
)
def test_a_pod_that_waits_beside_the_one_that_serves_moves_when_the_lost_node_is_well(
    text: str, moved: str
) -> None:
    """Its Deployment forgets the node, and so makes its pod again."""
    seen = scene(f"{ALL}; {text}", *STANDBY)
    assert seen.job is not None
    placement = situation_of(seen, seen.job, SETTINGS, NOW).placement
    shards = {
        name: replace(each, excluded=("n2",))
        for name, each in seen.workloads.items()
        if "syncer" in name
    }
    found = exclusions("tiny", shards, placement, seen.pods, now=NOW).nodes
    assert {name for name, nodes in found.items() if "n2" not in nodes} == ({moved} - {""})


def test_why_it_moves_says_that_another_pod_serves() -> None:
    seen = scene(f"{ALL}; shard @n1; shard-b @n2; n1 silent=30", *STANDBY)
    assert seen.job is not None
    (one,) = situation_of(seen, seen.job, SETTINGS, NOW).placement.replace
    assert one.reason == "its node n1 is silent, and another pod serves the shard"


def test_a_second_process_that_the_job_no_longer_asks_for_is_removed_from_a_lost_node() -> None:
    found = decided(f"{ALL}; shard @n1; shard-b @n2 waits going; n2 silent=30", BUCKET)
    (gone,) = found.replace
    assert (gone.pod.process, "is removed" in gone.event.message) == ("b", True)


# ---------------------------------------------------------------- a new template


def edited(text: str, *changes: str, to: tuple[str, ...] = (TEMPLATE,)) -> Plan:
    """A job that has begun a run, and whose syncer is edited."""
    found = scene(f"{ALL}; {text}", *changes)
    wanted = (*CHANGES, *changes, *to)
    begun = raw(generation=2) | {"status": {"run": "r1"}}
    return planned(replace(found, job=job(*wanted), raw=begun))


def rolled(found: Plan) -> set[str]:
    applied = {name for kind, name in map(key_of, found.children.apply) if kind == "Deployment"}
    return {each.removeprefix("tiny-") for each in applied if "syncer" in each}


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        (WAITS, {"syncer-0-b"}),  # what waits goes first
        ("shard @n1 waits; shard-b @n2", {"syncer-0"}),
        # a template that does not work stops there; its fix comes at once
        ("shard @n1; shard-b @n2 unready waits=ImagePullBackOff", {"syncer-0-b"}),
        ("shard @n1 unready; shard-b @n2 unready", {"syncer-0", "syncer-0-b"}),
    ],
)
def test_what_waits_gets_an_edit_before_what_serves(text: str, reached: set[str]) -> None:
    assert rolled(edited(text, *STANDBY)) == reached


def again(text: str) -> Plan:
    """The second pass of an edit: the process that waits has its new template."""
    found = scene(f"{ALL}; {text}", *STANDBY)
    wanted = job(*CHANGES, *STANDBY, TEMPLATE)
    begun = replace(found, job=wanted, raw=raw(generation=2) | {"status": {"run": "r1"}})
    new = {key_of(each): each for each in planned(begun).children.apply}
    children = []
    for each in begun.children:
        changed = new.get(key_of(each), each)
        metadata = {**changed["metadata"], "uid": each["metadata"]["uid"], "generation": 1}
        children.append({**changed, "metadata": metadata, "status": {"observedGeneration": 1}})
    live = {
        name: replace(old, template=_hash(new["Deployment", name]))
        if ("Deployment", name) in new
        else old
        for name, old in begun.workloads.items()
    }
    return planned(replace(begun, children=tuple(children), workloads=live))


def _hash(deployment: dict[str, Any]) -> str:
    found = deployment["spec"]["template"]["metadata"]["annotations"][Annotation.TEMPLATE]
    return str(found)


def test_what_serves_is_restarted_when_the_other_one_waits_again_with_the_new_template() -> None:
    assert rolled(again(WAITS)) == {"syncer-0"}


# ---------------------------------------------------------------- on and off


def test_a_standby_that_is_added_comes_before_its_shard_is_restarted() -> None:
    assert rolled(edited("shard @n1", BUCKET, to=STANDBY)) == {"syncer-0-b"}


def pruned(found: Plan) -> set[str]:
    return {each.name for each in found.children.prune}


OFF = ("spec.syncer.standby=false",)


@pytest.mark.parametrize(
    ("text", "removed", "reached"),
    [
        (WAITS, True, set()),
        ("shard @n1 waits; shard-b @n2", True, set()),  # it hands over
        ("shard @n1 unready; shard-b @n2", False, {"syncer-0"}),  # nobody could take over
        ("shard @n1; shard-b @n2 waits going", True, set()),  # never both of a shard at once
        ("shard @n1", True, {"syncer-0"}),
    ],
)
def test_a_standby_that_is_taken_away_ends_before_its_shard_is_restarted(
    text: str, removed: bool, reached: set[str]
) -> None:
    found = edited(text, *STANDBY, to=OFF)
    assert ("tiny-syncer-0-b" in pruned(found)) == removed
    assert rolled(found) == reached
    assert "tiny-syncer-0-all" not in pruned(found)


def test_the_service_of_both_goes_when_nobody_dials_it() -> None:
    def leftover(seen: Observation) -> Observation:
        of = scene("", *STANDBY).children
        more = [each for each in of if key_of(each) == BOTH]
        return replace(seen, children=(*seen.children, *more))

    assert pruned(planned(leftover(scene(f"{ALL}; shard")))) == {"tiny-syncer-0-all"}


def test_a_job_that_is_suspended_keeps_no_standby_that_it_does_not_ask_for() -> None:
    found = edited("shard @n1 unready; shard-b @n2", *STANDBY, to=(*OFF, "spec.suspend=true"))
    assert "tiny-syncer-0-b" in pruned(found)
