"""A job's children: names, what restarts whom, rights and placement of their pods."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.presets import Preset
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.objects import excluded_nodes, key_of
from atoll_operator.kube.plan.exclusions import Exclusions
from atoll_operator.kube.plan.phase import Running
from atoll_protos.errors import SpecError
from atoll_protos.expected import Expected, Limit
from atoll_protos.names import Label
from atoll_protos.run import RunFile
from unit.kube.cluster_values import SETTINGS
from unit.kube.cluster_values import children as builder


def children(*changes: str, **more: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {key_of(each): each for each in builder(*changes, **more).objects()}


def template(found: dict[tuple[str, str], dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    inner: dict[str, Any] = found[kind, name]["spec"]["template"]
    return inner


def test_a_job_has_these_children() -> None:
    names = {key for key in children() if key[0] not in ("ConfigMap",)}
    assert names == {
        ("ServiceAccount", "tiny-learner"),
        ("ServiceAccount", "tiny-syncer"),
        ("ServiceAccount", "tiny-evaluator"),
        ("PodDisruptionBudget", "tiny-syncer"),
        ("PodDisruptionBudget", "tiny-learner"),
        ("Service", "tiny-syncer-0"),
        ("Service", "tiny-syncer-1"),
        ("Service", "tiny-us-east"),
        ("Service", "tiny-eu-west"),
        ("Deployment", "tiny-syncer-0"),
        ("Deployment", "tiny-syncer-1"),
        ("Deployment", "tiny-evaluator"),
        ("StatefulSet", "tiny-us-east"),
        ("StatefulSet", "tiny-eu-west"),
    }


def test_the_same_job_is_applied_with_the_same_hash() -> None:
    assert children() == children()


@pytest.mark.parametrize("preset", Preset)
def test_more_learners_and_regions_change_no_template_that_would_restart_a_pod(
    preset: Preset,
) -> None:
    sync = f"spec.sync={{preset: {preset}}}"
    regions = "[{name: us-east, learners: 3}, {name: eu-west}, {name: new}]"
    few, many = children(sync), children(sync, f"spec.regions={regions}")
    for name in ("tiny-syncer-0", "tiny-syncer-1", "tiny-evaluator"):
        assert few["Deployment", name] == many["Deployment", name]
    assert many["StatefulSet", "tiny-us-east"]["spec"]["replicas"] == 3
    assert ("StatefulSet", "tiny-new") in many
    marks = [
        template(found, "StatefulSet", "tiny-us-east")["metadata"]["annotations"]
        for found in (few, many)
    ]
    assert marks[0][Annotation.TEMPLATE] == marks[1][Annotation.TEMPLATE]


def test_a_lost_node_is_excluded_and_restarts_no_pod() -> None:
    found = children(exclusions=Exclusions(nodes={"tiny-us-east": ("n1", "n2")}))
    pod = template(found, "StatefulSet", "tiny-us-east")
    assert excluded_nodes(pod) == ("n1", "n2")
    before = template(children(), "StatefulSet", "tiny-us-east")["metadata"]["annotations"]
    assert pod["metadata"]["annotations"][Annotation.TEMPLATE] == before[Annotation.TEMPLATE]
    assert excluded_nodes(template(found, "StatefulSet", "tiny-eu-west")) == ()


def test_a_set_is_changed_for_a_pod_that_kueue_is_to_let_go_of() -> None:
    found = children(exclusions=Exclusions(ended={"tiny-us-east": "uid-1", "tiny-eu-west": ""}))
    marks = [
        found["StatefulSet", name]["metadata"]["annotations"]
        for name in ("tiny-us-east", "tiny-eu-west")
    ]
    assert [each.get(Annotation.ENDED) for each in marks] == ["uid-1", None]


def test_the_log_s_end_is_the_last_word_of_a_container_that_wrote_no_other() -> None:
    for kind, name in (("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-syncer-0")):
        container = template(children(), kind, name)["spec"]["containers"][0]
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_new_image_is_another_template() -> None:
    image = "spec.learner={template: {spec: {containers: [{image: 'mine:2'}]}}}"
    marks = {
        template(found, "StatefulSet", "tiny-us-east")["metadata"]["annotations"][
            Annotation.TEMPLATE
        ]
        for found in (children(), children(image))
    }
    assert len(marks) == 2


def test_every_pod_is_restricted_and_has_no_credentials() -> None:
    for found in children().values():
        pod = found.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        container = pod["containers"][0]["securityContext"]
        assert container["allowPrivilegeEscalation"] is False
        assert container["capabilities"] == {"drop": ["ALL"]}
    accounts = [each for (kind, _), each in children().items() if kind == "ServiceAccount"]
    assert all(each["automountServiceAccountToken"] is False for each in accounts)


def test_a_learner_knows_its_slot_from_its_ordinal() -> None:
    container = template(children(), "StatefulSet", "tiny-eu-west")["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["ATOLL_SLOT"] == "$(ATOLL_REGION)-$(ATOLL_ORDINAL)"
    assert env["ATOLL_ENDPOINTS"] == "tiny-syncer-0.demo.svc:7700,tiny-syncer-1.demo.svc:7700"
    assert container["image"] == "worker:1"


def test_run_files_are_immutable_and_agree_on_the_run() -> None:
    files = [
        each
        for (kind, name), each in children().items()
        if kind == "ConfigMap" and name != "tiny-slots"
    ]
    assert all(each["immutable"] for each in files)
    assert len({RunFile.from_json(each["data"]["run.json"]).hash for each in files}) == 1


def test_shards_mount_the_list_of_learners_which_changes_in_place() -> None:
    regions = "spec.regions=[{name: us-east, learners: 3}, {name: new}]"
    few, many = children(), children("spec.syncer.startSeconds=7", regions)
    lists = [
        Expected.from_json(found["ConfigMap", "tiny-slots"]["data"]["slots.json"])
        for found in (few, many)
    ]
    assert lists[0].slots == {"us-east-0", "us-east-1", "eu-west-0"}
    assert lists[1].slots == {"us-east-0", "us-east-1", "us-east-2", "new-0"}
    assert [each.start_seconds for each in lists] == [30, 7]
    assert "immutable" not in many["ConfigMap", "tiny-slots"]
    for number in range(2):
        name = f"tiny-syncer-{number}"
        pod = template(many, "Deployment", name)["spec"]
        assert pod == template(few, "Deployment", name)["spec"]
        assert {"name": "atoll-slots", "configMap": {"name": "tiny-slots"}} in pod["volumes"]
        variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert variables["ATOLL_SLOTS_FILE"] == "/etc/atoll-slots/slots.json"
    order = [key_of(each)[1] for each in builder().objects()]
    assert order.index("tiny-slots") < order.index("tiny-us-east")


def test_the_most_tokens_of_a_step_reach_the_shards_and_restart_nobody() -> None:
    some = "spec.regions=[{name: us-east, learners: 2, tokensPerStep: 4096}, {name: eu-west}]"
    free, limited = children(), children(some)
    found = Expected.from_json(limited["ConfigMap", "tiny-slots"]["data"]["slots.json"])
    assert found.limits == (Limit(region="us-east", tokens_per_step=4096),)
    for kind, name in (("Deployment", "tiny-syncer-0"), ("StatefulSet", "tiny-us-east")):
        assert template(free, kind, name) == template(limited, kind, name)


def regions_of(pod: dict[str, Any]) -> list[list[str]]:
    """For each term of the required node affinity, the regions that it allows."""
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [
        expression["values"]
        for term in required.get("nodeSelectorTerms", [])
        for expression in term["matchExpressions"]
        if expression["key"] == SETTINGS.region_label
    ]


EU_WEST = "spec.regions=[{{name: us-east}}, {{name: eu-west, {}}}]"
TERMS = """spec.learner.template.spec.affinity={nodeAffinity: {
  requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchExpressions: [{key: gpu, operator: Exists}]},
    {matchExpressions: [{key: tpu, operator: Exists}]}]}}}"""


@pytest.mark.parametrize(
    "change",
    [
        "spec.seed=0",
        EU_WEST.format("podOverrides: {nodeSelector: {gpu: h100}}"),
        "spec.learner.template.spec={nodeSelector: {gpu: h100}}",
        TERMS,
    ],
)
def test_pods_go_to_their_regions_nodes_whatever_else_the_user_selects(change: str) -> None:
    pod = template(children(change), "StatefulSet", "tiny-eu-west")["spec"]
    allowed = regions_of(pod)
    assert len(allowed) == (2 if change == TERMS else 1)  # a node needs to match one term
    assert all(each == ["eu-west"] for each in allowed)
    assert pod.get("nodeSelector", {}) == ({"gpu": "h100"} if "h100" in change else {})


def test_a_region_that_says_so_takes_any_node_for_all_its_pods() -> None:
    found = children("spec.regions=[{name: us-east, nodes: Any}, {name: eu-west}]")
    for key in (
        ("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-syncer-0"),
        ("Deployment", "tiny-evaluator"),
    ):  # fmt: skip
        assert regions_of(template(found, *key)["spec"]) == []
    assert regions_of(template(found, "StatefulSet", "tiny-eu-west")["spec"]) == [["eu-west"]]


def test_no_two_objects_of_a_job_have_the_same_name_whatever_its_regions_are_called() -> None:
    problem = r"spec\.regions: a name begins with syncer or evaluator"
    for name in ("syncer", "syncer-0", "evaluator", "syncer-1-x"):
        with pytest.raises(SpecError, match=problem):
            children(f"spec.regions=[{{name: {name}}}]")
    for name in ("learner", "run", "a-syncer-0"):
        objects = builder(f"spec.regions=[{{name: {name}}}]").objects()
        assert len({key_of(each) for each in objects}) == len(objects)


def test_an_account_that_the_template_names_is_the_user_s_and_not_made() -> None:
    own = "spec.{}.template.spec.serviceAccountName=tiny-{}"
    accounts = {key for key in children() if key[0] == "ServiceAccount"}
    for role, named in (("learner", "learner"), ("syncer", "syncer"), ("evaluator", "evaluator")):
        left = {key for key in children(own.format(role, named)) if key[0] == "ServiceAccount"}
        assert accounts - left == {("ServiceAccount", f"tiny-{named}")}
    regions = "spec.regions=[{name: us-east, podOverrides: {serviceAccountName: mine}}"
    assert ("ServiceAccount", "tiny-learner") not in children(regions + "]")
    assert ("ServiceAccount", "tiny-learner") in children(regions + ", {name: eu-west}]")


def test_a_mesh_is_told_that_shards_speak_http_2() -> None:
    for mode, protocol in (("Disabled", "kubernetes.io/h2c"), ("Required", "https")):
        found = children(f"spec.syncer.tls.mode={mode}")
        (port,) = found["Service", "tiny-syncer-0"]["spec"]["ports"]
        assert port["appProtocol"] == protocol


def test_argo_cd_takes_no_claim_for_a_part_of_an_application() -> None:
    found = children("spec.syncer.storage={type: PersistentVolumeClaim}")
    labels = found["PersistentVolumeClaim", "tiny-syncer-0"]["metadata"]["labels"]
    assert "app.kubernetes.io/instance" not in labels
    assert labels[Label.JOB] == "tiny"


def test_an_install_makes_only_what_belongs_in_its_regions() -> None:
    found = children(settings=replace(SETTINGS, regions=("eu-west",)))
    assert ("StatefulSet", "tiny-eu-west") in found
    assert not {("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-syncer-0")} & found.keys()


def test_a_retained_claim_has_no_owner_and_a_deleted_one_has() -> None:
    storage = "spec.syncer.storage={{type: PersistentVolumeClaim, reclaim: {}}}"
    retained = children(storage.format("Retain"))["PersistentVolumeClaim", "tiny-syncer-0"]
    deleted = children(storage.format("Delete"))["PersistentVolumeClaim", "tiny-syncer-0"]
    assert "ownerReferences" not in retained["metadata"]
    assert deleted["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


def test_a_role_that_does_not_run_has_zero_replicas_not_deletion() -> None:
    found = children(running=Running(learners=False, shards=False, evaluator=False))
    assert found.keys() == children().keys()
    replicas = [
        each["spec"]["replicas"] for each in found.values() if "replicas" in each.get("spec", {})
    ]
    assert set(replicas) == {0}


def templates(*changes: str) -> list[dict[str, Any]]:
    specs = [each.get("spec", {}) for each in children(*changes).values()]
    return [spec["template"] for spec in specs if "template" in spec]


def test_pods_stay_for_five_minutes_on_a_node_whose_kubelet_is_away() -> None:
    """A lost node's pods are deleted by the operator; these seconds end healthy ones only."""
    for each in templates("spec.learner.template.spec.tolerations=[{key: gpu}]"):
        seconds = {
            found["key"].rpartition("/")[2]: found["tolerationSeconds"]
            for found in each["spec"]["tolerations"]
            if found["key"] != "gpu"
        }
        assert seconds == {"not-ready": 300, "unreachable": 300}


@pytest.mark.parametrize(
    "field",
    [
        "metadata.labels", "metadata.annotations", "spec.securityContext", "spec.containers",
        "spec.volumes", "spec.affinity", "spec.tolerations", "spec.nodeSelector",
        "spec.terminationGracePeriodSeconds", "spec.serviceAccountName",
    ],
)  # fmt: skip
def test_a_null_in_a_template_is_as_good_as_nothing(field: str) -> None:
    changes = [f"spec.{role}.template.{field}=null" for role in ("learner", "syncer", "evaluator")]
    assert templates(*changes) == templates()


@pytest.mark.parametrize("field", ["env", "args", "command", "volumeMounts", "securityContext"])
def test_a_null_in_a_container_is_as_good_as_nothing(field: str) -> None:
    change = f"spec.learner.template.spec.containers=[{{{field}: null}}]"
    assert templates(change) == templates()


def test_a_null_in_a_security_context_leaves_the_field_to_the_cluster() -> None:
    changed = children("spec.learner.template.spec.securityContext={runAsUser: null}")
    learners = template(changed, "StatefulSet", "tiny-us-east")
    assert learners["spec"]["securityContext"]["runAsUser"] is None


def selector_of(child: dict[str, Any]) -> dict[str, str]:
    found: dict[str, Any] = child.get("spec", {}).get("selector", {})
    return dict(found.get("matchLabels", found))


def test_every_object_pod_and_selector_carries_the_uid_of_the_job() -> None:
    for child in children().values():
        assert child["metadata"]["labels"][Label.JOB_UID] == "job-uid"
        inner = child.get("spec", {}).get("template")
        if inner is not None:
            assert inner["metadata"]["labels"][Label.JOB_UID] == "job-uid"
            assert selector_of(child).items() <= inner["metadata"]["labels"].items()
        selector = selector_of(child)
        assert not selector or selector[Label.JOB_UID] == "job-uid"


def test_what_an_earlier_version_has_made_goes_on_until_its_pods_carry_the_uid() -> None:
    names = frozenset({"tiny-us-east", "tiny-syncer-0"})
    live = {
        name: {key: text for key, text in selector_of(child).items() if key != Label.JOB_UID}
        for (kind, name), child in children().items()
        if kind in ("StatefulSet", "Deployment") and name in names
    }
    found = children(selectors=live, unmarked=names)
    for (kind, name), child in found.items():
        selector = selector_of(child)
        if not selector:
            continue
        earlier = name in names or kind == "PodDisruptionBudget"
        assert (Label.JOB_UID in selector) == (not earlier), name
        assert {Label.JOB, Label.ROLE} <= selector.keys()
    later = children(selectors=live)
    assert Label.JOB_UID not in selector_of(later["StatefulSet", "tiny-us-east"])
    for key in (("Service", "tiny-us-east"), ("PodDisruptionBudget", "tiny-learner")):
        assert Label.JOB_UID in selector_of(later[key])


def test_a_workload_that_a_later_version_has_made_keeps_its_selector() -> None:
    """Nothing can change a selector: after the operator went back, every apply would be refused."""
    for key in (("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-syncer-0")):
        live = {**selector_of(children()[key]), "atoll.dev/later": "x"}
        found = children(selectors={key[1]: live})[key]
        assert selector_of(found) == live
        assert live.items() <= found["spec"]["template"]["metadata"]["labels"].items()


def test_the_uid_as_a_label_restarts_no_pod_of_an_earlier_version() -> None:
    name = "tiny-syncer-0"
    new = template(children(), "Deployment", name)
    running = template(children(unlabelled=frozenset({name})), "Deployment", name)
    assert Label.JOB_UID not in running["metadata"]["labels"]
    hashes = [each["metadata"]["annotations"][Annotation.TEMPLATE] for each in (new, running)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("user", [1000, None])
def test_the_user_of_every_pod_is_a_setting_and_may_be_left_out(user: int | None) -> None:
    found = children(settings=replace(SETTINGS, pod_user=user))
    pods = [
        each["spec"]["template"]["spec"]
        for each in found.values()
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    assert len(pods) == 5
    for pod in pods:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        for name in ("runAsUser", "runAsGroup", "fsGroup"):
            assert security.get(name) == user
            assert (name in security) is (user is not None)


def test_a_shard_that_reads_its_store_for_long_is_not_ended_for_its_silence() -> None:
    (container,) = template(children(), "Deployment", "tiny-syncer-0")["spec"]["containers"]
    start = container["startupProbe"]
    assert start["grpc"] == container["livenessProbe"]["grpc"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 3600
