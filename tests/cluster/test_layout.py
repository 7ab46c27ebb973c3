"""A lab's plan: names and addresses never collide, and mistakes are told with their remedy."""

import ipaddress
from itertools import combinations
from pathlib import Path

import pytest

from cluster.lab.binaries import BIN_VARIABLE
from cluster.lab.layout import CLUSTERS_MAX, LabError, from_json, plan, to_json
from cluster.lab.lifecycle import why_not

Net = ipaddress.IPv4Network | ipaddress.IPv6Network


def test_a_lab_comes_back_from_its_file_as_it_was() -> None:
    lab = plan(["us-east=2,eu-west=1", "eu-west=1"], 3, "default", ["here=/"])
    assert from_json(to_json(lab)) == lab
    lab = plan(["us-east=2"], 2, "fast", ipv6=True)
    assert from_json(to_json(lab)) == lab


def test_the_last_list_of_nodes_is_for_all_further_clusters() -> None:
    lab = plan(["us-east=2", "eu-west=1"], 3, "fast")
    assert [node.name for node in lab.nodes()] == [
        "c1-us-east-1",
        "c1-us-east-2",
        "c2-eu-west-1",
        "c3-eu-west-1",
    ]


@pytest.mark.parametrize("ipv6", [False, True])
def test_addresses_of_the_largest_lab_are_apart(ipv6: bool) -> None:
    lab = plan(["us-east=60"], CLUSTERS_MAX, "fast", ipv6=ipv6)
    machines = [cluster.address for cluster in lab.clusters] + [n.address for n in lab.nodes()]
    assert len(set(machines)) == len(machines)
    assert all(ipaddress.ip_address(a) in ipaddress.ip_network(lab.plane_net) for a in machines)
    nets = [ipaddress.ip_network(lab.plane_net)]
    nets += [ipaddress.ip_network(n) for c in lab.clusters for n in (c.pod_net, c.service_net)]
    assert not any(one.overlaps(other) for one, other in combinations(nets, 2))
    for cluster in lab.clusters:
        inner, whole = (ipaddress.ip_network(n) for n in (cluster.inner_net, cluster.pod_net))
        nets = [ipaddress.ip_network(node.pod_net) for node in cluster.nodes]
        assert not any(one.overlaps(other) for one, other in combinations(nets, 2))
        assert all(_lies_in(net, whole) for net in nets)
        assert _lies_in(whole, inner)
        assert _lies_in(ipaddress.ip_network(cluster.service_net), inner)
        assert ipaddress.ip_address(cluster.service_address(10)) in inner


def _lies_in(net: Net, other: Net) -> bool:
    return net.network_address in other and net.broadcast_address in other


def test_a_cluster_may_be_a_control_plane_alone() -> None:
    (cluster,) = plan(["us-east=0"], 1, "fast").clusters
    assert cluster.nodes == ()


@pytest.mark.parametrize(
    ("nodes", "clusters", "remedy"),
    [
        (["us-east"], 1, "region=count"),
        (["us-east=1,us-east=2"], 1, "region=count"),
        (["us-east=61"], 1, "at most 60"),
        (["us-east=1"], 6, "1 to 5"),
        (["us-east=1", "eu-west=1"], 1, "2 times for 1 clusters"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(nodes: list[str], clusters: int, remedy: str) -> None:
    with pytest.raises(LabError, match=remedy):
        plan(nodes, clusters, "fast")


def test_an_unknown_node_is_told_with_those_there_are() -> None:
    with pytest.raises(LabError, match="c1-us-east-1"):
        plan(["us-east=1"], 1, "fast").node("us-west-1")


def test_an_unknown_cluster_is_told_with_those_there_are() -> None:
    with pytest.raises(LabError, match="c1, c2"):
        plan(["us-east=1"], 2, "fast").cluster("c3")


def test_a_machine_without_the_programs_is_told_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(BIN_VARIABLE, str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "python tests/cluster prepare" in (why_not() or "")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in (why_not() or "")
