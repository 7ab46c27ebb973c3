"""What a region changes in its learners' template, as Kubernetes would merge it."""

from typing import Any

import pytest
import yaml

from atoll_operator.api.pods import PodOverrides
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.plan.overrides import CONTAINER, METADATA, POD, RENAMED, overridden
from unit.kube.cluster_values import children

TEMPLATE = yaml.safe_load("""
metadata: {labels: {team: a, tier: x}}
spec:
  serviceAccountName: plain
  securityContext: {runAsUser: 1000}
  affinity: {podAntiAffinity: {x: 1}, nodeAffinity: {y: 1}}
  nodeSelector: {gpu: h100}
  tolerations: [{key: gpu}]
  imagePullSecrets: [{name: hub}]
  topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1}]
  resourceClaims: [{name: gpus, resourceClaimTemplateName: h100}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data-us}}, {name: cache, emptyDir: {}}]
  initContainers: [{name: fetch, image: "fetch:1", env: [{name: FROM, value: us}], args: [all]}]
  containers:
    - name: train
      image: train:1
      command: [python]
      args: [a.py]
      env:
        - {name: BATCH, value: "32"}
        - {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}
      envFrom: [{configMapRef: {name: shared}}]
      resources: {limits: {nvidia.com/gpu: 8}}
      volumeMounts: [{name: data, mountPath: /data/in}, {name: cache, mountPath: /cache}]
      securityContext: {privileged: false}
    - {name: sidecar, image: "side:1"}
""")


def merged(overrides: str) -> dict[str, Any]:
    return overridden(TEMPLATE, PodOverrides.model_validate(yaml.safe_load(overrides)))


@pytest.mark.parametrize(
    ("overrides", "path", "expected"),
    [
        ("labels: {tier: y, queue: eu}", "metadata.labels", "{team: a, tier: y, queue: eu}"),
        ("annotations: {note: eu}", "metadata.annotations", "{note: eu}"),
        ("image: 'eu/train:1'", "container.image", "eu/train:1"),
        ("command: [python3]", "container.command", "[python3]"),
        ("args: [b.py]", "container.args", "[b.py]"),
        (
            "env: [{name: SECRET, value: open}, {name: NEW, value: '1'}]",
            "container.env",
            "[{name: BATCH, value: '32'}, {name: SECRET, value: open}, {name: NEW, value: '1'}]",
        ),
        (
            "envFrom: [{secretRef: {name: eu}}]",
            "container.envFrom",
            "[{configMapRef: {name: shared}}, {secretRef: {name: eu}}]",
        ),
        (
            "resources: {limits: {amd.com/gpu: 4}}",
            "container.resources",
            "{limits: {amd.com/gpu: 4}}",
        ),
        (
            "volumeMounts: [{name: ssd, mountPath: /cache}, {name: x, mountPath: /x}]",
            "container.volumeMounts",
            "[{name: data, mountPath: /data/in}, {name: ssd, mountPath: /cache},"
            " {name: x, mountPath: /x}]",
        ),
        (
            "containerSecurityContext: {runAsUser: 5}",
            "container.securityContext",
            "{privileged: false, runAsUser: 5}",
        ),
        (
            "volumes: [{name: data, persistentVolumeClaim: {claimName: data-eu}}]",
            "spec.volumes",
            "[{name: data, persistentVolumeClaim: {claimName: data-eu}},"
            " {name: cache, emptyDir: {}}]",
        ),
        (
            "initContainers: [{name: fetch, env: [{name: FROM, value: eu}]}, {name: more}]",
            "spec.initContainers",
            "[{name: fetch, image: 'fetch:1', env: [{name: FROM, value: eu}], args: [all]},"
            " {name: more}]",
        ),
        ("imagePullSecrets: [{name: eu}]", "spec.imagePullSecrets", "[{name: hub}, {name: eu}]"),
        (
            "resourceClaims: [{name: gpus, resourceClaimTemplateName: mi300}]",
            "spec.resourceClaims",
            "[{name: gpus, resourceClaimTemplateName: mi300}]",
        ),
        (
            "topologySpreadConstraints: [{topologyKey: zone, maxSkew: 2}, {topologyKey: rack}]",
            "spec.topologySpreadConstraints",
            "[{topologyKey: zone, maxSkew: 2}, {topologyKey: rack}]",
        ),
        ("tolerations: [{key: spot}]", "spec.tolerations", "[{key: gpu}, {key: spot}]"),
        ("nodeSelector: {gpu: a100, b: c}", "spec.nodeSelector", "{gpu: a100, b: c}"),
        (
            "affinity: {nodeAffinity: {z: 1}}",
            "spec.affinity",
            "{podAntiAffinity: {x: 1}, nodeAffinity: {z: 1}}",
        ),
        (
            "securityContext: {fsGroup: 7}",
            "spec.securityContext",
            "{runAsUser: 1000, fsGroup: 7}",
        ),
        ("serviceAccountName: eu", "spec.serviceAccountName", "eu"),
        ("priorityClassName: high", "spec.priorityClassName", "high"),
        ("runtimeClassName: kata", "spec.runtimeClassName", "kata"),
        ("schedulerName: volcano", "spec.schedulerName", "volcano"),
    ],
)
def test_a_region_changes_one_field_and_nothing_else(
    overrides: str, path: str, expected: str
) -> None:
    found = merged(overrides)
    part, _, name = path.partition(".")
    places = {
        each: {"metadata": template["metadata"], "spec": template["spec"],
               "container": template["spec"]["containers"][0]}
        for each, template in (("old", TEMPLATE), ("new", found))
    }  # fmt: skip
    assert places["new"][part][name] == yaml.safe_load(expected)
    places["new"][part].pop(name)
    rest = {key: value for key, value in places["old"][part].items() if key != name}
    assert {key: value for key, value in places["new"][part].items() if key != "containers"} == {
        key: value for key, value in rest.items() if key != "containers"
    }
    assert found["spec"]["containers"][1:] == TEMPLATE["spec"]["containers"][1:]


def test_every_field_of_pod_overrides_is_merged_by_a_rule_of_its_own() -> None:
    fields = {each.alias for each in PodOverrides.model_fields.values()}
    assert fields == METADATA.keys() | CONTAINER.keys() | POD.keys()
    assert RENAMED.keys() <= CONTAINER.keys()


def test_an_empty_value_as_an_older_api_server_stored_it_changes_nothing() -> None:
    stored = "{nodeSelector: {}, tolerations: [], resources: {}, env: [], priorityClassName: ''}"
    assert merged(stored) == TEMPLATE


def test_what_atoll_adds_comes_after_what_the_region_says() -> None:
    change = (
        "spec.regions=[{name: us-east}, {name: eu-west, podOverrides: {"
        "volumes: [{name: ssd, hostPath: {path: /ssd}}],"
        "volumeMounts: [{name: ssd, mountPath: /tmp}], serviceAccountName: eu,"
        "securityContext: {runAsUser: 7}, labels: {atoll.dev/job: other, queue: eu}}}]"
    )
    sets = {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in children(change).objects()
        if each["kind"] == "StatefulSet"
    }
    own, other = sets["tiny-eu-west"], sets["tiny-us-east"]
    mounts = {
        each["mountPath"]: each["name"] for each in own["spec"]["containers"][0]["volumeMounts"]
    }
    assert mounts["/tmp"] == "ssd"
    assert own["spec"]["serviceAccountName"] == "eu"
    assert own["spec"]["securityContext"]["runAsUser"] == 7
    assert own["spec"]["securityContext"]["runAsNonRoot"] is True
    assert own["metadata"]["labels"]["atoll.dev/job"] == "tiny"
    assert own["metadata"]["labels"]["queue"] == "eu"
    workloads = {
        each["metadata"]["name"]: each["metadata"]["labels"]
        for each in children(change).objects()
        if each["kind"] == "StatefulSet"
    }
    assert workloads["tiny-eu-west"]["queue"] == "eu"  # such as that of Kueue
    assert workloads["tiny-eu-west"]["atoll.dev/job"] == "tiny"
    assert "queue" not in workloads["tiny-us-east"]
    hashes = {each["metadata"]["annotations"][Annotation.TEMPLATE] for each in (own, other)}
    assert len(hashes) == 2
    assert "queue" not in other["metadata"]["labels"]


@pytest.mark.parametrize(
    ("labels", "says"), [("kueue.x-k8s.io/queue-name: team", "true"), ("queue: team", None)]
)
def test_kueue_hears_that_a_learner_on_a_lost_node_may_be_ended(
    labels: str, says: str | None
) -> None:
    made = children(f"spec.learner.template.metadata.labels={{{labels}}}").objects()
    sets = [each for each in made if each["kind"] == "StatefulSet"]
    for each in sets:
        annotations = each["spec"]["template"]["metadata"]["annotations"]
        assert annotations.get("kueue.x-k8s.io/safe-to-forcefully-terminate") == says
