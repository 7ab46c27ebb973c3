"""What a lab consists of: names, addresses and folders of its clusters and nodes."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll_protos.network.addresses import joined

ROOT = Path(__file__).resolve().parents[3]  # of the checkout
PREFIX = "atoll-"  # of every network namespace and link
BRIDGE = "atoll0"
CGROUP = "atoll"
PLANE_NET = "10.200.0.0/16"  # control planes and nodes of all clusters, on one bridge
PLANE_NET_IPV6 = "fd00:200::/64"  # the same of a lab that has IPv6 alone
CLUSTERS_MAX = 5
NODES_MAX = 60
SHARES = Path("/opt/share")  # in every container of every pod: folders of this machine


class LabError(Exception):
    """Something the caller can correct; the message names the remedy."""


def cache_folder() -> Path:
    """Return where everything lives: programs, images, and the running lab."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "atoll" / "cluster"


def run_folder() -> Path:
    """Return the folder of the one lab that may run on this machine."""
    return cache_folder() / "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of a cluster: a set of namespaces with its own kubelet and containerd."""

    cluster: int
    index: int
    name: str
    region: str
    ipv6: bool = False

    @property
    def short(self) -> str:
        return f"c{self.cluster}n{self.index}"

    @property
    def link(self) -> str:
        """Network namespace of the node, and the host's end of its cable."""
        return f"{PREFIX}{self.short}"

    @property
    def address(self) -> str:
        if self.ipv6:
            return f"fd00:200::{self.cluster}:{self.index}"
        return f"10.200.{self.cluster}.{self.index}"

    @property
    def pod_net(self) -> str:
        if self.ipv6:
            return f"fd00:{200 + 10 * self.cluster}:0:{self.index}::/64"
        return f"10.{200 + 10 * self.cluster}.{self.index}.0/24"

    @property
    def folder(self) -> Path:
        return run_folder() / f"c{self.cluster}" / self.short

    @property
    def cgroup(self) -> str:
        return f"{CGROUP}/{self.short}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One control plane and its nodes."""

    index: int
    nodes: tuple[Node, ...]
    ipv6: bool = False

    @property
    def name(self) -> str:
        return f"c{self.index}"

    @property
    def address(self) -> str:
        """Address of the API server and of DNS, on the bridge."""
        return f"fd00:200::{self.index}" if self.ipv6 else f"10.200.0.{self.index}"

    @property
    def server(self) -> str:
        return f"https://{joined(self.address, 6443)}"

    @property
    def pod_net(self) -> str:
        first = 200 + 10 * self.index
        return f"fd00:{first}::/32" if self.ipv6 else f"10.{first}.0.0/16"

    @property
    def service_net(self) -> str:
        first = 201 + 10 * self.index
        return f"fd00:{first}::/112" if self.ipv6 else f"10.{first}.0.0/16"

    @property
    def inner_net(self) -> str:
        """Pods and Services together."""
        first = 200 + 10 * self.index
        return f"fd00:{first}::/31" if self.ipv6 else f"10.{first}.0.0/15"

    def service_address(self, last: int) -> str:
        first = 201 + 10 * self.index
        return f"fd00:{first}::{last:x}" if self.ipv6 else f"10.{first}.0.{last}"

    def port(self, offset: int) -> int:
        """Return a port on loopback for a daemon that only this machine talks to."""
        return 22000 + 100 * self.index + offset

    @property
    def folder(self) -> Path:
        return run_folder() / self.name

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Everything that one `up` starts."""

    clusters: tuple[Cluster, ...]
    shares: Mapping[str, str] = field(default_factory=dict)
    ipv6: bool = False  # in place of IPv4
    checkout: str = str(ROOT)  # whose code runs in it

    @property
    def plane_net(self) -> str:
        return PLANE_NET_IPV6 if self.ipv6 else PLANE_NET

    def nodes(self) -> Iterator[Node]:
        for cluster in self.clusters:
            yield from cluster.nodes

    def node(self, name: str) -> Node:
        """Return the node of that name, or raise LabError naming those there are."""
        for node in self.nodes():
            if name in (node.name, node.short):
                return node
        known = ", ".join(node.name for node in self.nodes())
        raise LabError(f"no node {name!r}: there are {known}")

    def cluster_of(self, node: Node) -> Cluster:
        return self.clusters[node.cluster - 1]


def plan(
    nodes: Sequence[str],
    clusters: int,
    shares: Mapping[str, str],
    *,
    ipv6: bool = False,
) -> Lab:
    """Make a lab of command-line words; `nodes` has one for each cluster, the last for the rest."""
    if not 1 <= clusters <= CLUSTERS_MAX:
        raise LabError(f"--clusters {clusters}: 1 to {CLUSTERS_MAX}")
    if len(nodes) > clusters:
        raise LabError(f"--nodes is given {len(nodes)} times for {clusters} clusters")
    wanted = [_regions(nodes[min(i, len(nodes) - 1)]) for i in range(clusters)]
    return Lab(
        clusters=tuple(_cluster(i, regions, ipv6) for i, regions in enumerate(wanted, start=1)),
        shares=shares,
        ipv6=ipv6,
    )


def _regions(words: str) -> dict[str, int]:
    regions: dict[str, int] = {}
    for word in words.split(","):
        name, _, count = word.partition("=")
        if not name or not count.isdecimal() or name in regions:
            raise LabError(f"--nodes {words}: write region=count, like us-east=2,eu-west=1")
        regions[name] = int(count)
    if sum(regions.values()) > NODES_MAX:
        raise LabError(f"--nodes {words}: at most {NODES_MAX} nodes for each cluster")
    return regions


def _cluster(index: int, regions: Mapping[str, int], ipv6: bool) -> Cluster:
    places = [(region, n) for region, count in regions.items() for n in range(1, count + 1)]
    nodes = (
        Node(cluster=index, index=k, name=f"c{index}-{region}-{n}", region=region, ipv6=ipv6)
        for k, (region, n) in enumerate(places, start=1)
    )
    return Cluster(index=index, nodes=tuple(nodes), ipv6=ipv6)


def to_json(lab: Lab) -> str:
    """Write a lab down, for later commands and for the processes of its nodes."""
    document = {
        "clusters": [[[node.name, node.region] for node in c.nodes] for c in lab.clusters],
        "shares": dict(lab.shares),
        "ipv6": lab.ipv6,
        "checkout": lab.checkout,
    }
    return json.dumps(document, indent=1)


def from_json(text: str) -> Lab:
    """Read what to_json wrote."""
    document: dict[str, Any] = json.loads(text)
    ipv6 = document.get("ipv6", False)
    clusters = tuple(
        Cluster(
            index=i,
            nodes=tuple(
                Node(cluster=i, index=k, name=name, region=region, ipv6=ipv6)
                for k, (name, region) in enumerate(nodes, start=1)
            ),
            ipv6=ipv6,
        )
        for i, nodes in enumerate(document["clusters"], start=1)
    )
    return Lab(
        clusters=clusters,
        shares=document["shares"],
        ipv6=ipv6,
        checkout=document.get("checkout", ""),
    )
