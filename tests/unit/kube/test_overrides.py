"""What a region changes in its learners' template, as Kubernetes would merge it."""

import copy
from typing import Any

import pytest
import yaml

from atoll_operator.api.job.fields import PodOverrides
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.plan.pods import CONTAINER, METADATA, POD, RENAMED, overridden
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


# an override of a region, where it is found, and what is there instead of the template's
CASES = yaml.safe_load("""
- [labels: {tier: y, queue: eu}, metadata.labels, {team: a, tier: y, queue: eu}]
- [annotations: {note: eu}, metadata.annotations, {note: eu}]
- [image: "eu/train:1", container.image, "eu/train:1"]
- [command: [python3], container.command, [python3]]
- [args: [b.py], container.args, [b.py]]
- - env: [{name: SECRET, value: open}, {name: NEW, value: "1"}]
  - container.env
  - [{name: BATCH, value: "32"}, {name: SECRET, value: open}, {name: NEW, value: "1"}]
- - envFrom: [{secretRef: {name: eu}}]
  - container.envFrom
  - [{configMapRef: {name: shared}}, {secretRef: {name: eu}}]
- [resources: {limits: {amd.com/gpu: 4}}, container.resources, {limits: {amd.com/gpu: 4}}]
- - volumeMounts: [{name: ssd, mountPath: /cache}, {name: x, mountPath: /x}]
  - container.volumeMounts
  - [{name: data, mountPath: /data/in}, {name: ssd, mountPath: /cache}, {name: x, mountPath: /x}]
- - containerSecurityContext: {runAsUser: 5}
  - container.securityContext
  - {privileged: false, runAsUser: 5}
- - volumes: [{name: data, persistentVolumeClaim: {claimName: data-eu}}]
  - spec.volumes
  - [{name: data, persistentVolumeClaim: {claimName: data-eu}}, {name: cache, emptyDir: {}}]
- - initContainers: [{name: fetch, env: [{name: FROM, value: eu}]}, {name: more}]
  - spec.initContainers
  - - {name: fetch, image: "fetch:1", env: [{name: FROM, value: eu}], args: [all]}
    - {name: more}
- [imagePullSecrets: [{name: eu}], spec.imagePullSecrets, [{name: hub}, {name: eu}]]
- - resourceClaims: [{name: gpus, resourceClaimTemplateName: mi300}]
  - spec.resourceClaims
  - [{name: gpus, resourceClaimTemplateName: mi300}]
- - topologySpreadConstraints: [{topologyKey: zone, maxSkew: 2}, {topologyKey: rack}]
  - spec.topologySpreadConstraints
  - [{topologyKey: zone, maxSkew: 2}, {topologyKey: rack}]
- [tolerations: [{key: spot}], spec.tolerations, [{key: gpu}, {key: spot}]]
- [nodeSelector: {gpu: a100, b: c}, spec.nodeSelector, {gpu: a100, b: c}]
- - affinity: {nodeAffinity: {z: 1}}
  - spec.affinity
  - {podAntiAffinity: {x: 1}, nodeAffinity: {z: 1}}
- [securityContext: {fsGroup: 7}, spec.securityContext, {runAsUser: 1000, fsGroup: 7}]
- [serviceAccountName: eu, spec.serviceAccountName, eu]
- [priorityClassName: high, spec.priorityClassName, high]
- [runtimeClassName: kata, spec.runtimeClassName, kata]
- [schedulerName: volcano, spec.schedulerName, volcano]
""")


def merged(overrides: dict[str, Any]) -> dict[str, Any]:
    return overridden(TEMPLATE, PodOverrides.model_validate(overrides))


@pytest.mark.parametrize(("overrides", "path", "expected"), CASES, ids=lambda each: str(each)[:40])
def test_a_region_changes_one_field_and_nothing_else(
    overrides: dict[str, Any], path: str, expected: Any
) -> None:
    found, (part, name) = merged(overrides), path.split(".")

    def place(template: dict[str, Any]) -> Any:
        return template["spec"]["containers"][0] if part == "container" else template[part]

    assert place(found)[name] == expected
    wanted = copy.deepcopy(TEMPLATE)
    place(wanted)[name] = expected
    assert found == wanted


def test_every_field_of_pod_overrides_is_merged_by_a_rule_of_its_own() -> None:
    fields = {each.alias for each in PodOverrides.model_fields.values()}
    assert fields == METADATA.keys() | CONTAINER.keys() | POD.keys()
    assert RENAMED.keys() <= CONTAINER.keys()


def test_an_empty_value_as_an_older_api_server_stored_it_changes_nothing() -> None:
    empty: dict[str, Any] = {"nodeSelector": {}, "resources": {}, "tolerations": [], "env": []}
    assert merged(empty | {"priorityClassName": ""}) == TEMPLATE


def test_what_atoll_adds_comes_after_what_the_region_says() -> None:
    change = (
        "spec.regions=[{name: us-east}, {name: eu-west, podOverrides: {"
        "volumes: [{name: ssd, hostPath: {path: /ssd}}],"
        "volumeMounts: [{name: ssd, mountPath: /tmp}], serviceAccountName: eu,"
        "securityContext: {runAsUser: 7}, labels: {atoll.dev/job: other, queue: eu}}}]"
    )
    sets = {
        each["metadata"]["name"]: each
        for each in children(change).objects()
        if each["kind"] == "StatefulSet"
    }
    own, other = (sets[name]["spec"]["template"] for name in ("tiny-eu-west", "tiny-us-east"))
    assert {"name": "ssd", "mountPath": "/tmp"} in own["spec"]["containers"][0]["volumeMounts"]
    assert own["spec"]["serviceAccountName"] == "eu"
    security = own["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (7, True)
    for each in (own, sets["tiny-eu-west"]):  # a queue looks at the set's labels, too
        labels = each["metadata"]["labels"]
        assert (labels["atoll.dev/job"], labels["queue"]) == ("tiny", "eu")
    for each in (other, sets["tiny-us-east"]):
        assert "queue" not in each["metadata"]["labels"]
    hashes = {each["metadata"]["annotations"][Annotation.TEMPLATE] for each in (own, other)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("labels", "says"), [("kueue.x-k8s.io/queue-name: team", "true"), ("queue: team", None)]
)
def test_kueue_hears_that_a_learner_of_a_lost_node_may_end(labels: str, says: str | None) -> None:
    made = children(f"spec.learner.template.metadata.labels={{{labels}}}").objects()
    sets = [each for each in made if each["kind"] == "StatefulSet"]
    for each in sets:
        annotations = each["spec"]["template"]["metadata"]["annotations"]
        assert annotations.get("kueue.x-k8s.io/safe-to-forcefully-terminate") == says
