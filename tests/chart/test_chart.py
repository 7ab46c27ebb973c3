"""The chart renders what it should: least rights, restricted pods, the CRD kept."""

import re
from typing import Any

import pytest
import yaml

from atoll_operator.cli.validate import checked
from atoll_operator.kube.edges.api import KINDS
from chart.rendering import CHART, Rendered, hooks, named, of_kind, rights, run, template
from unit.kube.cluster_values import children

OPERATOR = "atoll-system-atoll-operator"  # its cluster-wide objects
OF_PODS = {
    "regions", "regionLabel", "namespaces", "images", "serviceAccount", "resources",
    "priorityClassName", "nodeSelector", "tolerations", "affinity", "podAnnotations", "podLabels",
    "podSecurityContext", "securityContext", "podUser", "apiServer", "limits", "extraEnv",
    "fullnameOverride",
}  # fmt: skip
LEASE = "atoll-operator-lease"  # of the release's namespace


def deployment_of(found: Rendered) -> dict[str, Any]:
    (deployment,) = of_kind(found, "Deployment")
    spec: dict[str, Any] = deployment["spec"]
    return spec


def pod_of(found: Rendered) -> dict[str, Any]:
    """The spec of the operator's pod."""
    pod: dict[str, Any] = deployment_of(found)["template"]["spec"]
    return pod


def pods_of(found: Rendered) -> dict[str, Any]:
    """What makes new pods when it differs."""
    made: dict[str, Any] = deployment_of(found)["template"]
    notes = made["metadata"].get("annotations") or {}
    return {**made, "metadata": {**made["metadata"], "annotations": notes}}


def env_of(found: Rendered) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod_of(found)["containers"][0]["env"]}


def test_the_chart_is_clean(helm: str) -> None:
    done = run(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_crd_is_the_repositorys_and_outlives_the_release(rendered: Rendered) -> None:
    (found,) = of_kind(rendered, "CustomResourceDefinition")
    own = yaml.safe_load((CHART.parents[1] / "crds/decoupledtrainingjobs.yaml").read_text())
    assert found == own
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_no_right_is_a_wildcard_and_nodes_are_only_read(rendered: Rendered) -> None:
    roles = [*of_kind(rendered, "ClusterRole"), *of_kind(rendered, "Role")]
    rules = [rule for role in roles for rule in role["rules"]]
    assert any("nodes" in rule["resources"] for rule in rules)
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "nodes" not in rule["resources"] or {*rule["verbs"]} <= {"get", "list", "watch"}


def test_the_operator_may_apply_and_list_every_kind_of_child_but_lists_no_secrets(
    rendered: Rendered,
) -> None:
    (role,) = named(rendered, "ClusterRole", OPERATOR)
    found = rights(role)
    for kind, (version, plural) in KINDS.items():
        group = version.rpartition("/")[0]
        needed = {"get", "create", "delete"} if kind == "Pod" else {"get", "create", "patch"}
        assert needed | {"list", "watch"} <= found[group, plural], kind
    assert found["", "pods/status"] == {"patch"}
    assert found["", "secrets"] == {"get", "create", "patch", "delete"}


def test_the_operators_pod_is_restricted_and_gke_and_openshift_accept_it(
    rendered: Rendered,
) -> None:
    """GKE allows no system-cluster-critical outside of kube-system, OpenShift no fixed user."""
    pod = pod_of(rendered)
    (own,) = (each["securityContext"] for each in pod["containers"])
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert own == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "priorityClassName" not in pod


def test_values_reach_the_operators_pod(helm: str) -> None:
    found = template(
        helm, "priorityClassName=system-cluster-critical", "regions={us-east,eu-west}",
        "affinity.nodeAffinity.a=b", "replicas=1", "fullnameOverride=trainer",
        "serviceAccount.annotations.a=b", "extraEnv[0].name=X",
    )  # fmt: skip
    pod, (account,) = pod_of(found), of_kind(found, "ServiceAccount")
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["affinity"] == {"nodeAffinity": {"a": "b"}}
    assert deployment_of(found)["replicas"] == 1
    assert env_of(found)["ATOLL_OPERATOR_REGIONS"] == "us-east,eu-west"
    assert "X" in env_of(found)
    assert of_kind(found, "Deployment")[0]["metadata"]["name"] == "trainer"
    assert pod["serviceAccountName"] == account["metadata"]["name"] == "trainer"
    assert account["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize(
    "value",
    [
        "regions={us-east}", "regionLabel=a", "namespaces={one}", "images.operator=a",
        "images.worker=a", "images.syncer=a", "images.pullPolicy=Always", "images.pullSecrets={a}",
        "serviceAccount.annotations.a=b", "resources.limits.memory=1Gi", "priorityClassName=a",
        "nodeSelector.a=b", "tolerations[0].key=a", "affinity.nodeAffinity.a=b",
        "podAnnotations.a=b", "podLabels.a=b", "podSecurityContext.fsGroup=1",
        "securityContext.privileged=false", "podUser=1", "apiServer.requestsPerSecond=1",
        "apiServer.burst=1", "extraEnv[0].name=X", "fullnameOverride=a",
    ],
)  # fmt: skip
def test_a_value_that_concerns_the_operators_pods_makes_new_ones(
    helm: str, rendered: Rendered, value: str
) -> None:
    """Also one that another object has, which is read only when a pod is made."""
    assert pods_of(template(helm, value)) != pods_of(rendered)


def test_every_other_value_leaves_the_operators_pods_alone(helm: str, rendered: Rendered) -> None:
    others = (
        "replicas=1", "crds.install=false", "rbac.aggregate=false",
        "podDisruptionBudget.enabled=false", "networkPolicy.enabled=true",
        "metrics.service.enabled=true", "metrics.podMonitor.enabled=true",
    )  # fmt: skip
    assert pods_of(template(helm, *others)) == pods_of(rendered)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {re.split("[.=]", each)[0] for each in others} == values.keys() - OF_PODS


def test_with_named_namespaces_the_operator_has_rights_nowhere_else(helm: str) -> None:
    found = template(helm, "namespaces={one,two}")
    (wide,) = named(found, "ClusterRole", OPERATOR)
    assert rights(wide) == {("", "nodes"): {"list", "watch"}, ("", "namespaces"): {"get"}}
    assert wide["rules"][1]["resourceNames"] == ["one", "two"]
    roles = {each["metadata"]["namespace"]: each for each in named(found, "Role", OPERATOR)}
    assert roles.keys() == {"one", "two", "kube-node-lease"}
    (lease,) = named(found, "Role", LEASE)
    assert lease["metadata"]["namespace"] == "atoll-system"
    (everywhere,) = named(template(helm), "ClusterRole", OPERATOR)
    for name in ("one", "two"):
        assert rights(roles[name]) == {
            key: verbs for key, verbs in rights(everywhere).items() if key != ("", "nodes")
        }
    bound = {each["metadata"]["namespace"] for each in named(found, "RoleBinding", OPERATOR)}
    assert bound == roles.keys()
    assert env_of(found)["ATOLL_OPERATOR_NAMESPACES"] == "one,two"


def test_two_releases_of_one_name_in_two_namespaces_share_no_object(helm: str) -> None:
    """Where only the CRD may be common, which one of them installs."""
    one, two = (
        {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
            for each in yaml.safe_load_all(
                run(helm, "template", "atoll", str(CHART), "--namespace", namespace).stdout
            )
            if each and each["kind"] != "CustomResourceDefinition"
        }
        for namespace in ("one", "two")
    )
    assert one
    assert not one & two


def test_two_replicas_share_one_lease_which_alone_they_may_write(rendered: Rendered) -> None:
    spec = deployment_of(rendered)
    assert spec["replicas"] == 2
    assert spec["strategy"]["type"] == "RollingUpdate"
    assert env_of(rendered)["ATOLL_OPERATOR_LEASE"] == "atoll-system/atoll-operator"
    (role,) = named(rendered, "Role", LEASE)
    named_one, any_one = role["rules"]
    assert named_one["resourceNames"] == ["atoll-operator"]
    assert set(named_one["verbs"]) == {"get", "patch"}
    assert any_one["verbs"] == ["create"]
    (binding,) = named(rendered, "RoleBinding", LEASE)
    assert binding["metadata"]["namespace"] == "atoll-system"
    (account,) = of_kind(rendered, "ServiceAccount")
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]


def test_a_drain_evicts_one_replica_and_no_two_of_them_share_a_node(rendered: Rendered) -> None:
    (budget,) = of_kind(rendered, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1  # of one replica too: a drain is never blocked
    pod = deployment_of(rendered)["template"]
    anti = pod["spec"]["affinity"]["podAntiAffinity"]
    (term,) = anti["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = term["podAffinityTerm"]
    assert wanted["topologyKey"] == "kubernetes.io/hostname"
    for selector in (wanted["labelSelector"], budget["spec"]["selector"]):
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_extras_are_off_and_select_the_operators_pod_when_on(helm: str) -> None:
    assert not {"NetworkPolicy", "Service", "PodMonitor"} & {e["kind"] for e in template(helm)}
    switches = ("networkPolicy", "metrics.service", "metrics.podMonitor")
    found = template(helm, *(f"{each}.enabled=true" for each in switches))
    labels = deployment_of(found)["template"]["metadata"]["labels"].items()
    (policy,), (service,) = (of_kind(found, each) for each in ("NetworkPolicy", "Service"))
    operator, shards = of_kind(found, "PodMonitor")
    for selector in (
        policy["spec"]["podSelector"]["matchLabels"],
        service["spec"]["selector"], operator["spec"]["selector"]["matchLabels"],
    ):  # fmt: skip
        assert selector.items() <= labels
    (own,) = (
        each["spec"]["template"]["metadata"]["labels"]
        for each in named(children("spec.syncer.shards=1").objects(), "Deployment", "tiny-syncer-0")
    )
    assert shards["spec"]["selector"]["matchLabels"].items() <= own.items()
    ports = {each["name"] for each in pod_of(found)["containers"][0]["ports"]}
    assert operator["spec"]["podMetricsEndpoints"][0]["port"] in ports
    assert service["spec"]["ports"][0]["targetPort"] in ports


@pytest.mark.parametrize(
    ("sets", "namespace", "region"),
    [
        ((), "atoll-system", "test"),
        (("namespaces={one,two}", "regions={eu-west,eu-north}"), "one", "eu-west"),
    ],
)
def test_helm_test_trains_a_valid_job_in_a_namespace_that_is_served_with_rights_to_it_alone(
    helm: str, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], namespace: str, region: str
) -> None:
    found = hooks(helm, *sets)
    assert {each["metadata"]["namespace"] for each in found} == {namespace}
    (pod,), (role,) = of_kind(found, "Pod"), of_kind(found, "Role")
    (container,) = pod["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert (env["TEST_NAMESPACE"], env["TEST_REGION"]) == (namespace, region)
    named_one, any_one = role["rules"]
    assert named_one["resourceNames"] == [env["TEST_JOB"]]
    assert any_one["verbs"] == ["create"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (script,) = container["args"]
    assert script == (CHART / "files/test.py").read_text()
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    run_script: dict[str, Any] = {}
    exec(compile(script, "test.py", "exec"), run_script)
    job = checked(run_script["MANIFEST"])
    assert ([each.name for each in job.spec.regions], job.name) == ([region], env["TEST_JOB"])


@pytest.mark.parametrize(
    ("value", "create"),
    [
        ("replicas=2", "kubectl create -f -"),
        ("namespaces={one}", "kubectl -n one create -f -"),
        ("regions={eu-west}", "kubectl create -f -"),
    ],
)
def test_the_notes_name_the_next_steps_with_a_valid_job(helm: str, value: str, create: str) -> None:
    words = ("--namespace", "atoll-system", "--dry-run=client", "--set", value)
    notes = run(helm, "install", "atoll", str(CHART), *words).stdout.partition("NOTES:")[2]
    assert "helm test atoll --namespace atoll-system" in notes
    assert create in notes
    manifest = notes.partition("<<END\n")[2].partition("  END\n")[0]
    assert checked(yaml.safe_load(manifest)).name == "tiny"


def test_the_notes_warn_of_rights_and_of_an_open_network(helm: str) -> None:
    words = ("install", "atoll", str(CHART), "--namespace", "atoll-system", "--dry-run=client")
    notes, limited = (
        run(helm, *words, "--set", f"networkPolicy.enabled={value}").stdout
        for value in ("false", "true")
    )
    assert "may run any pod there" in notes
    assert "The network of operator and jobs is open" in notes
    assert "is open" not in limited
    remedy = "pod-security.kubernetes.io/enforce=restricted"
    page = (CHART.parent.parent / "docs/kubernetes.md").read_text()
    assert remedy in notes
    assert remedy in page


@pytest.mark.parametrize(
    ("words", "user"),
    [
        ((), "65532"),
        (("--set", "podUser=1000650000"), "1000650000"),
        (("--set-json", "podUser=1000650000"), "1000650000"),
        (("--set", "podUser="), ""),
    ],
)
def test_the_user_of_jobs_pods_is_a_value(helm: str, words: tuple[str, ...], user: str) -> None:
    done = run(helm, "template", "atoll", str(CHART), *words)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert env_of(found)["ATOLL_OPERATOR_POD_USER"] == user
