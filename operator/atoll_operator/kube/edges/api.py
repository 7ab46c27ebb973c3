"""The edge to the Kubernetes API: raw objects, server-side apply, deletes that carry a UID.

Everything is a raw object (dicts, as in JSON): `observation` parses what is read, `plan.children`
builds what is written. All writes are safe to repeat. Children and statuses are written by
server-side apply with `force`, each under a field manager of its own, so that the operator owns
exactly the fields that it states and a former owner of them loses them. A delete has the UID as a
precondition, so that it never hits a new object of the same name.

Errors of the API server become `ApiError` with its HTTP status; NotFound and Conflict have classes
of their own, because callers treat them as answers. Errors of the network (aiohttp's, timeouts)
pass through: they end the pass, which is tried again. Nothing is retried here.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from kubernetes.aio import client, config
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from atoll_operator.api.spec import API_VERSION, KIND
from atoll_operator.kube.names import CHILDREN_MANAGER, GROUP, PLURAL, STATUS_MANAGER, VERSION

CALL_SECONDS_MAX = 20.0  # of any call but a watch
APPLY = "application/apply-patch+yaml"
KINDS = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "StatefulSet": ("apps/v1", "statefulsets"),
}
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

Object = dict[str, Any]
Query = Sequence[tuple[str, str]]

log = structlog.get_logger()


class ApiError(Exception):
    """The API server refused a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class NotFoundError(ApiError):
    """The object does not exist (404)."""


class ConflictError(ApiError):
    """The object has changed, or is another one of the same name (409)."""


def jobs_path(namespace: str, name: str = "", part: str = "") -> str:
    """The URL path of one job, of a part of it (`status`), or of all jobs of a namespace."""
    words = ("apis", GROUP, VERSION, "namespaces", namespace, PLURAL, name, part)
    return "/" + "/".join(word for word in words if word)


def path(kind: str, namespace: str, name: str = "") -> str:
    """The URL path of one child, or of all children of its kind in a namespace."""
    version, plural = KINDS[kind]
    root = ("api", version) if version == "v1" else ("apis", version)
    words = (*root, "namespaces", namespace, plural, name)
    return "/" + "/".join(word for word in words if word)


@dataclass(slots=True, kw_only=True)
class Api:
    """One connection pool, and a count of the writes made through it."""

    client: Any
    dynamic: Any
    writes: int = 0

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()

    async def call(
        self,
        method: str,
        where: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Query = (),
        content_type: str = "application/json",
        seconds: float = CALL_SECONDS_MAX,
    ) -> Object:
        """Send one request and read its JSON answer; raises ApiError."""
        if method != "get":
            self.writes += 1
        response = await self._send(method, where, body, query, content_type, seconds)
        found: Object = json.loads(await response.read())
        return found

    async def _send(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None,
        query: Query,
        content_type: str,
        seconds: float,
    ) -> Any:
        try:
            return await self.dynamic.request(
                method,
                where,
                body=body,
                query_params=list(query),
                content_type=content_type,
                serialize=False,
                _request_timeout=seconds,
            )
        except DynamicApiError as error:
            kind = {404: NotFoundError, 409: ConflictError}.get(error.status, ApiError)
            raise kind(error.status, _message(error)) from error

    async def get(self, where: str) -> Object | None:
        """The object at a path, None when it does not exist."""
        try:
            return await self.call("get", where)
        except NotFoundError:
            return None

    async def list(self, where: str, selector: str = "") -> list[Object]:
        """The objects of a collection, all or those that match a label selector."""
        query = [("labelSelector", selector)] if selector else []
        found: list[Object] = (await self.call("get", where, query=query))["items"]
        return found

    async def apply(self, child: Mapping[str, Any]) -> Object:
        """Server-side apply of a child; the answer is the object as it is now.

        A child that carries a UID is written only to the object of that UID (else ConflictError),
        and takes its fields back from whoever has changed them. One without is made: no field is
        taken from an object of that name that has appeared in the meantime (ConflictError).
        """
        metadata = child["metadata"]
        where = path(child["kind"], metadata["namespace"], metadata["name"])
        force = "true" if "uid" in metadata else "false"
        query = [("fieldManager", CHILDREN_MANAGER), ("force", force)]
        return await self.call("patch", where, body=child, query=query, content_type=APPLY)

    async def apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any]
    ) -> Object:
        """Server-side apply of a job's whole status.

        NotFoundError when the job is gone, ConflictError when another one has its name.
        """
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        query = [("fieldManager", STATUS_MANAGER), ("force", "true")]
        where = jobs_path(namespace, name, "status")
        return await self.call("patch", where, body=body, query=query, content_type=APPLY)

    async def delete(self, where: str, uid: str, *, at_once: bool = False) -> bool:
        """Delete the object at a path if it has this UID; whether that was so.

        `at_once` deletes a pod with a grace of 0, without waiting for its kubelet: only for a pod
        whose node is lost, and only after its slot's owner has been retired.
        """
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if at_once:
            body["gracePeriodSeconds"] = 0
        try:
            await self.call("delete", where, body=body)
        except (NotFoundError, ConflictError):
            return False
        return True

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Create a core/v1 Event. One that is refused is logged: no pass ends for it."""
        try:
            await self.call("post", f"/api/v1/namespaces/{namespace}/events", body=event)
        except ApiError as error:
            log.warning("event refused", namespace=namespace, error=str(error))

    async def watch(self, where: str, version: str, seconds: int) -> AsyncIterator[Object]:
        """Yield a collection's events from a resource version on, until the server ends the stream.

        Bookmarks are asked for and yielded too; an ERROR event is yielded, not raised.
        """
        query = [
            ("watch", "true"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
        ]
        response = await self._send("get", where, None, query, "application/json", seconds + 30.0)
        rest = b""
        try:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)
        finally:
            response.close()


# The client's own models are not used: they would drop fields that this version does not know.


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        return str(error.reason)


async def connect() -> Api:
    """Connect with the pod's service account, or outside of a cluster with KUBECONFIG."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=settings)
    connection = client.ApiClient(settings)
    return Api(client=connection, dynamic=DynamicClient(connection))
