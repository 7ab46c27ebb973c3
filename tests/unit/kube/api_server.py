"""A small API server on loopback: collections that are listed and watched, and refusals."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import Api, Limiter
from atoll_operator.kube.edges.election import Fence
from atoll_operator.kube.names import GROUP, PLURAL, VERSION
from atoll_operator.kube.serve import connect

SECONDS_MAX = 60.0
POD_PATH = "/api/v1/pods"


_GROUP_VERSION = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
_VERBS = ["get", "list", "watch", "patch"]


def _resource(plural: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    singular = {"name": plural, "singularName": "", "kind": kind}
    return singular | {"namespaced": namespaced, "verbs": _VERBS}


DISCOVERY: dict[str, Any] = {  # what kopf asks for before it watches jobs
    "/version": {"major": "1", "minor": "36"},
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [_resource("namespaces", "Namespace", namespaced=False)]},
    "/apis": {
        "groups": [
            {"name": GROUP, "versions": [_GROUP_VERSION], "preferredVersion": _GROUP_VERSION}
        ]
    },
    f"/apis/{GROUP}/{VERSION}": {"resources": [_resource(PLURAL, KIND, namespaced=True)]},
}


@dataclass
class ApiServer:
    """Objects by the path of their collection; every request is noted."""

    version: int = 1
    silent: bool = False  # takes no watch, and does not refuse it
    kinds: dict[str, str] = field(default_factory=dict)  # kind of the objects of a path
    items: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    refusals: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)  # LIST, WATCH ... and path
    queries: list[dict[str, str]] = field(default_factory=list)
    watchers: dict[str, list["asyncio.Queue[dict[str, Any] | None]"]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def put(self, path: str, name: str, **more: Any) -> dict[str, Any]:
        """Make an object, or change it, and tell the watches."""
        self.version += 1
        known = [each for each in self.items[path] if each["metadata"]["name"] == name]
        uid = known[0]["metadata"]["uid"] if known else f"uid-{name}-{self.version}"
        metadata = {
            "name": name, "namespace": "demo", "uid": uid, "resourceVersion": str(self.version),
        }  # fmt: skip
        kind = self.kinds.get(path, "Thing")
        raw = {"kind": kind, **more, "metadata": more.get("metadata", {}) | metadata}
        if known:
            self.items[path].remove(known[0])
        self.items[path].append(raw)
        self.tell(path, "MODIFIED" if known else "ADDED", raw)
        return raw

    def drop(self, path: str, name: str, *, told: bool = True) -> None:
        """Delete an object."""
        self.version += 1
        for raw in [each for each in self.items[path] if each["metadata"]["name"] == name]:
            self.items[path].remove(raw)
            raw["metadata"]["resourceVersion"] = str(self.version)
            if told:
                self.tell(path, "DELETED", raw)

    def tell(self, path: str, kind: str, raw: dict[str, Any]) -> None:
        """Send an event to all watches of a path."""
        for each in self.watchers[path]:
            each.put_nowait({"type": kind, "object": raw})

    def end_watches(self, path: str) -> None:
        """End all watches of a path, as the API server does after some minutes."""
        for each in self.watchers[path]:
            each.put_nowait(None)

    def count(self, verb: str, path: str) -> int:
        return self.requests.count((verb, path))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path in DISCOVERY:
            return web.json_response(DISCOVERY[path])
        watches = "watch" in request.query
        verb = {"GET": "WATCH" if watches else "LIST"}.get(request.method, request.method)
        self.requests.append((verb, path))
        self.queries.append(dict(request.query))
        if path in self.refusals:
            status, headers = self.refusals[path]
            body = {"kind": "Status", "code": status, "message": "no"}
            return web.json_response(body, status=status, headers=headers)
        if request.method != "GET":
            return await self._write(request, path)
        if not watches and "limit" not in request.query:
            return self._get(path)
        return await self._watch(request, path) if watches else self._page(request, path)

    def _get(self, path: str) -> web.Response:
        where, name, _ = self._place(path)
        for each in self.items[where]:
            if each["metadata"]["name"] == name:
                return web.json_response(each)
        body = {"kind": "Status", "code": 404, "message": f"{name} not found"}
        return web.json_response(body, status=404)

    def _place(self, path: str) -> tuple[str, str, bool]:
        """The collection of the whole cluster, the name, and whether the path is of a status."""
        root, _, rest = path.partition("/namespaces/demo")
        plural, name, status = f"{rest.strip('/')}//".split("/")[:3]
        return f"{root}/{plural}", name, bool(status)

    async def _write(self, request: web.Request, path: str) -> web.Response:
        """Apply an object, or the status of one, to the collection of the whole cluster."""
        where, name, status = self._place(path)
        raw = await request.json()
        name = name or raw["metadata"].get("name", "")
        known = next((each for each in self.items[where] if each["metadata"]["name"] == name), None)
        missing = 404 if status and known is None else 0
        if problem := missing or self._problem(request, known, raw):
            body = {"kind": "Status", "code": problem, "message": name}
            return web.json_response(body, status=problem)
        if status:
            raw = {**(known or {}), "status": raw["status"]}
        del raw["kind"]
        return web.json_response(self.put(where, name, **raw))

    def _problem(
        self, request: web.Request, known: dict[str, Any] | None, raw: dict[str, Any]
    ) -> int:
        """What a real one answers where an object is there, is not, or is another version."""
        if request.content_type == "application/merge-patch+json":
            version = raw["metadata"].get("resourceVersion")
            if known is None:
                return 404
            return 0 if version in (None, known["metadata"]["resourceVersion"]) else 409
        return 409 if request.method == "POST" and known else 0

    def _page(self, request: web.Request, path: str) -> web.Response:
        first = int(request.query.get("continue", "0"))
        end = first + int(request.query["limit"])
        items = self.items[path]
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if end < len(items):
            metadata["continue"] = str(end)
        kind = self.kinds.get(path, "Thing")
        page = {"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata}
        return web.json_response({**page, "items": items[first:end]})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        if self.silent:
            await until(lambda: not self.silent)
        response = web.StreamResponse()
        await response.prepare(request)
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.watchers[path].append(events)
        try:
            while (event := await events.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self.watchers[path].remove(events)
        return response


def kubeconfig(url: str, *others: str, namespace: str = "default") -> str:
    """A kubeconfig of the context `here`, and of others without a namespace, of one server."""
    one = {"cluster": "c", "user": "u"}
    contexts = {"here": {**one, "namespace": namespace}, **dict.fromkeys(others, one)}
    whole = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }  # fmt: skip
    return json.dumps(whole)


@asynccontextmanager
async def serving(server: ApiServer, folder: Path) -> AsyncIterator[Path]:
    """The server on loopback; yields a KUBECONFIG for it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = folder / "kubeconfig"
    config.write_text(kubeconfig(url))
    try:
        yield config
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(
    server: ApiServer, folder: Path, fence: Fence | None = None
) -> AsyncIterator[Api]:
    """The operator's connection to a server on loopback."""
    async with serving(server, folder) as config:
        connection = await connect(Limiter(per_second=1e6, burst=1), str(config), fence=fence)
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def running(part: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """A part that runs until the end of the block."""
    task = asyncio.create_task(part)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, at most SECONDS_MAX."""
    for _ in range(int(SECONDS_MAX / 0.02)):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError
