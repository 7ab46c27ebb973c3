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
from atoll_operator.kube.policies import of_hosts
from atoll_protos.names import Label
from chart.rendering import Rendered, of_kind, template
from unit.kube.cluster_values import children, job

ON, SERVED = "networkPolicy.enabled=true", "namespaces={team}"
JOBS = "networkPolicy.jobs"
ADDRESSES = {"data store": "10.1.2.3", "internet": "198.51.100.7"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A pod, or with an address somebody outside of the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


@pytest.fixture(scope="module")
def peers(helm: str) -> dict[str, Peer]:
    """Return a job's pods by role, as the operator renders them, and others."""
    found = {}
    for each in children().objects():
        if each["kind"] in ("Deployment", "StatefulSet"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            found[labels["atoll.dev/role"]] = Peer(namespace="team", labels=labels)
    for each in children("spec.learner.hosts=2").objects():
        if each["kind"] == "StatefulSet":
            labels = each["spec"]["template"]["metadata"]["labels"]
            found["host"] = Peer(namespace="team", labels=labels)
    (deployment,) = of_kind(template(helm), "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    found["operator"] = Peer(namespace="atoll-system", labels=labels)
    found["somebody"] = Peer(namespace="team", labels={"app": "other"})
    found["impostor"] = Peer(namespace="another", labels=labels)
    found["other shard"] = Peer(namespace="another", labels=found["shard"].labels)
    found["other host"] = Peer(namespace="another", labels=found["host"].labels)
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
    ("source", "target", "port"),
    [
        ("learner", "shard", SHARD_PORT),
        ("evaluator", "shard", SHARD_PORT),
        ("shard", "shard", SHARD_PORT),  # the registrar
        ("operator", "shard", SHARD_PORT),
        ("learner", "internet", 53),
        ("shard", "somebody", 53),
        ("somebody", "shard", METRICS_PORT),
        ("somebody", "operator", "http"),
        ("operator", "internet", 443),  # the API server
        ("host", "host", 29400),  # where the hosts of a learner meet
        ("host", "host", 43210),  # gloo and NCCL take any port
        ("host", "shard", SHARD_PORT),
    ],
)
def test_what_a_job_needs_is_allowed(
    helm: str, peers: dict[str, Peer], source: str, target: str, port: int | str
) -> None:
    assert allowed(policies(helm), peers[source], peers[target], port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("learner", "somebody", 443),
        ("learner", "internet", 443),
        ("learner", "data store", 443),
        ("learner", "learner", SHARD_PORT),
        ("learner", "other shard", SHARD_PORT),
        ("learner", "shard", METRICS_PORT + 1),
        ("learner", "shard", 22),
        ("evaluator", "internet", 443),
        ("shard", "internet", 443),
        ("shard", "learner", SHARD_PORT),
        ("somebody", "learner", 80),
        ("somebody", "host", 29400),
        ("learner", "host", 29400),
        ("host", "learner", 29400),
        ("host", "other host", 29400),
        ("shard", "host", 29400),
        ("host", "internet", 443),
        ("somebody", "shard", SHARD_PORT),
        ("impostor", "shard", SHARD_PORT),
        ("internet", "shard", SHARD_PORT),
        ("somebody", "operator", 9999),
    ],
)
def test_what_no_job_needs_is_not_allowed(
    helm: str, peers: dict[str, Peer], source: str, target: str, port: int | str
) -> None:
    assert not allowed(policies(helm), peers[source], peers[target], port)


def test_every_port_of_a_shards_pod_may_be_reached_by_its_node(
    helm: str, peers: dict[str, Peer]
) -> None:
    """Its probes among them: some network plugins let no policy pass but for the node itself."""
    (shard,) = [
        each for each in children("spec.syncer.shards=1").objects()
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "tiny-syncer-0"
    ]  # fmt: skip
    (container,) = shard["spec"]["template"]["spec"]["containers"]
    ports = {each["containerPort"] for each in container["ports"]}
    assert {SHARD_PORT, METRICS_PORT} <= ports
    for port in ports - {SHARD_PORT}:  # which the operator and the job's own pods dial
        assert allowed(policies(helm), peers["internet"], peers["shard"], port)


def test_the_probe_of_a_host_may_be_asked_by_its_node(helm: str, peers: dict[str, Peer]) -> None:
    sets = [
        each["spec"]["template"]["spec"]["containers"][0]
        for each in children("spec.learner.hosts=2").objects()
        if each["kind"] == "StatefulSet"
    ]
    (port,) = {container["livenessProbe"]["httpGet"]["port"] for container in sets}
    assert allowed(policies(helm), peers["internet"], peers["host"], port)
    assert not allowed(policies(helm), peers["internet"], peers["learner"], port)


def test_policies_of_a_job_s_own_let_hosts_of_one_learner_reach_each_other_alone(
    helm: str, peers: dict[str, Peer]
) -> None:
    of_job = {
        each["metadata"]["name"]: Peer(
            namespace="team", labels=each["spec"]["template"]["metadata"]["labels"]
        )
        for each in children("spec.learner.hosts=2").objects()
        if each["kind"] == "StatefulSet"
    }
    own = of_hosts(job("spec.learner.hosts=2"))
    assert [each["metadata"]["name"] for each in own] == [*of_job]
    for each in own:
        each["metadata"]["namespace"] = "team"
    chart = policies(helm, f"{JOBS}.hosts=false")
    first, second, *_ = of_job.values()
    other = Peer(namespace="team", labels={**first.labels, Label.JOB: "other"})
    assert allowed([*chart, *own], first, first, 29400)
    assert allowed([*chart, *own], first, peers["shard"], SHARD_PORT)
    assert allowed([*chart, *own], peers["internet"], first, HEALTH_PORT)
    for stranger in (second, other, peers["learner"], peers["somebody"]):
        assert not allowed([*chart, *own], first, stranger, 29400)
        assert not allowed([*chart, *own], stranger, first, 29400)
        assert not allowed([*chart, *own], stranger, first, 43210)
    assert not allowed(chart, first, first, 29400)  # nothing is open before they are there
    assert allowed([*policies(helm), *own], first, second, 29400)  # what one allows is allowed


def test_what_a_platform_adds_is_allowed_too(helm: str, peers: dict[str, Peer]) -> None:
    found = policies(
        helm,
        f"{JOBS}.learnerEgress[0].to[0].ipBlock.cidr=10.1.0.0/16",
        f"{JOBS}.learnerEgress[0].ports[0].port=443",
        f"{JOBS}.shardsFrom[0].ipBlock.cidr=198.51.100.0/24",
        f"{JOBS}.metricsFrom[0].podSelector.matchLabels.app=other",
    )
    assert allowed(found, peers["learner"], peers["data store"], 443)
    assert not allowed(found, peers["learner"], peers["data store"], 80)
    assert not allowed(found, peers["learner"], peers["internet"], 443)
    assert allowed(found, peers["internet"], peers["shard"], SHARD_PORT)
    assert allowed(found, peers["somebody"], peers["shard"], METRICS_PORT)
    assert not allowed(found, peers["impostor"], peers["shard"], METRICS_PORT)


def test_the_namespaces_of_an_install_that_serves_all_are_named(helm: str) -> None:
    found = of_kind(template(helm, ON), "NetworkPolicy")
    assert {each["metadata"]["namespace"] for each in found} == {"atoll-system"}
    found = of_kind(template(helm, ON, f"{JOBS}.namespaces={{one,two}}"), "NetworkPolicy")
    assert {each["metadata"]["namespace"] for each in found} == {"atoll-system", "one", "two"}


def test_a_release_whose_values_are_older_than_this_one_is_upgraded(helm: str) -> None:
    """`helm upgrade --reuse-values` brings no default of a newer chart."""
    found = template(
        helm, ON, SERVED, "networkPolicy.jobs=null", "metrics.prometheusRule=null",
        "metrics.dashboard=null", "replicas=null",
    )  # fmt: skip
    assert len(of_kind(found, "NetworkPolicy")) == 4
