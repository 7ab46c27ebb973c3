"""A job's children: names, what restarts whom, rights and placement of their pods."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.presets import Preset
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observation import excluded_nodes, key_of
from atoll_operator.kube.plan.nodes import Exclusions
from atoll_operator.kube.plan.phase import Running
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


def test_a_pod_that_crashes_never_blocks_a_drain() -> None:
    budgets = [each for (kind, _), each in children().items() if kind == "PodDisruptionBudget"]
    assert budgets
    for budget in budgets:
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize(
    ("sync", "spare"),
    [("{quorum: 1}", 2), ("{quorum: 2}", 1), ("{quorum: 3}", 1), ("{preset: DiLoCo}", 1)],
)
def test_a_drain_takes_what_the_quorum_can_spare_of_all_regions_together(
    sync: str, spare: int
) -> None:
    spec = children(f"spec.sync={sync}")["PodDisruptionBudget", "tiny-learner"]["spec"]
    assert spec["maxUnavailable"] == spare
    assert spec["selector"] == {"matchLabels": {Label.JOB: "tiny", Label.ROLE: "learner"}}


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
    files = [each for (kind, _), each in children().items() if kind == "ConfigMap"]
    assert all(each["immutable"] for each in files)
    assert len({RunFile.from_json(each["data"]["run.json"]).hash for each in files}) == 1


def test_pods_go_to_their_regions_nodes_unless_the_user_selects_nodes() -> None:
    pod = template(children(), "StatefulSet", "tiny-eu-west")["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert expression["values"] == ["eu-west"]
    own = "spec.regions=[{name: us-east}, {name: eu-west, podOverrides: {nodeSelector: {a: b}}}]"
    pod = template(children(own), "StatefulSet", "tiny-eu-west")["spec"]
    assert pod["nodeSelector"] == {"a": "b"}
    assert "affinity" not in pod


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
    assert children(*changes) == children()


@pytest.mark.parametrize("field", ["env", "args", "command", "volumeMounts", "securityContext"])
def test_a_null_in_a_container_is_as_good_as_nothing(field: str) -> None:
    change = f"spec.learner.template.spec.containers=[{{{field}: null}}]"
    assert children(change) == children()


def test_a_null_in_a_security_context_leaves_the_field_to_the_cluster() -> None:
    changed = children("spec.learner.template.spec.securityContext={runAsUser: null}")
    learners = template(changed, "StatefulSet", "tiny-us-east")
    assert learners["spec"]["securityContext"]["runAsUser"] is None


def test_every_object_and_every_pod_carries_the_uid_of_the_job_and_no_selector_does() -> None:
    for child in children().values():
        assert child["metadata"]["labels"][Label.JOB_UID] == "job-uid"
        inner = child.get("spec", {}).get("template")
        if inner is not None:
            assert inner["metadata"]["labels"][Label.JOB_UID] == "job-uid"
        assert Label.JOB_UID not in str(child.get("spec", {}).get("selector", ""))


def test_the_uid_as_a_label_restarts_no_pod_of_an_earlier_version() -> None:
    name = "tiny-syncer-0"
    new = template(children(), "Deployment", name)
    running = template(children(unlabelled=frozenset({name})), "Deployment", name)
    assert Label.JOB_UID not in running["metadata"]["labels"]
    hashes = [each["metadata"]["annotations"][Annotation.TEMPLATE] for each in (new, running)]
    assert hashes[0] == hashes[1]
