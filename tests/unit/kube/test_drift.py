"""Drift: what differs from what is applied, and what a real API server only writes otherwise."""

import copy
from typing import Any

import pytest

from atoll_operator.kube.observed.objects import quantity
from atoll_operator.kube.plan.applied import drift
from unit.kube.cluster_values import children

STORAGE = "spec.syncer.storage={type: PersistentVolumeClaim, size: 1024Mi}"
USERS = """spec.learner.template.spec={
  nodeSelector: {gpu: h100},
  tolerations: [{key: gpu, operator: Exists}],
  securityContext: {runAsUser: null},
  containers: [{name: main, image: 'mine:1', ports: [{containerPort: 80}],
    resources: {limits: {cpu: 1500m, memory: 0.5Gi}}, env: [{name: A, value: ''}]}],
  volumes: [{name: data, emptyDir: {sizeLimit: 1024Ki}}]}"""


def objects() -> list[dict[str, Any]]:
    return children(STORAGE, USERS).objects()


def as_stored(child: dict[str, Any]) -> dict[str, Any]:
    """The object as an API server has it: with defaults, normalised, and without empty fields."""
    live = copy.deepcopy(child)
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "x"}]}
    live["metadata"]["labels"]["argocd.argoproj.io/instance"] = "theirs"
    live["metadata"]["annotations"]["mesh"] = "theirs"
    spec = live.get("spec", {})
    if live["kind"] == "Service":
        spec |= {"type": "ClusterIP", "sessionAffinity": "None", "ipFamilies": ["IPv4"]}
        for port in spec.get("ports", []):
            port["protocol"] = "TCP"
    if live["kind"] == "PersistentVolumeClaim":
        spec |= {"volumeMode": "Filesystem", "volumeName": "pv"}
        spec["resources"]["requests"]["storage"] = "1Gi"
    if "template" in spec:
        spec["progressDeadlineSeconds"] = 600
        pod = spec["template"]["spec"]
        spec["template"]["metadata"]["creationTimestamp"] = None
        pod |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
        pod["securityContext"] = {k: v for k, v in pod["securityContext"].items() if v is not None}
        pod["containers"] = [{"name": "istio-proxy", "image": "mesh:1"}, *pod["containers"]]
        own = pod["containers"][1]
        own["terminationMessagePath"] = "/dev/termination-log"
        own["env"] = [{k: v for k, v in each.items() if v != ""} for each in reversed(own["env"])]
        for port in own.get("ports", []):
            port["protocol"] = "TCP"
        if "limits" in own.get("resources", {}):
            own["resources"] = {"limits": {"cpu": "1500m", "memory": "512Mi"}}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                volume["configMap"]["defaultMode"] = 420
            if volume.get("emptyDir", {}).get("sizeLimit"):
                volume["emptyDir"]["sizeLimit"] = "1Mi"
    return live


def test_what_an_api_server_and_others_add_is_no_drift_of_any_child() -> None:
    for child in objects():
        assert drift(child, as_stored(child)) == (), child["kind"]


CHANGES: list[tuple[str, str, Any]] = [
    ("StatefulSet", "spec.replicas", 0),
    ("StatefulSet", "spec.updateStrategy.type", "RollingUpdate"),
    ("StatefulSet", "spec.template.spec.containers.1.image", "other:1"),
    ("StatefulSet", "spec.template.spec.containers.1.resources.limits.memory", "1Gi"),
    ("StatefulSet", "spec.template.spec.containers.1.env.0.value", "edited"),
    ("StatefulSet", "spec.template.spec.tolerations", []),
    ("StatefulSet", "spec.template.spec.nodeSelector.more", "x"),
    ("StatefulSet", "spec.template.metadata.labels", None),
    ("Deployment", "spec.replicas", 0),
    ("Deployment", "spec.strategy.type", "RollingUpdate"),
    ("Deployment", "spec.template.spec.volumes.1", {"name": "atoll-tmp", "hostPath": {}}),
    ("Service", "spec.selector.more", "selects nothing"),
    ("Service", "metadata.labels", {}),
    ("Service", "metadata.ownerReferences", []),
    ("PodDisruptionBudget", "spec.maxUnavailable", 0),
    ("PodDisruptionBudget", "spec.selector.matchExpressions", [{"key": "a", "operator": "Exists"}]),
    ("ServiceAccount", "automountServiceAccountToken", True),
    ("ConfigMap", "data", {}),
    ("PersistentVolumeClaim", "metadata.annotations", None),
]


@pytest.mark.parametrize(("kind", "path", "value"), CHANGES, ids=lambda each: str(each)[:40])
def test_a_change_of_any_applied_field_is_drift(kind: str, path: str, value: Any) -> None:
    child = [each for each in objects() if each["kind"] == kind][-1]
    live = as_stored(child)
    *above, last = path.split(".")
    place: Any = live
    for name in above:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
    assert drift(child, live)


def test_a_port_of_a_service_that_is_taken_away_is_drift_and_one_more_is_not() -> None:
    services = [each for each in objects() if each["kind"] == "Service"]
    child = next(each for each in services if "ports" in each["spec"])
    live = as_stored(child)
    live["spec"]["ports"].append({"name": "debug", "port": 1, "protocol": "TCP"})
    assert drift(child, live) == ()
    del live["spec"]["ports"][0]
    (found,) = drift(child, live)
    assert found.path == "spec.ports[7700,TCP]"


def test_what_the_server_writes_in_its_own_way_is_settled_until_it_changes() -> None:
    child, live = {"spec": {"a": "one"}}, {"spec": {"a": "ONE"}}
    (found,) = drift(child, live)
    settled = frozenset({found.mark})
    assert drift(child, live, settled) == ()
    assert drift(child, {"spec": {"a": "two"}}, settled)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1500m", "1.5"),
        ("1Gi", "1024Mi"),
        (2, "2"),
        ("1e3", "1k"),
        ("2E", "2e18"),
        ("100u", "0.1m"),
    ],
)
def test_quantities_are_compared_by_their_value(one: Any, other: Any) -> None:
    assert quantity(one) == quantity(other) is not None


def test_a_template_of_the_wrong_shape_is_left_to_the_api_server_to_refuse() -> None:
    wanted = {"spec": {"volumes": ["data"], "env": [{"value": "x"}], "ports": ["80"]}}
    assert drift(wanted, {"spec": {"volumes": [{"name": "data"}], "ports": 80}})


def test_a_word_is_no_quantity() -> None:
    assert quantity("large") is None
    assert quantity("1.2.3") is None
