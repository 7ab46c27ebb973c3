"""How other clusters reach the shards: their Services, and the addresses to be copied.

All shards show the same node, and it stays the one that was shown before, as long as it is Ready:
what a person has copied stays right. Addresses are shown once those of all shards are known.
"""

from collections.abc import Iterable, Mapping, Sequence

from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.syncer_fields import ServiceType
from atoll_operator.kube.names import SHARD_PORT, shard_name
from atoll_operator.kube.observed.observation import Node, Object, Raw
from atoll_protos.network.addresses import joined


def exposed(service: Object, job: Job) -> Object:
    expose = job.spec.syncer.expose
    metadata, spec = service["metadata"], service["spec"]
    if expose.annotations:
        metadata = {**metadata, "annotations": {**metadata["annotations"], **expose.annotations}}
    if expose.type is not ServiceType.CLUSTER_IP:
        spec = {**spec, "type": str(expose.type)}
    return {**service, "metadata": metadata, "spec": spec}


def endpoints(
    job: Job,
    children: Iterable[Raw],
    nodes: Mapping[str, Node] | None,
    region: str,
    shown: Sequence[str | None],
) -> list[str] | None:
    """host:port by shard for other clusters; None: there are none, or not all are known yet.

    `region` is that of the nodes, empty: any. `shown` is what was shown before.
    """
    kind = job.spec.syncer.expose.type
    if kind is ServiceType.CLUSTER_IP:
        return None
    services = {each["metadata"]["name"]: each for each in children if each["kind"] == "Service"}
    own = [services.get(shard_name(job.name, n)) for n in range(job.spec.syncer.shards)]
    if kind is ServiceType.LOAD_BALANCER:
        return _all([_of_load_balancer(each) if each else None for each in own])
    if nodes is None:
        return _all(shown)
    host = _host(nodes, region, shown)
    return _all([_of_node(each, host) if each and host else None for each in own])


def stale(
    job: Job, nodes: Mapping[str, Node] | None, shown: Sequence[str | None]
) -> tuple[str, ...]:
    """Which of spec.syncer.endpoints lead to this cluster, and to no shard of the job any more.

    A job that is made again has other NodePorts. Nothing is known of another host, as a gateway.
    """
    hosts = {each.address for each in (nodes or {}).values()}
    hosts |= {each.rpartition(":")[0].strip("[]") for each in shown if each}
    found = []
    for number, (given, now) in enumerate(zip(job.spec.syncer.endpoints, shown, strict=False)):
        host, _, port = given.rpartition(":")
        if now and host.strip("[]") in hosts and port != now.rpartition(":")[2]:
            found.append(
                f"spec.syncer.endpoints[{number}] is {given}, and the shard is at {now}: other"
                " clusters do not reach it"
            )
    return tuple(found)


def _all(found: Sequence[str | None]) -> list[str] | None:
    known = [each for each in found if each]
    return known if known and len(known) == len(found) else None


def _of_load_balancer(service: Raw) -> str | None:
    status = service.get("status") or {}
    for each in (status.get("loadBalancer") or {}).get("ingress") or []:
        host = each.get("hostname") or each.get("ip")
        if host:
            return joined(str(host), SHARD_PORT)
    return None


def _of_node(service: Raw, host: str) -> str | None:
    for each in (service.get("spec") or {}).get("ports") or []:
        if each.get("port") == SHARD_PORT and each.get("nodePort"):
            return joined(host, int(each["nodePort"]))
    return None


def _host(nodes: Mapping[str, Node], region: str, shown: Sequence[str | None]) -> str:
    """The node's address to show; empty: no node is Ready."""
    fit = [
        nodes[name].address
        for name in sorted(nodes)
        if nodes[name].ready and nodes[name].address and region in ("", nodes[name].region)
    ]
    before = {each.rpartition(":")[0].strip("[]") for each in shown if each}
    return next((each for each in fit if each in before), fit[0] if fit else "")
