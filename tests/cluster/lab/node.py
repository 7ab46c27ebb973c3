"""A node: its configuration files, and the program that is pid 1 in its namespaces."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.lab import cgroups
from cluster.lab.layout import SHARES, Cluster, Lab, Node
from cluster.lab.network import NETNS
from cluster.lab.processes import NODE_MARK, run, start

COMMAND = Path(__file__).resolve().parent.parent / "__main__.py"
PAUSE = "atoll.test/pause:1"
RESTART_SECONDS = 1.0

OWN_FOLDERS = (  # of which every node has its own
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/etc/cni/net.d",
    "/var/log/pods",
    "/var/log/containers",
)

CONTAINERD = """\
version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
"""
CONTAINERD_PODS = f"""\
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "%s"
"""


def configure(cluster: Cluster, node: Node, lab: Lab) -> None:
    """Write a node's files; its containerd folder comes from images.give_images."""
    for folder in OWN_FOLDERS:
        (node.folder / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    network = json.dumps(_pod_network(node), indent=1)
    (node.folder / "etc/cni/net.d/pods.conflist").write_text(network)
    base = node.folder / "container.json"
    base.write_text(json.dumps(_container(lab.shares)))
    (node.folder / "containerd.toml").write_text(CONTAINERD + CONTAINERD_PODS % base)
    (node.folder / "resolv.conf").write_text(f"nameserver {cluster.address}\n")
    (node.folder / "kubelet.json").write_text(json.dumps(_kubelet(cluster, node), indent=1))
    (node.folder / "kube-proxy.json").write_text(json.dumps(_proxy(cluster, node), indent=1))


def power_on(node: Node, programs: Path) -> None:
    """Start the node's pid 1, which starts the rest. It runs until its power is cut."""
    argv: list[str | Path] = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork"]
    argv += ["--kill-child", "--mount-proc", "--propagation", "private"]
    # Not `ip netns exec`: that unmounts /sys, and with it the control groups.
    argv += ["nsenter", f"--net={NETNS / node.link}"]
    argv += [sys.executable, COMMAND, "_node", node.name, programs]
    start(argv, node.folder / "log/init.log", {NODE_MARK: node.short})


def be_init(lab: Lab, node: Node, programs: Path) -> None:
    """Be pid 1: set up the machine, keep its daemons, adopt orphans. Never returns.

    A daemon that was killed stays dead until SIGUSR1 asks for it again. One that ends by itself
    is started again: a kubelet does so when containerd listens already, but is not ready yet.
    """
    assert os.getpid() == 1, "only for the first process of a pid namespace"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
    cgroups.join(node)
    socket.sethostname(node.name)
    _mount(node)
    daemons = _daemons(lab.cluster_of(node), node, programs)
    running = {"containerd": _start_daemon(node, daemons["containerd"])}
    while not Path("/run/containerd/containerd.sock").exists():
        if running["containerd"] in _reap():
            time.sleep(RESTART_SECONDS)
            running["containerd"] = _start_daemon(node, daemons["containerd"])
        time.sleep(0.02)
    while True:
        for name, argv in daemons.items():
            if name not in running:
                running[name] = _start_daemon(node, argv)
        asked = False
        while not asked:
            asked = signal.sigwait({signal.SIGCHLD, signal.SIGUSR1}) == signal.SIGUSR1
            ended = _reap()
            failed = [n for n, pid in running.items() if pid in ended and os.WIFEXITED(ended[pid])]
            running = {name: pid for name, pid in running.items() if pid not in ended}
            if failed:
                time.sleep(RESTART_SECONDS)
            running |= {name: _start_daemon(node, daemons[name]) for name in failed}


def _reap() -> dict[int, int]:
    """Wait status by pid of all that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _mount(node: Node) -> None:
    """Give the node its own folders, and an empty /run as after a boot."""
    own = {folder: str(node.folder / folder.lstrip("/")) for folder in OWN_FOLDERS}
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for target, source in own.items():
        Path(target).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", source, target)
    run("mount", "--make-rshared", "/")


def _daemons(cluster: Cluster, node: Node, programs: Path) -> dict[str, list[str | Path]]:
    labels = {
        "topology.kubernetes.io/region": node.region,
        "topology.kubernetes.io/zone": f"{node.region}-a",
    }
    return {
        "containerd": ["/usr/bin/containerd", "--config", node.folder / "containerd.toml"],
        "kubelet": [
            programs / "kubelet",
            f"--config={node.folder / 'kubelet.json'}",
            f"--kubeconfig={cluster.pki / node.short}.kubeconfig",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        ],
        "kube-proxy": [programs / "kube-proxy", f"--config={node.folder / 'kube-proxy.json'}"],
    }


def _start_daemon(node: Node, argv: list[str | Path]) -> int:
    log = str(node.folder / "log" / f"{Path(argv[0]).name}.log")
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [(os.POSIX_SPAWN_OPEN, 1, log, appending, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
    words = [str(word) for word in argv]
    return os.posix_spawn(
        words[0], words, os.environ, file_actions=files, setsid=True, setsigmask=()
    )


def _pod_network(node: Node) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "ipMasq": False,  # pods see one another's own addresses
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pod_net}]]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}


def _container(shares: Mapping[str, str]) -> dict[str, object]:
    """Return what every container starts from: containerd's default, with the shared folders.

    So no pod has to ask for them, which restricted pod security would refuse (hostPath).
    """
    container: dict[str, object] = json.loads(run("ctr", "oci", "spec"))
    mounts = container["mounts"]
    assert isinstance(mounts, list)
    for name, source in shares.items():
        mounts.append(
            {
                "destination": str(SHARES / name),
                "source": source,
                "type": "bind",
                "options": ["rbind", "ro", "nosuid", "nodev"],
            }
        )
    return container


def _kubelet(cluster: Cluster, node: Node) -> dict[str, object]:
    signals = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available",
               "imagefs.inodesFree")  # fmt: skip
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(cluster.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(cluster.pki / f"{node.short}.crt"),
        "tlsPrivateKeyFile": str(cluster.pki / f"{node.short}.key"),
        "clusterDNS": [cluster.service_address(10)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.folder / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
        "imageGCLowThresholdPercent": 99,
        "evictionHard": dict.fromkeys(signals, "0%"),
        "syncFrequency": "10s",
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
    }


def _proxy(cluster: Cluster, node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(cluster.pki / "kube-proxy.kubeconfig")},
        "clusterCIDR": cluster.pod_net,
        "hostnameOverride": node.name,
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # Only the machine's first network namespace may size the connection table.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "iptables": {"minSyncPeriod": "0s"},
    }
