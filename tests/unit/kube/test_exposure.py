"""How other clusters reach the shards: Services, and addresses to be copied."""

from typing import Any

from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed.objects import node as node_of
from atoll_operator.kube.observed.observation import Node, Object
from atoll_operator.kube.plan.children import endpoints, stale
from unit.kube.cluster_values import SETTINGS, children, job

NODE_PORT = "spec.syncer.expose={type: NodePort}"
LOAD_BALANCER = "spec.syncer.expose={type: LoadBalancer, annotations: {internal: 'true'}}"
NODES = {
    "n1": Node(name="n1", region="eu-west", address="10.0.0.1"),
    "n2": Node(name="n2", region="us-east", address="10.0.0.2"),
    "n3": Node(name="n3", region="us-east", address="10.0.0.3"),
}


def services(*changes: str, **more: Any) -> list[Object]:
    """The shards' Services."""
    return [
        each | more
        for each in children(*changes).objects()
        if each["kind"] == "Service" and "-syncer-" in each["metadata"]["name"]
    ]


def with_node_ports() -> list[Object]:
    found = services(NODE_PORT)
    for number, each in enumerate(found):
        each["spec"]["ports"][0]["nodePort"] = 30_000 + number
    return found


def test_a_service_has_the_type_and_the_annotations_that_the_manifest_asks_for() -> None:
    for each in services(LOAD_BALANCER):
        assert each["spec"]["type"] == "LoadBalancer"
        assert each["metadata"]["annotations"]["internal"] == "true"
        assert Annotation.APPLIED in each["metadata"]["annotations"]
    for each in services():  # as before: the API server fills in the type
        assert "type" not in each["spec"]


def test_a_service_for_its_own_cluster_shows_no_address() -> None:
    assert endpoints(job(), services(), NODES, "", ()) is None


def test_a_node_port_is_reached_at_a_ready_node_of_the_region() -> None:
    found = endpoints(job(NODE_PORT), with_node_ports(), NODES, "us-east", ())
    assert found == ["10.0.0.2:30000", "10.0.0.2:30001"]
    assert endpoints(job(NODE_PORT), with_node_ports(), NODES, "", ()) == [
        "10.0.0.1:30000",
        "10.0.0.1:30001",
    ]


def test_endpoints_of_a_former_job_of_the_name_are_told() -> None:
    shown = ["10.0.0.2:30000", "10.0.0.2:30001"]
    given = "spec.syncer.endpoints=['10.0.0.2:31000', '10.0.0.2:30001']"
    (said,) = stale(job(NODE_PORT, given), NODES, shown)
    assert said.startswith("spec.syncer.endpoints[0] is 10.0.0.2:31000, and the shard is at 10.")
    any_node = "spec.syncer.endpoints=['10.0.0.3:30000', '10.0.0.3:30001']"
    gateway = "spec.syncer.endpoints=['gateway:7700', 'gateway:7701']"
    for fits in (any_node, gateway, "spec.syncer.endpoints=[]"):
        assert stale(job(NODE_PORT, fits), NODES, shown) == ()


def test_the_node_that_was_shown_stays_as_long_as_it_is_ready() -> None:
    shown = ("10.0.0.3:30000", "10.0.0.3:30001")
    same = endpoints(job(NODE_PORT), with_node_ports(), NODES, "us-east", shown)
    assert same == [*shown]
    lost = NODES | {"n3": Node(name="n3", region="us-east", address="10.0.0.3", ready=False)}
    other = endpoints(job(NODE_PORT), with_node_ports(), lost, "us-east", shown)
    assert other == ["10.0.0.2:30000", "10.0.0.2:30001"]
    assert endpoints(job(NODE_PORT), with_node_ports(), None, "us-east", shown) == [*shown]


def test_addresses_are_shown_once_those_of_all_shards_are_known() -> None:
    one_of_two = with_node_ports()
    del one_of_two[1]["spec"]["ports"][0]["nodePort"]
    assert endpoints(job(NODE_PORT), one_of_two, NODES, "", ()) is None
    assert endpoints(job(NODE_PORT), services(NODE_PORT), NODES, "", ()) is None
    assert endpoints(job(NODE_PORT), [], NODES, "", ()) is None
    assert endpoints(job(NODE_PORT), with_node_ports(), {}, "", ()) is None
    assert endpoints(job(NODE_PORT), with_node_ports(), None, "", ()) is None
    earlier = ("10.0.0.2:30000", None)  # as earlier versions showed them
    assert endpoints(job(NODE_PORT), with_node_ports(), None, "", earlier) is None
    assert endpoints(job(LOAD_BALANCER), services(LOAD_BALANCER), NODES, "", ()) is None


def test_a_load_balancer_is_reached_at_the_address_that_it_got() -> None:
    for got, host in (
        ({"ip": "203.0.113.9"}, "203.0.113.9"),
        ({"hostname": "lb.example"}, "lb.example"),
        ({"ip": "2001:db8::9"}, "[2001:db8::9]"),
    ):
        made = services(LOAD_BALANCER, status={"loadBalancer": {"ingress": [got]}})
        assert endpoints(job(LOAD_BALANCER), made, NODES, "", ()) == [f"{host}:7700"] * 2


def test_of_a_nodes_addresses_the_external_one_is_shown_to_others() -> None:
    both = [
        {"type": "Hostname", "address": "n"},
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "ExternalIP", "address": "203.0.113.1"},
    ]
    for addresses, shown in ((both, "203.0.113.1"), (both[:2], "10.0.0.1"), (both[:1], "")):
        raw = {"metadata": {"name": "n"}, "status": {"addresses": addresses}}
        assert node_of(raw, SETTINGS.region_label).address == shown
