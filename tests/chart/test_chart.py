"""The chart renders what it should: least rights, restricted pods, the CRD kept."""

from typing import Any

import pytest
import yaml

from atoll_operator.cli.reading import checked
from atoll_operator.kube.edges.api import KINDS
from chart.rendering import CHART, Rendered, hooks, named, of_kind, rights, run, template
from unit.kube.cluster_values import children

OPERATOR = "atoll-system-atoll-operator"  # its cluster-wide objects
LEASE = "atoll-operator-lease"  # of the release's namespace


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
    (role,) = named(rendered, "ClusterRole", OPERATOR)
    for kind, (version, plural) in KINDS.items():
        group = version.rpartition("/")[0]
        needed = {"get", "create", "delete"} if kind == "Pod" else {"get", "create", "patch"}
        assert needed | {"list", "watch"} <= rights(role)[group, plural], kind
    assert rights(role)["", "pods/status"] == {"patch"}


def test_secrets_are_read_and_written_by_name_and_never_listed(rendered: Rendered) -> None:
    (role,) = named(rendered, "ClusterRole", OPERATOR)
    found = rights(role)
    assert found["", "secrets"] == {"get", "create", "patch", "delete"}
    assert found["cert-manager.io", "certificates"] == {"get", "create", "patch", "delete"}


def test_nodes_and_taints_are_out_of_reach(rendered: Rendered) -> None:
    for rule in (rule for role in of_kind(rendered, "ClusterRole") for rule in role["rules"]):
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


def test_regions_reach_the_operator(helm: str) -> None:
    done = run(helm, "template", "atoll", str(CHART), "--set", "regions={us-east,eu-west}")
    (deployment,) = [e for e in yaml.safe_load_all(done.stdout) if e and e["kind"] == "Deployment"]
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "ATOLL_OPERATOR_REGIONS", "value": "us-east,eu-west"} in env


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
    (deployment,) = of_kind(found, "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "ATOLL_OPERATOR_NAMESPACES", "value": "one,two"} in env


def test_two_releases_of_one_name_in_two_namespaces_share_no_object(helm: str) -> None:
    """Where only the CRD may be common, which one of them installs."""
    keys = []
    for namespace in ("one", "two"):
        done = run(helm, "template", "atoll", str(CHART), "--namespace", namespace)
        found = [each for each in yaml.safe_load_all(done.stdout) if each]
        keys.append(
            {
                (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
                for each in found
                if each["kind"] != "CustomResourceDefinition"
            }
        )
    assert keys[0]
    assert not keys[0] & keys[1]


def test_two_replicas_share_one_lease_which_alone_they_may_write(rendered: Rendered) -> None:
    (deployment,) = of_kind(rendered, "Deployment")
    spec = deployment["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["type"] == "RollingUpdate"
    env = spec["template"]["spec"]["containers"][0]["env"]
    assert {"name": "ATOLL_OPERATOR_LEASE", "value": "atoll-system/atoll-operator"} in env
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
    (deployment,) = of_kind(rendered, "Deployment")
    pod = deployment["spec"]["template"]
    anti = pod["spec"]["affinity"]["podAntiAffinity"]
    (term,) = anti["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = term["podAffinityTerm"]
    assert wanted["topologyKey"] == "kubernetes.io/hostname"
    for selector in (wanted["labelSelector"], budget["spec"]["selector"]):
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_users_affinity_takes_the_place_of_the_charts(helm: str) -> None:
    found = template(helm, "affinity.nodeAffinity.a=b", "replicas=1")
    (deployment,) = of_kind(found, "Deployment")
    assert deployment["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {"a": "b"}}
    assert deployment["spec"]["replicas"] == 1


def test_the_extras_are_off_and_select_the_operators_pod_when_on(helm: str) -> None:
    extras = {"NetworkPolicy", "Service", "PodMonitor"}
    assert not extras & {each["kind"] for each in template(helm)}
    switches = ("networkPolicy", "metrics.service", "metrics.podMonitor")
    found = template(helm, *(f"{each}.enabled=true" for each in switches), "extraEnv[0].name=X")
    (deployment,) = of_kind(found, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    (policy,) = of_kind(found, "NetworkPolicy")
    (service,) = of_kind(found, "Service")
    operator, shards = of_kind(found, "PodMonitor")
    for selector in (
        policy["spec"]["podSelector"]["matchLabels"],
        service["spec"]["selector"], operator["spec"]["selector"]["matchLabels"],
    ):  # fmt: skip
        assert selector.items() <= labels
    (own,) = (each["spec"]["template"]["metadata"]["labels"] for each in shard_deployments())
    assert shards["spec"]["selector"]["matchLabels"].items() <= own.items()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {each["name"] for each in container["ports"]}
    assert operator["spec"]["podMetricsEndpoints"][0]["port"] in ports
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert {"name": "X"} in container["env"]


def shard_deployments() -> list[dict[str, Any]]:
    objects = children("spec.syncer.shards=1").objects()
    return [each for each in objects if each["metadata"]["name"] == "tiny-syncer-0"
            and each["kind"] == "Deployment"]  # fmt: skip


def test_the_name_of_all_objects_is_a_value(helm: str) -> None:
    found = template(helm, "fullnameOverride=trainer", "serviceAccount.annotations.a=b")
    (deployment,) = of_kind(found, "Deployment")
    (account,) = of_kind(found, "ServiceAccount")
    assert deployment["metadata"]["name"] == "trainer"
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "trainer"
    assert (account["metadata"]["name"], account["metadata"]["annotations"]) == (
        "trainer", {"a": "b"},
    )  # fmt: skip


def test_helm_test_trains_in_a_namespace_that_is_served_with_rights_to_one_job(helm: str) -> None:
    for sets, namespace, region in (
        ((), "atoll-system", "test"),
        (("namespaces={one,two}", "regions={eu-west,eu-north}"), "one", "eu-west"),
    ):
        found = hooks(helm, *sets)
        assert {each["metadata"]["namespace"] for each in found} == {namespace}
        (pod,) = of_kind(found, "Pod")
        (container,) = pod["spec"]["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert (env["TEST_NAMESPACE"], env["TEST_REGION"]) == (namespace, region)
        (role,) = of_kind(found, "Role")
        named_one, any_one = role["rules"]
        assert named_one["resourceNames"] == [env["TEST_JOB"]]
        assert any_one["verbs"] == ["create"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_job_of_helm_test_is_valid(helm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (pod,) = of_kind(hooks(helm, "regions={eu-west}"), "Pod")
    (container,) = pod["spec"]["containers"]
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each["value"])
    (script,) = container["args"]
    assert script == (CHART / "files/test.py").read_text()
    found: dict[str, Any] = {}
    exec(compile(script, "test.py", "exec"), found)
    job = checked(found["MANIFEST"])
    assert [each.name for each in job.spec.regions] == ["eu-west"]
    assert job.name == "atoll-operator-test"


def test_the_notes_name_the_next_steps_in_a_namespace_that_is_served(helm: str) -> None:
    words = ("install", "atoll", str(CHART), "--namespace", "atoll-system", "--dry-run=client")
    notes = run(helm, *words).stdout.partition("NOTES:")[2]
    assert "helm test atoll --namespace atoll-system" in notes
    assert "kubectl create -f -" in notes
    notes = run(helm, *words, "--set", "namespaces={one}").stdout.partition("NOTES:")[2]
    assert "kubectl -n one create -f -" in notes


def test_the_job_of_the_notes_is_valid(helm: str) -> None:
    words = ("install", "atoll", str(CHART), "--namespace", "atoll-system", "--dry-run=client")
    for more in ((), ("--set", "regions={eu-west}")):
        notes = run(helm, *words, *more).stdout.partition("NOTES:")[2]
        manifest = notes.partition("<<END\n")[2].partition("  END\n")[0]
        assert checked(yaml.safe_load(manifest)).name == "tiny"


@pytest.mark.parametrize(
    ("words", "user"),
    [
        ((), "65532"),
        (("--set", "podUser=1000650000"), "1000650000"),
        (("--set-json", "podUser=1000650000"), "1000650000"),
        (("--set", "podUser="), ""),
        (("--set", "podUser=null"), "65532"),
    ],
)
def test_the_user_of_jobs_pods_is_a_value(helm: str, words: tuple[str, ...], user: str) -> None:
    done = run(helm, "template", "atoll", str(CHART), *words)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    (deployment,) = of_kind(found, "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "ATOLL_OPERATOR_POD_USER", "value": user} in env
