"""The few calls that a lab itself makes to its API servers."""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any

from cluster.lab.layout import Cluster

Object = Mapping[str, Any]


def call(cluster: Cluster, method: str, path: str, body: Object | None = None) -> tuple[int, str]:
    """Make one request as the cluster's administrator; OSError while no server answers."""
    context = ssl.create_default_context(cafile=str(cluster.pki / "ca.crt"))
    context.load_cert_chain(cluster.pki / "admin.crt", cluster.pki / "admin.key")
    connection = http.client.HTTPSConnection(cluster.address, 6443, timeout=5, context=context)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def is_there(cluster: Cluster, path: str) -> bool:
    try:
        return call(cluster, "GET", path)[0] == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


def create(cluster: Cluster, path: str, body: Object) -> bool:
    """Create an object; True if it is there now, also when it was before."""
    try:
        status, _ = call(cluster, "POST", path, body)
    except (OSError, http.client.HTTPException):
        return False
    return status in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT)


def ready_by_node(cluster: Cluster) -> dict[str, str]:
    """Map the name of each node to its Ready condition; empty while the API does not answer."""
    try:
        status, text = call(cluster, "GET", "/api/v1/nodes?resourceVersion=0")
    except (OSError, http.client.HTTPException):
        return {}
    if status != http.HTTPStatus.OK:
        return {}
    return {
        item["metadata"]["name"]: next(
            (c["status"] for c in item["status"].get("conditions", ()) if c["type"] == "Ready"),
            "Unknown",
        )
        for item in json.loads(text)["items"]
    }
