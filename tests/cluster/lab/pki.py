"""Certificates and kubeconfigs of a cluster, made with openssl."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from cluster.lab.layout import Cluster, Node
from cluster.lab.processes import run

CONFIG = "[req]\ndistinguished_name=dn\n[dn]\n"  # openssl's own file adds CA extensions to leaves


def make_pki(cluster: Cluster) -> None:
    """Make every certificate, key and kubeconfig of a cluster, and the admin's last."""
    pki = cluster.pki
    pki.mkdir(parents=True)
    pki.chmod(0o700)
    (pki / "openssl.cnf").write_text(CONFIG)
    for authority in ("ca", "front-proxy-ca"):
        _request(pki, authority, f"/CN={cluster.name}-{authority}", _authority())
    names = ["DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"]
    names += ["DNS:kubernetes.default.svc.cluster.local", "DNS:localhost", "IP:127.0.0.1"]
    names += [f"IP:{cluster.address}", f"IP:{cluster.service_address(1)}"]
    _leaf(pki, "apiserver", "/CN=kube-apiserver", names)
    _leaf(pki, "apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    _leaf(pki, "front-proxy", "/CN=front-proxy-client", ca="front-proxy-ca")
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256",
        "-out", pki / "sa.key")  # fmt: skip
    run("openssl", "pkey", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub")
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        _leaf(pki, name, f"/CN=system:{name}")
        write_kubeconfig(cluster, name, pki / f"{name}.kubeconfig")
    for node in cluster.nodes:
        _make_node(cluster, node)
    _leaf(pki, "admin", "/O=system:masters/CN=admin")
    write_kubeconfig(cluster, "admin", cluster.kubeconfig)


def _make_node(cluster: Cluster, node: Node) -> None:
    """Make the certificate with which a kubelet both calls and serves."""
    subject = f"/O=system:nodes/CN=system:node:{node.name}"
    _leaf(cluster.pki, node.short, subject, [f"DNS:{node.name}", f"IP:{node.address}"])
    write_kubeconfig(cluster, node.short, cluster.pki / f"{node.short}.kubeconfig")


def _authority() -> list[str]:
    return ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign",
            "subjectKeyIdentifier=hash"]  # fmt: skip


def _leaf(
    pki: Path,
    name: str,
    subject: str,
    alternatives: Sequence[str] = (),
    ca: str = "ca",
) -> None:
    extensions = ["basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature"]
    extensions += ["extendedKeyUsage=serverAuth,clientAuth", "authorityKeyIdentifier=keyid"]
    if alternatives:
        extensions.append(f"subjectAltName={','.join(alternatives)}")
    _request(pki, name, subject, extensions, ca)


def _request(
    pki: Path, name: str, subject: str, extensions: Sequence[str], ca: str | None = None
) -> None:
    words: list[str | Path] = ["openssl", "req", "-x509", "-config", pki / "openssl.cnf"]
    words += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365"]
    words += ["-subj", subject, "-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt"]
    if ca is not None:
        words += ["-CA", pki / f"{ca}.crt", "-CAkey", pki / f"{ca}.key"]
    for extension in extensions:
        words += ["-addext", extension]
    run(*words)


def write_kubeconfig(cluster: Cluster, name: str, file: Path) -> None:
    """Write a kubeconfig that carries its certificates in it (JSON is YAML)."""

    def data(part: str) -> str:
        return base64.b64encode((cluster.pki / part).read_bytes()).decode()

    server = {"server": cluster.server, "certificate-authority-data": data("ca.crt")}
    user = {
        "client-certificate-data": data(f"{name}.crt"),
        "client-key-data": data(f"{name}.key"),
    }
    context = {"cluster": cluster.name, "user": name}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster.name, "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": cluster.name, "context": context}],
        "current-context": cluster.name,
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(document, indent=1))
