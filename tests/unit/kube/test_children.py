"""A job's children: names, what restarts whom, rights and placement of their pods."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.job.sync_fields import Preset
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed.objects import excluded_nodes, key_of
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.replacements import Exclusions
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Expected, Limit, RunFile
from atoll_protos.names import Label
from unit.kube.cluster_values import SETTINGS, Objects, children, first_container, keyed, template

EAST, WEST = ("StatefulSet", "tiny-us-east"), ("StatefulSet", "tiny-eu-west")
SHARD, EVALUATOR = ("Deployment", "tiny-syncer-0"), ("Deployment", "tiny-evaluator")


def test_a_job_has_these_children() -> None:
    wanted = {
        "ServiceAccount": "learner syncer evaluator",
        "PodDisruptionBudget": "syncer learner",
        "Service": "syncer-0 syncer-1 us-east eu-west",
        "Deployment": "syncer-0 syncer-1 evaluator",
        "StatefulSet": "us-east eu-west",
    }
    names = {(kind, f"tiny-{name}") for kind in wanted for name in wanted[kind].split()}
    assert {key for key in keyed() if key[0] != "ConfigMap"} == names
    stopped = keyed(running=Running(learners=False, shards=False, evaluator=False))
    assert stopped.keys() == keyed().keys()
    specs = [each.get("spec", {}) for each in stopped.values()]
    assert {spec["replicas"] for spec in specs if "replicas" in spec} == {0}


def mark(found: Objects) -> str:
    """What the pods of us-east are restarted by when it changes."""
    return str(template(found, *EAST)["metadata"]["annotations"][Annotation.TEMPLATE])


@pytest.mark.parametrize("preset", Preset)
def test_more_learners_and_regions_change_no_template_that_would_restart_a_pod(
    preset: Preset,
) -> None:
    sync = f"spec.sync={{preset: {preset}}}"
    regions = "[{name: us-east, learners: 3}, {name: eu-west}, {name: new}]"
    few, many = keyed(sync), keyed(sync, f"spec.regions={regions}")
    for name in ("tiny-syncer-0", "tiny-syncer-1", "tiny-evaluator"):
        assert few["Deployment", name] == many["Deployment", name]
    assert many[EAST]["spec"]["replicas"] == 3
    assert ("StatefulSet", "tiny-new") in many
    assert mark(few) == mark(many)


def test_what_must_be_equal_is_a_part_of_the_template() -> None:
    assert mark(keyed("spec.seed=1")) != mark(keyed())


def test_a_lost_node_is_excluded_and_restarts_no_pod() -> None:
    found = keyed(exclusions=Exclusions(nodes={"tiny-us-east": ("n1", "n2")}))
    excluded = [excluded_nodes(template(found, *each)) for each in (EAST, WEST)]
    assert (excluded, mark(found)) == ([("n1", "n2"), ()], mark(keyed()))


def test_a_set_is_changed_for_a_pod_that_kueue_is_to_let_go_of() -> None:
    found = keyed(exclusions=Exclusions(ended={"tiny-us-east": "uid-1", "tiny-eu-west": ""}))
    marks = [found[key]["metadata"]["annotations"].get(Annotation.ENDED) for key in (EAST, WEST)]
    assert marks == ["uid-1", None]


def templates(*changes: str, **more: Any) -> list[dict[str, Any]]:
    specs = [each.get("spec", {}) for each in keyed(*changes, **more).values()]
    found = [spec["template"] for spec in specs if "template" in spec]
    assert len(found) == 5
    return found


@pytest.mark.parametrize("user", [1000, None])
def test_every_pod_is_restricted_and_has_no_credentials(user: int | None) -> None:
    for each in templates(settings=replace(SETTINGS, pod_user=user)):
        pod, container = each["spec"], each["spec"]["containers"][0]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for name in ("runAsUser", "runAsGroup", "fsGroup"):
            assert pod["securityContext"].get(name) == user
            assert (name in pod["securityContext"]) is (user is not None)
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    accounts = [each for (kind, _), each in keyed().items() if kind == "ServiceAccount"]
    assert all(each["automountServiceAccountToken"] is False for each in accounts)


def test_a_learner_knows_its_slot_from_its_ordinal() -> None:
    found = first_container(template(keyed(), *WEST))
    assert found["ATOLL_SLOT"] == "$(ATOLL_REGION)-$(ATOLL_ORDINAL)"
    assert found["ATOLL_ENDPOINTS"] == "tiny-syncer-0.demo.svc:7700,tiny-syncer-1.demo.svc:7700"
    assert found["image"] == "worker:1"


def test_run_files_are_immutable_and_agree_on_the_run() -> None:
    maps = {name: each for (kind, name), each in keyed().items() if kind == "ConfigMap"}
    del maps["tiny-slots"], maps["tiny-accepted"]
    assert all(each["immutable"] for each in maps.values())
    files = [RunFile.from_json(each["data"]["run.json"]) for each in maps.values()]
    assert len({each.hash for each in files}) == 1


def expected(found: Objects) -> Expected:
    return Expected.from_json(found["ConfigMap", "tiny-slots"]["data"]["slots.json"])


def test_shards_mount_the_list_of_learners_which_changes_in_place() -> None:
    regions = "spec.regions=[{name: us-east, learners: 3, tokensPerStep: 4096}, {name: new}]"
    few, many = keyed(), keyed("spec.syncer.startSeconds=7", regions)
    assert expected(few).slots == {"us-east-0", "us-east-1", "eu-west-0"}
    assert expected(many).slots == {"us-east-0", "us-east-1", "us-east-2", "new-0"}
    assert [expected(each).start_seconds for each in (few, many)] == [30, 7]
    assert expected(many).limits == (Limit(region="us-east", tokens_per_step=4096),)
    assert "immutable" not in many["ConfigMap", "tiny-slots"]
    assert mark(few) == mark(many)
    for number in range(2):
        pod = template(many, "Deployment", f"tiny-syncer-{number}")
        assert pod["spec"] == template(few, "Deployment", f"tiny-syncer-{number}")["spec"]
        mounted = {"name": "atoll-slots", "configMap": {"name": "tiny-slots"}}
        assert mounted in pod["spec"]["volumes"]
        assert first_container(pod)["ATOLL_SLOTS_FILE"] == "/etc/atoll-slots/slots.json"
    order = [key_of(each)[1] for each in children().objects()]
    assert order.index("tiny-slots") < order.index("tiny-us-east")


# ---------------------------------------------------------------- placement


def regions_of(pod: dict[str, Any]) -> list[list[str]]:
    """For each term of the required node affinity, the regions that it allows."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [
        expression["values"]
        for term in required.get("nodeSelectorTerms", [])
        for expression in term["matchExpressions"]
        if expression["key"] == SETTINGS.region_label
    ]


H100 = {"gpu": "h100"}
TERMS = """spec.learner.template.spec.affinity={nodeAffinity: {
  requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchExpressions: [{key: gpu, operator: Exists}]},
    {matchExpressions: [{key: tpu, operator: Exists}]}]}}}"""
OWN = "{name: eu-west, podOverrides: {nodeSelector: {gpu: h100}}}"
ANYWHERE = "spec.regions=[{name: us-east, placement: Anywhere}, {name: eu-west}]"


@pytest.mark.parametrize(
    ("change", "of", "regions", "selects"),
    [
        ("spec.seed=0", WEST, [["eu-west"]], {}),
        (f"spec.regions=[{{name: us-east}}, {OWN}]", WEST, [["eu-west"]], H100),
        ("spec.learner.template.spec={nodeSelector: {gpu: h100}}", WEST, [["eu-west"]], H100),
        (TERMS, WEST, [["eu-west"], ["eu-west"]], {}),  # a node needs to match one term
        (ANYWHERE, WEST, [["eu-west"]], {}),
        (ANYWHERE, EAST, [], {}),
        (ANYWHERE, SHARD, [], {}),
        (ANYWHERE, EVALUATOR, [], {}),
    ],
)
def test_pods_go_to_their_regions_nodes_whatever_else_the_user_selects(
    change: str, of: tuple[str, str], regions: list[list[str]], selects: dict[str, str]
) -> None:
    pod = template(keyed(change), *of)
    assert (regions_of(pod), pod["spec"].get("nodeSelector", {})) == (regions, selects)


# ---------------------------------------------------------------- names, owners and labels


def test_no_two_objects_of_a_job_have_the_same_name_whatever_its_regions_are_called() -> None:
    problem = r"spec\.regions: a name begins with syncer or evaluator"
    for name in ("syncer", "syncer-0", "evaluator", "syncer-1-x"):
        with pytest.raises(SpecError, match=problem):
            children(f"spec.regions=[{{name: {name}}}]")
    for name in ("learner", "run", "a-syncer-0"):
        objects = children(f"spec.regions=[{{name: {name}}}]").objects()
        assert len({key_of(each) for each in objects}) == len(objects)


EAST_ALONE = "spec.regions=[{name: us-east, podOverrides: {serviceAccountName: mine}}"


@pytest.mark.parametrize(
    ("change", "users"),
    [
        ("spec.learner.template.spec.serviceAccountName=tiny-learner", {"tiny-learner"}),
        ("spec.syncer.template.spec.serviceAccountName=tiny-syncer", {"tiny-syncer"}),
        ("spec.evaluator.template.spec.serviceAccountName=tiny-evaluator", {"tiny-evaluator"}),
        (f"{EAST_ALONE}]", {"tiny-learner"}),
        (f"{EAST_ALONE}, {{name: eu-west}}]", set()),
    ],
)
def test_an_account_that_the_template_names_is_the_user_s_and_not_made(
    change: str, users: set[str]
) -> None:
    made = {name for kind, name in keyed(change) if kind == "ServiceAccount"}
    assert {"tiny-learner", "tiny-syncer", "tiny-evaluator"} - made == users


@pytest.mark.parametrize(
    ("tls", "said"), [("Disabled", "kubernetes.io/h2c"), ("Required", "https")]
)
def test_a_mesh_is_told_that_shards_speak_http_2(tls: str, said: str) -> None:
    (port,) = keyed(f"spec.syncer.tls.mode={tls}")["Service", "tiny-syncer-0"]["spec"]["ports"]
    assert port["appProtocol"] == said


@pytest.mark.parametrize(("reclaim", "owners"), [("Retain", []), ("Delete", ["job-uid"])])
def test_a_retained_claim_has_no_owner_and_argo_cd_takes_none_for_a_part_of_an_application(
    reclaim: str, owners: list[str]
) -> None:
    storage = f"spec.syncer.storage={{type: PersistentVolumeClaim, reclaim: {reclaim}}}"
    claim = keyed(storage)["PersistentVolumeClaim", "tiny-syncer-0"]["metadata"]
    assert [each["uid"] for each in claim.get("ownerReferences", [])] == owners
    assert "app.kubernetes.io/instance" not in claim["labels"]
    assert claim["labels"][Label.JOB] == "tiny"


def test_every_object_pod_and_selector_carries_the_uid_of_the_job() -> None:
    for child in keyed().values():
        selector = child.get("spec", {}).get("selector", {})
        selector = selector.get("matchLabels", selector)
        labels = [child["metadata"]["labels"], *([selector] if selector else [])]
        inner = child.get("spec", {}).get("template")
        if inner is not None:
            labels.append(inner["metadata"]["labels"])
            assert selector.items() <= labels[-1].items()
        assert {each[Label.JOB_UID] for each in labels} == {"job-uid"}


# ---------------------------------------------------------------- the user's templates and times


def test_pods_stay_for_five_minutes_on_a_node_whose_kubelet_is_away() -> None:
    """A lost node's pods are deleted by the operator; these seconds end healthy ones only."""
    for each in templates("spec.learner.template.spec.tolerations=[{key: gpu}]"):
        seconds = {
            found["key"].rpartition("/")[2]: found["tolerationSeconds"]
            for found in each["spec"]["tolerations"]
            if found["key"] != "gpu"
        }
        assert seconds == {"not-ready": 300, "unreachable": 300}


FIELDS = (
    "metadata.labels", "metadata.annotations", "spec.securityContext", "spec.containers",
    "spec.volumes", "spec.affinity", "spec.tolerations", "spec.nodeSelector",
    "spec.terminationGracePeriodSeconds", "spec.serviceAccountName",
)  # fmt: skip
OF_CONTAINERS = ("env", "args", "command", "volumeMounts", "securityContext")
NULLS = [f"{{}}.{field}=null" for field in FIELDS]
NULLS += [f"{{}}.spec.containers=[{{{{{field}: null}}}}]" for field in OF_CONTAINERS]


@pytest.mark.parametrize("change", NULLS)
def test_a_null_in_a_template_is_as_good_as_nothing(change: str) -> None:
    roles = ("learner", "syncer", "evaluator")
    assert templates(*(change.format(f"spec.{role}.template") for role in roles)) == templates()


def test_a_null_in_a_security_context_leaves_the_field_to_the_cluster() -> None:
    changed = keyed("spec.learner.template.spec.securityContext={runAsUser: null}")
    assert template(changed, *EAST)["spec"]["securityContext"]["runAsUser"] is None


def test_a_shard_that_reads_its_store_for_long_is_not_ended_for_its_silence() -> None:
    container = first_container(template(keyed(), *SHARD))
    start = container["startupProbe"]
    assert start["grpc"] == container["livenessProbe"]["grpc"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 3600


def test_a_shard_asks_for_a_share_of_the_cpu_unless_its_template_says_what() -> None:
    """Kubernetes gives a pod that asks for nothing what all others leave."""
    given = "spec.syncer.template.spec.containers=[{resources: {limits: {memory: 1Gi}}}]"
    found = [first_container(template(keyed(*change), *SHARD)) for change in ((), (given,))]
    asked = [each["resources"] for each in found]
    assert asked == [{"requests": {"cpu": "100m"}}, {"limits": {"memory": "1Gi"}}]
