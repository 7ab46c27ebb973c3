"""The network policies: what a job needs is allowed, and nothing else of its traffic is.

`allowed` judges as Kubernetes does: without a policy for a pod and a direction everything is
allowed; with some, what one of them allows. Both ends have to allow a connection.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from atoll_operator.kube.names import HEALTH_PORT, METRICS_PORT, SHARD_PORT
from atoll_protos.names import Label
from chart.rendering import Rendered, named, of_kind, template
from unit.kube.cluster_values import children

ON, SERVED = "networkPolicy.enabled=true", "namespaces={team}"
JOBS = "networkPolicy.jobs"
ADDRESSES = {"data-store": "10.1.2.3", "internet": "198.51.100.7"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A pod, or with an address somebody outside of the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


def pods_of(*changes: str) -> dict[str, Peer]:
    """A job's pods by the name of the Deployment or StatefulSet that makes them."""
    return {
        each["metadata"]["name"]: Peer(
            namespace="team", labels=each["spec"]["template"]["metadata"]["labels"]
        )
        for each in children(*changes).objects()
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def hosts() -> list[Peer]:
    """The learners of a job of two hosts each."""
    pods = pods_of("spec.learner.hosts=2").values()
    return [each for each in pods if each.labels["atoll.dev/role"] == "learner"]


@pytest.fixture(scope="module")
def peers(helm: str) -> dict[str, Peer]:
    """Return a job's pods by role, as the operator renders them, and others."""
    found = {each.labels["atoll.dev/role"]: each for each in pods_of().values()}
    found["host"] = hosts()[-1]
    (deployment,) = of_kind(template(helm), "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    found["operator"] = Peer(namespace="atoll-system", labels=labels)
    found["somebody"] = Peer(namespace="team", labels={"app": "other"})
    found["impostor"] = Peer(namespace="another", labels=labels)
    found["other-shard"] = Peer(namespace="another", labels=found["shard"].labels)
    found["other-host"] = Peer(namespace="another", labels=found["host"].labels)
    return found | {name: Peer(address=address) for name, address in ADDRESSES.items()}


def allowed(policies: Rendered, source: Peer, target: Peer, port: int | str) -> bool:
    ends = (("Egress", source, target), ("Ingress", target, source))
    return all(_direction(policies, way, own, other, port) for way, own, other in ends)


def _direction(policies: Rendered, way: str, own: Peer, other: Peer, port: int | str) -> bool:
    found = [
        each["spec"]
        for each in policies
        if way in each["spec"]["policyTypes"]
        and each["metadata"]["namespace"] == own.namespace
        and _selects(each["spec"]["podSelector"], own.labels)
    ]
    peers, rules = ("to", "egress") if way == "Egress" else ("from", "ingress")
    return not found or any(
        (not rule.get("ports") or port in [each["port"] for each in rule["ports"]])
        and (not rule.get(peers) or any(_is(each, own, other) for each in rule[peers]))
        for spec in found
        for rule in spec.get(rules) or []
    )


def _is(described: Mapping[str, Any], own: Peer, other: Peer) -> bool:
    if "ipBlock" in described:
        block = ipaddress.ip_network(described["ipBlock"]["cidr"])
        return bool(other.address) and ipaddress.ip_address(other.address) in block
    if other.address:
        return False
    if "namespaceSelector" in described:
        labels = {"kubernetes.io/metadata.name": other.namespace}
        if not _selects(described["namespaceSelector"], labels):
            return False
    elif other.namespace != own.namespace:
        return False
    return _selects(described.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for each in selector.get("matchExpressions", []):
        assert each["operator"] in ("In", "Exists")
        if each["key"] not in labels or labels[each["key"]] not in each.get(
            "values", labels.values()
        ):
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def policies(helm: str, *sets: str) -> Rendered:
    return of_kind(template(helm, ON, SERVED, *sets), "NetworkPolicy")


@pytest.mark.parametrize(
    ("source", "targets"),
    [  # targets that are allowed, after `|` those that are not
        ("learner", f"shard:{SHARD_PORT} internet:53 | somebody:443 internet:443 data-store:443"),
        ("learner", f"| learner:{SHARD_PORT} other-shard:{SHARD_PORT} shard:22 host:29400"),
        ("learner", f"| shard:{METRICS_PORT + 1}"),
        ("evaluator", f"shard:{SHARD_PORT} | internet:443"),
        ("shard", f"shard:{SHARD_PORT} somebody:53 | internet:443 learner:{SHARD_PORT} host:29400"),
        ("operator", f"shard:{SHARD_PORT} internet:443 |"),  # the API server
        ("somebody", f"shard:{METRICS_PORT} operator:http | shard:{SHARD_PORT} operator:9999"),
        ("somebody", "| learner:80 host:29400"),
        # where the hosts of a learner meet; gloo and NCCL take any port
        ("host", f"host:29400 host:43210 shard:{SHARD_PORT} | learner:29400 other-host:29400"),
        ("host", "| internet:443"),
        ("impostor", f"| shard:{SHARD_PORT}"),
        ("internet", f"| shard:{SHARD_PORT}"),
    ],
)
def test_what_a_job_needs_is_allowed_and_nothing_else(
    helm: str, peers: dict[str, Peer], source: str, targets: str
) -> None:
    found, (needed, _, others) = policies(helm), targets.partition("|")
    for each in [*needed.split(), *others.split()]:
        target, _, name = each.partition(":")
        port = int(name) if name.isdigit() else name
        is_allowed = allowed(found, peers[source], peers[target], port)
        assert is_allowed == (each in needed.split()), each


def test_what_a_pods_node_asks_is_allowed(helm: str, peers: dict[str, Peer]) -> None:
    """Probes: some network plugins let no policy pass but for the node itself."""
    found, node = policies(helm), peers["internet"]
    (shard,) = named(children("spec.syncer.shards=1").objects(), "Deployment", "tiny-syncer-0")
    (container,) = shard["spec"]["template"]["spec"]["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    assert {SHARD_PORT, METRICS_PORT} <= ports
    for port in ports - {SHARD_PORT}:  # which the operator and the job's own pods dial
        assert allowed(found, node, peers["shard"], port)
    sets = of_kind(children("spec.learner.hosts=2").objects(), "StatefulSet")
    containers = [each["spec"]["template"]["spec"]["containers"][0] for each in sets]
    (port,) = {each["livenessProbe"]["httpGet"]["port"] for each in containers}
    assert allowed(found, node, peers["host"], port)
    assert not allowed(found, node, peers["learner"], port)


def test_policies_of_a_job_s_own_let_hosts_of_one_learner_reach_each_other_alone(
    helm: str, peers: dict[str, Peer]
) -> None:
    of_job = hosts()
    of_its_own = [f"{JOBS}.hostsOf[0].job=tiny", f"{JOBS}.hostsOf[0].regions.us-east=2",
                  f"{JOBS}.hostsOf[0].regions.eu-west=1"]  # fmt: skip
    closed, alone = f"{JOBS}.hosts=false", policies(helm, f"{JOBS}.hosts=false")
    found = policies(helm, closed, *of_its_own)
    first, second, *_ = of_job
    other = Peer(namespace="team", labels={**first.labels, Label.JOB: "other"})
    assert len(found) == len(alone) + len(of_job)
    assert allowed(found, first, first, 29400)
    assert allowed(found, first, peers["shard"], SHARD_PORT)
    assert allowed(found, peers["internet"], first, HEALTH_PORT)
    for stranger in (second, other, peers["learner"], peers["somebody"]):
        assert not allowed(found, first, stranger, 29400)
        assert not allowed(found, stranger, first, 29400)
        assert not allowed(found, stranger, first, 43210)
    assert not allowed(alone, first, first, 29400)  # nothing is open before they are there
    assert allowed(policies(helm, *of_its_own), first, second, 29400)  # what one allows is allowed


def test_what_a_platform_adds_is_allowed_too(helm: str, peers: dict[str, Peer]) -> None:
    found = policies(
        helm,
        f"{JOBS}.learnerEgress[0].to[0].ipBlock.cidr=10.1.0.0/16",
        f"{JOBS}.learnerEgress[0].ports[0].port=443",
        f"{JOBS}.shardEgress[0].to[0].ipBlock.cidr=198.51.100.0/24",
        f"{JOBS}.shardEgress[0].ports[0].port=443",
        f"{JOBS}.shardsFrom[0].ipBlock.cidr=198.51.100.0/24",
        f"{JOBS}.metricsFrom[0].podSelector.matchLabels.app=other",
    )
    assert allowed(found, peers["learner"], peers["data-store"], 443)
    assert not allowed(found, peers["learner"], peers["data-store"], 80)
    assert not allowed(found, peers["learner"], peers["internet"], 443)
    assert allowed(found, peers["shard"], peers["internet"], 443)  # its bucket
    assert not allowed(found, peers["shard"], peers["data-store"], 443)
    assert allowed(found, peers["internet"], peers["shard"], SHARD_PORT)
    assert allowed(found, peers["somebody"], peers["shard"], METRICS_PORT)
    assert not allowed(found, peers["impostor"], peers["shard"], METRICS_PORT)


def test_the_namespaces_of_an_install_that_serves_all_are_named(helm: str) -> None:
    found = of_kind(template(helm, ON), "NetworkPolicy")
    assert {each["metadata"]["namespace"] for each in found} == {"atoll-system"}
    found = of_kind(template(helm, ON, f"{JOBS}.namespaces={{one,two}}"), "NetworkPolicy")
    assert {each["metadata"]["namespace"] for each in found} == {"atoll-system", "one", "two"}
