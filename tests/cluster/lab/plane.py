"""A control plane: etcd, API server, controller manager, scheduler and DNS, as plain processes."""

import functools
import time
from pathlib import Path

from cluster.lab import api
from cluster.lab.layout import Cluster
from cluster.lab.processes import CLUSTER_MARK, SECONDS_MAX, of_lab, start, wait_for

VOLUMES = 50

COREFILE = """\
.:53 {{
    bind {address}
    errors
    health 127.0.0.1:{health}
    ready 127.0.0.1:{ready}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""


# The requests of pods' accounts but for the system's, such as the operator's: who, what, when.
AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    userGroups: ["system:serviceaccounts:kube-system", "system:nodes", "system:masters"]
  - {level: Metadata, userGroups: ["system:serviceaccounts"]}
  - {level: None}
"""


def start_plane(cluster: Cluster, programs: Path) -> None:
    """Start all processes of a control plane and wait until its API server is ready."""
    _audit_policy(cluster).write_text(AUDIT)
    etcd, api_server, *others = _commands(cluster, programs)
    _start(cluster, etcd)
    _start(cluster, api_server)
    _wait(cluster, "API server", "/readyz", "kube-apiserver")
    _grant_dns(cluster)
    corefile = cluster.folder / "Corefile"
    corefile.write_text(
        COREFILE.format(
            address=cluster.address,
            health=cluster.port(4),
            ready=cluster.port(5),
            kubeconfig=cluster.pki / "coredns.kubeconfig",
        )
    )
    for command in others:
        _start(cluster, command)
    _offer_volumes(cluster)


def wait_until_usable(cluster: Cluster, programs: Path, seconds_max: float = SECONDS_MAX) -> None:
    """Wait until every node is Ready and pods can be made.

    What has ended by itself is started again, as a controller manager does that has waited 10 s
    for a slow API server.
    """
    log = cluster.folder / "log"
    commands = _commands(cluster, programs)

    def all_ready() -> bool:
        time.sleep(0.5)
        running = {process.name for process in of_lab() if process.cluster == cluster.name}
        for command in commands:
            if Path(command[0]).name not in running:
                _start(cluster, command)
        ready = api.ready_by_node(cluster)
        return all(ready.get(node.name) == "True" for node in cluster.nodes)

    wait_for(f"nodes of {cluster.name} Ready", all_ready, seconds_max, log)
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait(cluster, "ServiceAccount default", account, "kube-controller-manager")


def _commands(cluster: Cluster, programs: Path) -> list[list[str | Path]]:
    """What a control plane consists of, in the order in which it is started."""
    return [
        _etcd(cluster),
        [programs / "kube-apiserver", *_apiserver(cluster)],
        [programs / "kube-controller-manager", *_controller_manager(cluster)],
        [programs / "kube-scheduler", *_scheduler(cluster)],
        [programs / "coredns", "-conf", cluster.folder / "Corefile"],
    ]


def _start(cluster: Cluster, argv: list[str | Path]) -> None:
    log = cluster.folder / "log" / f"{Path(argv[0]).name}.log"
    start(argv, log, {CLUSTER_MARK: cluster.name})


def _wait(cluster: Cluster, what: str, path: str, program: str) -> None:
    log = cluster.folder / "log" / f"{program}.log"
    wait_for(f"{what} of {cluster.name}", lambda: api.is_there(cluster, path), SECONDS_MAX, log)


def _etcd(cluster: Cluster) -> list[str | Path]:
    client, peer = (f"http://127.0.0.1:{cluster.port(offset)}" for offset in (0, 1))
    return [
        "/usr/bin/etcd",
        f"--data-dir={cluster.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # what is in it does not outlive the lab
    ]


def _apiserver(cluster: Cluster) -> list[str | Path]:
    pki = cluster.pki
    return [
        f"--etcd-servers=http://127.0.0.1:{cluster.port(0)}",
        f"--bind-address={cluster.address}",
        f"--advertise-address={cluster.address}",
        "--secure-port=6443",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-cluster-ip-range={cluster.service_net}",
        "--enable-aggregator-routing=true",  # this machine has no kube-proxy of its own
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        f"--audit-policy-file={_audit_policy(cluster)}",
        f"--audit-log-path={audit_log(cluster)}",
    ]


def _audit_policy(cluster: Cluster) -> Path:
    return cluster.folder / "audit.yaml"


def audit_log(cluster: Cluster) -> Path:
    """Where the API server notes the requests that AUDIT names, one JSON object a line."""
    return cluster.folder / "log" / "audit.log"


def _with_kubeconfig(cluster: Cluster, program: str, port: int) -> list[str | Path]:
    file = cluster.pki / f"{program}.kubeconfig"
    return [
        f"--kubeconfig={file}",
        f"--authentication-kubeconfig={file}",
        f"--authorization-kubeconfig={file}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
    ]


def _controller_manager(cluster: Cluster) -> list[str | Path]:
    return [
        *_with_kubeconfig(cluster, "kube-controller-manager", cluster.port(2)),
        f"--service-account-private-key-file={cluster.pki}/sa.key",
        f"--root-ca-file={cluster.pki}/ca.crt",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={cluster.pki}/ca.crt",
        f"--cluster-signing-key-file={cluster.pki}/ca.key",
        "--allocate-node-cidrs=false",
    ]


def _scheduler(cluster: Cluster) -> list[str | Path]:
    return _with_kubeconfig(cluster, "kube-scheduler", cluster.port(3))


def _grant_dns(cluster: Cluster) -> None:
    """Let DNS read what it serves, and make it the Service `kube-dns`."""
    rules = [
        {"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]}
        for group, resources in (
            ("", ["endpoints", "services", "pods", "namespaces"]),
            ("discovery.k8s.io", ["endpointslices"]),
        )
    ]
    role = {"metadata": {"name": "system:coredns"}, "rules": rules}
    binding = {
        "metadata": {"name": "system:coredns"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:coredns",
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}
        ],
    }
    ports = [{"name": f"dns-{p}", "port": 53, "protocol": p.upper()} for p in ("udp", "tcp")]
    service = {
        "metadata": {"name": "kube-dns"},
        "spec": {"clusterIP": cluster.service_address(10), "ports": ports},
    }
    endpoints = {
        "metadata": {"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv6" if cluster.ipv6 else "IPv4",
        "endpoints": [{"addresses": [cluster.address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
    for path, body in (
        (f"{rbac}/clusterroles", role),
        (f"{rbac}/clusterrolebindings", binding),
        ("/api/v1/namespaces/kube-system/services", service),
        (slices, endpoints),
    ):
        _create(cluster, path, body)


def _offer_volumes(cluster: Cluster) -> None:
    """Offer volumes to claims that name no class: folders of this machine, as all nodes see it."""
    for number in range(1, VOLUMES + 1):
        folder = cluster.folder / "volumes" / str(number)
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # the kubelet changes no owner of a hostPath
        spec = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "hostPath": {"path": str(folder)},
        }
        volume = {"metadata": {"name": f"volume-{number}"}, "spec": spec}
        _create(cluster, "/api/v1/persistentvolumes", volume)


def _create(cluster: Cluster, path: str, body: api.Object) -> None:
    log = cluster.folder / "log" / "kube-apiserver.log"
    wait_for(
        f"creating {path}", functools.partial(api.create, cluster, path, body), SECONDS_MAX, log
    )
