"""The edge to the Kubernetes API: raw objects, server-side apply, deletes that carry a UID.

All writes are safe to repeat. Children and statuses are written by server-side apply with `force`,
each under a field manager of its own, so that the operator owns exactly the fields that it states.
A delete has the UID as a precondition, so that it never hits a new object of the same name. The
answer to each write goes into the cache before the caller goes on. `get` asks the API server past
the cache: it is for the last look before a step that cannot be taken back.

While this replica does not lead, every request but a read raises NotLeaderError before it is sent
(`fence`). Errors of the API server become `ApiError`. Errors of the network pass through, and end
the pass. Nothing is retried here.

The `Limiter` keeps an operator with many jobs from the API server's own limits (429): so many
requests a second, with a burst. A request waits for its turn; none is refused. Turns go round the
namespaces, so that a job of thousands of objects holds up its own namespace, and another's request
waits for one of each namespace before it. Watches do not count.

The client's own models are not used: they would drop fields that this version does not know.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from atoll_operator.api.job.spec import API_VERSION, KIND
from atoll_operator.kube.edges.election import Fence
from atoll_operator.kube.names import CHILDREN_MANAGER, EVENTS_MANAGER, PLURAL, STATUS_MANAGER
from atoll_operator.kube.observed.cache import Cache, Object

CROWD = 8  # namespaces whose requests wait, from which on progress waits everywhere


@dataclass(slots=True, kw_only=True)
class Limiter:
    """A bucket of `burst` tokens that fills at `per_second`; a request takes one."""

    per_second: float
    burst: int
    free_at: float = float("-inf")  # monotonic: when the bucket would be empty but for new tokens
    waiting: "dict[str, deque[asyncio.Future[None]]]" = field(default_factory=dict)
    """By namespace, whose turn comes first: its requests in the order of the calls."""
    turns: "asyncio.Task[None] | None" = None

    async def wait(self, namespace: str = "") -> None:
        """Return when it is this request's turn; `namespace` is that of its object, if any."""
        if not self.waiting and self._pause() <= 0:
            self._take()
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(namespace, deque()).append(turn)
        if self.turns is None or self.turns.done():
            self.turns = asyncio.create_task(self._give_turns())
        await turn

    def is_busy(self, namespace: str) -> bool:
        """Whether progress of this namespace should wait: the bucket is half empty, or many wait.

        Where requests of a few others wait, the bucket is empty whatever this one does, and its
        next request has a turn of its own.
        """
        if namespace in self.waiting or len(self.waiting) >= CROWD:
            return True
        half_seconds = self.burst / 2 / self.per_second
        return not self.waiting and time.monotonic() - self.free_at < half_seconds

    def _taken_at(self) -> float:
        """When the bucket would be empty but for new tokens, were one taken now."""
        full_at = time.monotonic() - self.burst / self.per_second
        return max(self.free_at, full_at) + 1 / self.per_second

    def _take(self) -> None:
        self.free_at = self._taken_at()

    def _pause(self) -> float:
        """Seconds until there is a token; not above 0: there is one."""
        return self._taken_at() - time.monotonic()

    async def _give_turns(self) -> None:
        while self.waiting:
            if (pause := self._pause()) > 0:
                await asyncio.sleep(pause)
                continue
            namespace = next(iter(self.waiting))
            queue = self.waiting.pop(namespace)
            turn = queue.popleft()
            if queue:
                self.waiting[namespace] = queue  # behind all others
            if not turn.done():  # its caller has been cancelled
                self._take()
                turn.set_result(None)


CALL_SECONDS_MAX = 20.0  # of any call but a watch
APPLY = "application/apply-patch+yaml"
JSON, MERGE = "application/json", "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
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
UNSEEN = {  # read one by one where they are needed, or by a path of their own: no cache keeps them
    "Event": ("v1", "events"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "Namespace": ("v1", "namespaces"),
    "Secret": ("v1", "secrets"),
    KIND: (API_VERSION, PLURAL),
}
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

TOO_MANY_REQUESTS, INTERNAL_ERROR = 429, 500
BEGUN = "BEGUN"  # type of the first event that `watch` yields: the API server has taken it

Query = Sequence[tuple[str, str]]
Count = Callable[[str, int], None]

log = structlog.get_logger()


class ApiError(Exception):
    """The API server refused a request; `status` is the HTTP status."""

    def __init__(self, status: int, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: the server is overloaded or unwell."""
        return self.status == TOO_MANY_REQUESTS or self.status >= INTERNAL_ERROR


class ObjectNotFoundError(ApiError):
    """The object does not exist (404)."""


class ConflictError(ApiError):
    """The object has changed, or is another one of the same name (409)."""


def path(kind: str, namespace: str, name: str = "", part: str = "") -> str:
    """Build the URL path of an object, its `part`, or all of its kind; no namespace: of all."""
    version, plural = (KINDS | UNSEEN)[kind]
    root = "api" if version == "v1" else "apis"
    inside = ("namespaces", namespace) if namespace else ()
    return "/" + "/".join(filter(None, (root, version, *inside, plural, name, part)))


def namespace_of(where: str) -> str:
    """Return the namespace in a URL path; empty: it leads to a cluster's objects."""
    return where.partition("/namespaces/")[2].partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a collection, and the resource version of the whole of it."""

    items: list[Object]
    version: str


@dataclass(slots=True, kw_only=True)
class Api:
    """One connection pool, and the cache of its answers; without a fence all may be written."""

    client: Any
    dynamic: Any
    limiter: Limiter
    fence: Fence | None = None
    counts: Count = lambda verb, status: None  # told of each answer; status 0: there was none
    cache: Cache = field(default_factory=Cache)

    async def close(self) -> None:
        await self.client.close()

    async def call(
        self, method: str, where: str, *, of_election: bool = False, **options: Any
    ) -> Object:
        """Send a request in its turn (the election's: now); its JSON answer. Raises ApiError.

        Options are those of `_send`.
        """
        if not of_election:
            await self.limiter.wait(namespace_of(where))
        response = await self._send(method, where, fenced=not of_election, **options)
        found: Object = json.loads(await response.read())
        return found

    async def _send(
        self,
        method: str,
        where: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Query = (),
        content_type: str = JSON,
        seconds: float = CALL_SECONDS_MAX,
        fenced: bool = True,
    ) -> Any:
        if fenced and method != "get" and self.fence is not None:
            seconds = min(seconds, self.fence.check())
        verb = "watch" if ("watch", "true") in query else method
        status = 0
        try:
            response = await self.dynamic.request(
                method,
                where,
                body=body,
                query_params=list(query),
                content_type=content_type,
                serialize=False,
                _request_timeout=seconds,
            )
            status = response.status
        except DynamicApiError as error:
            status = error.status
            kind = {404: ObjectNotFoundError, 409: ConflictError}.get(error.status, ApiError)
            raise kind(error.status, _message(error), _retry_after(error)) from error
        finally:
            self.counts(verb, status)
        return response

    async def get(self, where: str) -> Object | None:
        try:
            return await self.call("get", where)
        except ObjectNotFoundError:
            return None

    async def pages(self, where: str, which: Query, objects_max: int) -> AsyncIterator[Page]:
        """Yield a collection in pages; items carry their kind and apiVersion, as single objects do.

        Raises ApiError 410 when the API server has forgotten the list meanwhile: begin again.
        """
        rest = ""
        while True:
            query = [("limit", str(objects_max)), *which]
            query += [("continue", rest)] if rest else []
            page = await self.call("get", where, query=query)
            kind, version = page["kind"].removesuffix("List"), page["apiVersion"]
            items = [{**item, "kind": kind, "apiVersion": version} for item in page["items"] or []]
            yield Page(items=items, version=page["metadata"]["resourceVersion"])
            rest = page["metadata"].get("continue", "")
            if not rest:
                return

    async def apply(self, child: Mapping[str, Any]) -> Object:
        """Server-side apply of a child; the answer is the object as it is now.

        With a UID it is written only to the object of that UID, and takes its fields back from
        whoever has changed them. Without one it is made: no field is taken from an object of that
        name that has appeared in the meantime. Else raises ConflictError.
        """
        found = await self._apply(child, CHILDREN_MANAGER, force="uid" in child["metadata"])
        if child["kind"] not in UNSEEN:
            self.cache.written(found)
        return found

    async def _apply(
        self,
        body: Mapping[str, Any],
        manager: str,
        part: str = "",
        *,
        force: bool = True,
        tries: bool = False,
    ) -> Object:
        metadata = body["metadata"]
        where = path(body["kind"], metadata["namespace"], metadata["name"], part)
        query = [("fieldManager", manager), ("force", str(force).lower())]
        query += [("dryRun", "All")] if tries else []
        return await self.call("patch", where, body=body, query=query, content_type=APPLY)

    async def create(self, child: Mapping[str, Any]) -> None:
        """Make an object that no cache keeps; ConflictError where its name is taken."""
        where = path(child["kind"], child["metadata"]["namespace"])
        query = [("fieldManager", CHILDREN_MANAGER)]
        await self.call("post", where, body=child, query=query)

    async def dry_run(self, child: Mapping[str, Any]) -> None:
        """Let the API server check a child as `apply` would write it; raises ApiError."""
        await self._apply(child, CHILDREN_MANAGER, tries=True)

    async def dry_run_pod(self, pod: Object) -> None:
        """Let the API server check a pod as its controller would create it; raises ApiError."""
        where = path("Pod", pod["metadata"]["namespace"])
        await self.call("post", where, body=pod, query=[("dryRun", "All")])

    async def apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any]
    ) -> Object:
        """Raise ObjectNotFoundError when the job is gone, ConflictError when it is another."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        try:
            found = await self._apply(body, STATUS_MANAGER, "status")
        except ObjectNotFoundError:
            self.cache.lost(uid)
            raise
        self.cache.written(found)
        return found

    async def delete(self, where: str, uid: str, *, at_once: bool = False) -> bool:
        """Delete the object at a path if it has this UID; whether that was so.

        `at_once`: with a grace of 0, without waiting for the kubelet. Only for a pod whose node is
        lost, and only after its slot's owner has been retired.
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
            found = await self.call("delete", where, body=body)
        except ObjectNotFoundError:
            self.cache.deleted(uid)
            return False
        except ConflictError:
            return False  # another object of that name, which the watch will show
        if _is_left(found):
            self.cache.written(found)
        else:
            self.cache.deleted(uid)
        return True

    async def mark(self, namespace: str, name: str, uid: str, condition: Object) -> None:
        """Write one condition into a pod's status, if the pod has this UID (else ConflictError)."""
        where = path("Pod", namespace, name, "status")
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        self.cache.written(await self.call("patch", where, body=body, content_type=STRATEGIC))

    async def apply_event(self, event: Mapping[str, Any]) -> None:
        await self._apply(event, EVENTS_MANAGER)

    async def watch(
        self, where: str, which: Query, version: str, seconds: int
    ) -> AsyncGenerator[Object]:
        """Yield a collection's events from a resource version on, until the server ends the stream.

        The first is BEGUN, of this module, as soon as the API server has accepted the watch.
        Bookmarks are asked for and yielded too; an ERROR event is yielded, not raised.
        """
        query = [
            ("watch", "true"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
        ]
        query += which
        response = await self._send("get", where, query=query, seconds=seconds + 30.0)
        rest = b""
        try:
            yield {"type": BEGUN, "object": {}}
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)
        finally:
            response.close()


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (KeyError, TypeError, ValueError):
        return str(error.reason)


def _retry_after(error: Any) -> float:
    try:
        return float((error.headers or {}).get("Retry-After", 0))
    except ValueError:  # a date: nothing in Kubernetes sends one
        return 0.0


def _is_left(answer: Mapping[str, Any]) -> bool:
    """Whether the answer to a delete is an object that ends later; it is, or was, else gone."""
    metadata = answer.get("metadata") or {}
    ending = bool(metadata.get("deletionTimestamp"))
    return ending and bool(
        metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds", 0)
    )
