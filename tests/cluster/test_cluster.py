"""The clusters that every other test of this folder stands on are real, and break as real ones."""

import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from cluster.conftest import NODES, LabCommand
from cluster.kubectl import Kubectl, until
from cluster.lab.archives import Image, write_archive
from cluster.lab.faults import WAYS
from cluster.manifests import SERVE, pod_spec, service, workload


def _python(kube: Kubectl, namespace: str, pod: str, program: str) -> str:
    return kube("-n", namespace, "exec", pod, "--", "python3", "-c", program).strip()


def _fetch(url: str) -> str:
    return f"import urllib.request as u; print(u.urlopen('{url}', timeout=5).status)"


def _until_answers(kube: Kubectl, namespace: str, url: str) -> None:
    """Endpoints, rules of kube-proxy and DNS follow some moments after a pod is Ready."""
    words = ("-n", namespace, "exec", "row-0", "--", "python3", "-c", _fetch(url))
    until(f"{url} answers", lambda: kube.attempt(*words).stdout.strip() == "200")


@pytest.fixture
def web(kube: Kubectl, namespace: str, worker_image: str) -> str:
    """Return the namespace of a Deployment `web` and a StatefulSet `row`, both Ready."""
    pod = pod_spec(worker_image, SERVE)
    kube.apply(
        namespace,
        workload("Deployment", "web", 2, pod),
        service("web"),
        workload("StatefulSet", "row", 3, pod),
        service("row", clusterIP="None"),
    )
    for each in ("deployment/web", "statefulset/row"):
        kube("-n", namespace, "rollout", "status", each, "--timeout=600s")
    return namespace


def test_every_node_is_ready_and_carries_its_region(lab: LabCommand, kube: Kubectl) -> None:
    nodes = kube.get("nodes")["items"]
    regions = sorted(node["metadata"]["labels"]["topology.kubernetes.io/region"] for node in nodes)
    assert regions == sorted(each for each, count in NODES.items() for _ in range(count))
    assert all(kube.node_is_ready(node["metadata"]["name"]) for node in nodes)


def test_status_names_kubeconfigs_namespaces_and_pids(lab: LabCommand) -> None:
    for cluster in lab.status()["clusters"]:
        assert Path(cluster["kubeconfig"]).exists()
        for node in cluster["nodes"]:
            assert Path("/run/netns", node["namespace"]).exists()
            assert {"init", "containerd", "kubelet", "kube-proxy"} <= node["pids"].keys()
            assert node["state"] == "on"


def test_up_again_changes_nothing_and_another_lab_is_refused(lab: LabCommand) -> None:
    before = lab.status()
    refused = lab.attempt("up", "--nodes", "mars=1")
    assert refused.returncode == 1
    assert "down" in refused.stderr
    assert lab.status() == before


def test_a_deployment_and_a_stateful_set_become_ready(kube: Kubectl, web: str) -> None:
    assert kube.get("-n", web, "deployment", "web")["status"]["readyReplicas"] == 2
    assert kube.get("-n", web, "statefulset", "row")["status"]["readyReplicas"] == 3
    assert kube("-n", web, "exec", "row-0", "--", "id", "-u").strip() == "65532"


def test_pods_find_one_another_by_name(kube: Kubectl, web: str) -> None:
    for name in ("web", f"web.{web}.svc.cluster.local", "row-1.row:8000", "row-2.row:8000"):
        _until_answers(kube, web, f"http://{name}/")
    resolve = "import socket; print(socket.gethostbyname('kubernetes.default'))"
    service = kube.get("service", "kubernetes")["spec"]["clusterIP"]
    assert _python(kube, web, "row-0", resolve) == service


def test_a_node_has_no_way_out_of_the_machine(lab: LabCommand) -> None:
    for node in lab.status()["clusters"][0]["nodes"]:
        inside = ["ip", "-n", node["namespace"], "route", "get", "198.51.100.1"]
        looked_up = subprocess.run(inside, capture_output=True, text=True, check=False)
        assert "unreachable" in looked_up.stderr


def test_an_image_loaded_into_running_nodes_can_be_used(
    lab: LabCommand, kube: Kubectl, namespace: str, tmp_path: Path
) -> None:
    layer, archive = tmp_path / "layer.tar", tmp_path / "new.oci"
    with tarfile.open(layer, "w") as tar:
        tar.add(f"{lab.status()['programs']}/pause", "hold")
    write_archive(archive, [Image(name="atoll.test/new:1", layers=[layer], config={"User": "1"})])
    lab("load", str(archive))
    pod = pod_spec("atoll.test/new:1", ["/hold"])
    del pod["containers"][0]["readinessProbe"]
    del pod["containers"][0]["workingDir"]
    kube.apply(namespace, workload("Deployment", "new", 2, pod))
    kube("-n", namespace, "rollout", "status", "deployment/new", "--timeout=600s")


def test_clusters_reach_each_other_by_node_port(
    lab: LabCommand, clusters: list[Kubectl], namespace: str, worker_image: str
) -> None:
    first, second = clusters
    pod = pod_spec(worker_image, SERVE)
    for kubectl in clusters:
        kubectl.apply(
            namespace, workload("StatefulSet", "row", 1, pod), service("row", type="NodePort")
        )
    for kubectl in clusters:
        kubectl("-n", namespace, "rollout", "status", "statefulset/row", "--timeout=600s")
    for here, there in ((first, second), (second, first)):
        (port,) = there.get("-n", namespace, "service", "row")["spec"]["ports"]
        for node in there.get("nodes")["items"][:2]:
            address = node["status"]["addresses"][0]["address"]
            _until_answers(here, namespace, f"http://{address}:{port['nodePort']}/")


def test_a_kubelet_that_ends_by_itself_is_started_again(lab: LabCommand, kube: Kubectl) -> None:
    name = "c1-eu-west-2"
    before = lab.node(name)["pids"]["kubelet"]
    os.kill(before, signal.SIGTERM)  # it exits; a kubelet that is cut gets SIGKILL
    until("another kubelet", lambda: lab.node(name)["pids"].get("kubelet", before) != before)
    until("Ready", lambda: kube.node_is_ready(name))


@pytest.mark.parametrize(("how", "region"), [*zip(WAYS, NODES, strict=True)])
def test_a_cut_node_is_not_ready_until_it_is_healed(
    lab: LabCommand, kube: Kubectl, how: str, region: str
) -> None:
    name = f"c1-{region}-1"
    state = {"network": "cut", "power": "off", "kubelet": "kubelet-dead"}[how]
    began = time.monotonic()
    lab("cut", name, "--how", how)
    try:
        assert lab.node(name)["state"] == state
        until(f"{name} not Ready", lambda: not kube.node_is_ready(name))
        lost_after = time.monotonic() - began
    finally:
        lab("heal", name)
    back_after = until(f"{name} Ready again", lambda: kube.node_is_ready(name))
    assert lab.node(name)["state"] == "on"
    print(f"{how}: not Ready after {lost_after:.1f} s, Ready {back_after:.1f} s after heal")  # noqa: T201
    others = [n["metadata"]["name"] for n in kube.get("nodes")["items"]]
    assert all(kube.node_is_ready(other) for other in others)
