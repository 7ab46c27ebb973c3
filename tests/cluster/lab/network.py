"""Bridge, cables and routes of a lab. Nothing that a lab sends may ever leave this machine."""

import ipaddress
import json
import subprocess
from pathlib import Path

from cluster.lab.layout import BRIDGE, PREFIX, Cluster, Lab, LabError, Node
from cluster.lab.processes import run

GUARD_METRIC = 4096  # worse than every real route, better than the machine's default route
NETNS = Path("/run/netns")


def lay(lab: Lab) -> None:
    """Build the network of all clusters; the unreachable routes come before anything else."""
    _refuse_overlap(lab)
    for net in _guarded(lab):
        run("ip", "route", "replace", "unreachable", net, "metric", str(GUARD_METRIC))
    lines = [f"link add {BRIDGE} type bridge"]
    lines += [f"address add {_on_bridge(cluster)} dev {BRIDGE}" for cluster in lab.clusters]
    lines += [f"link set {BRIDGE} up"]
    run("ip", "-batch", "-", stdin="\n".join(lines))
    for cluster in lab.clusters:
        wire(cluster)


def wire(cluster: Cluster) -> None:
    """Give the nodes of a cluster their cables."""
    for node in cluster.nodes:
        lines = [
            f"netns add {node.link}",
            f"link add {node.link} type veth peer name eth0 netns {node.link}",
            f"link set {node.link} master {BRIDGE} up",
            f"route replace {node.pod_net} via {node.address}",
        ]
        run("ip", "-batch", "-", stdin="\n".join(lines))
        _wire_node(cluster, node)


def _wire_node(cluster: Cluster, node: Node) -> None:
    """Set up a node's own end; it has no default route, so its pods cannot reach the world."""
    lines = [
        "link set lo up",
        f"address add {_on_bridge(node)} dev eth0",
        "link set eth0 up",
        # A Service's address must have a route before kube-proxy's rules replace it.
        f"route add {cluster.service_net} via {cluster.address}",
    ]
    lines += [
        f"route add {other.pod_net} via {other.address}" for other in cluster.nodes if other != node
    ]
    run("ip", "-n", node.link, "-batch", "-", stdin="\n".join(lines))
    inside = ["nsenter", f"--net={NETNS / node.link}"]
    run(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0",
        "net.ipv4.conf.default.rp_filter=0", "net.ipv4.conf.eth0.rp_filter=0",
        *(["net.ipv6.conf.all.forwarding=1"] if node.ipv6 else []))  # fmt: skip
    # Other clusters have no route to this one's pods: they see the node's address.
    run(*inside, _tables(node), "-t", "nat", "-A", "POSTROUTING", "-s", node.pod_net,
        "!", "-d", cluster.pod_net, "-j", "MASQUERADE")  # fmt: skip


def cut(node: Node) -> None:
    """Unplug the cable at the bridge; at the node's end that would lose its routes."""
    run("ip", "link", "set", node.link, "down")


def heal(node: Node) -> None:
    run("ip", "link", "set", node.link, "up")


def is_cut(node: Node) -> bool:
    """Return whether the node's cable is unplugged."""
    return "UP" not in json.loads(run("ip", "-j", "link", "show", "dev", node.link))[0]["flags"]


def _tables(node: Node) -> str:
    return "ip6tables" if node.ipv6 else "iptables"


def tear_down() -> None:
    """Remove all that `lay` may have made, known by name alone; the guards last."""
    for link in json.loads(run("ip", "-j", "link", "show")):
        if link["ifname"].startswith(PREFIX) or link["ifname"] == BRIDGE:
            subprocess.run(
                ["ip", "link", "delete", link["ifname"]], capture_output=True, check=False
            )
    for space in NETNS.glob(f"{PREFIX}*"):
        run("ip", "netns", "delete", space.name)
    for route in _routes():
        if route.get("type") == "unreachable" and route.get("metric") == GUARD_METRIC:
            words = ("ip", "route", "delete", "unreachable", str(route["dst"]))
            run(*words, "metric", str(GUARD_METRIC))


def forget_netns_folder() -> None:
    """Undo the mount that `ip netns add` leaves behind when no namespace is left."""
    if NETNS.exists() and not any(NETNS.iterdir()):
        subprocess.run(["umount", str(NETNS)], capture_output=True, check=False)
        NETNS.rmdir()


def _on_bridge(machine: Cluster | Node) -> str:
    """The address of a machine, with the length of the prefix that all of them share."""
    if machine.ipv6:
        return f"{machine.address}/64 nodad"
    return f"{machine.address}/16"


def _guarded(lab: Lab) -> list[str]:
    return [lab.plane_net, *(cluster.inner_net for cluster in lab.clusters)]


def _routes() -> list[dict[str, object]]:
    """Of both families."""
    found: list[dict[str, object]] = []
    for family in ("-4", "-6"):
        found += json.loads(run("ip", "-j", family, "route", "show"))
    return found


def _refuse_overlap(lab: Lab) -> None:
    for route in _routes():
        if route["dst"] == "default":
            continue
        other = ipaddress.ip_network(str(route["dst"]))
        for net in _guarded(lab):
            wanted = ipaddress.ip_network(net)
            if other.version == wanted.version and other.overlaps(wanted):
                raise LabError(
                    f"this machine has a route to {other}; the lab needs {net} for itself"
                )
