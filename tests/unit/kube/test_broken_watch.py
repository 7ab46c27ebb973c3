"""One broken watch ends the operator's process, so that the kubelet starts it again.

With a real kopf, against a small HTTP server that answers as an API server does.
"""

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from atoll_operator.kube.edges import handlers
from atoll_operator.kube.edges.handlers import EventTimes, KopfEndedError
from atoll_operator.kube.names import GROUP, PLURAL, VERSION
from unit.kube.cluster_values import SETTINGS

SECONDS_MAX = 40.0  # kopf gives its tasks 5 s to end
VERBS = ["get", "list", "watch", "patch"]
RESOURCES = {
    "/api/v1": ("pods", "services", "configmaps", "namespaces", "nodes"),
    "/apis/apps/v1": ("statefulsets", "deployments"),
    f"/apis/{GROUP}/{VERSION}": (PLURAL,),
}


class ApiServer:
    """Empty collections; watches that stay open, but for one that is refused once `broken`."""

    def __init__(self, refusal: int) -> None:
        self.refusal = refusal
        self.broken = False
        self.watched: set[str] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path == "/version":
            return web.json_response({"major": "1", "minor": "34"})
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            return web.json_response({"groups": [_group("apps", "v1"), _group(GROUP, VERSION)]})
        if path in RESOURCES:
            return web.json_response({"resources": [_resource(n) for n in RESOURCES[path]]})
        plural = path.rpartition("/")[2]
        if plural == PLURAL and self.broken:
            status = {"kind": "Status", "code": self.refusal, "message": "no such resource"}
            return web.json_response(status, status=self.refusal)
        if "watch" in request.query:
            return await self._watch(request, plural)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        self.watched.add(plural)
        response = web.StreamResponse()
        await response.prepare(request)
        await until(lambda: plural == PLURAL and self.broken)
        return response


def _group(name: str, version: str) -> dict[str, Any]:
    found = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [found], "preferredVersion": found}


def _resource(plural: str) -> dict[str, Any]:
    kind = plural.capitalize().removesuffix("s")
    namespaced = plural not in ("namespaces", "nodes")
    return {
        "name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": VERBS,
    }  # fmt: skip


@asynccontextmanager
async def serving(server: ApiServer, folder: Path) -> AsyncIterator[Path]:
    """The server on loopback; yields a KUBECONFIG for it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    try:
        yield config
    finally:
        await runner.cleanup()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(int(SECONDS_MAX / 0.05)):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def until_watched(server: ApiServer) -> None:
    wanted = {PLURAL, *(plural for _, _, plural in handlers.CHILDREN)}
    await until(lambda: wanted <= server.watched)


async def until_kopf_ends() -> None:
    await until(lambda: all(each.name != handlers.THREAD for each in threading.enumerate()))


def test_a_watch_that_is_refused_ends_the_part_that_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer(404)
        async with serving(server, tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            part = asyncio.create_task(handlers.run(lambda _: None, SETTINGS, EventTimes()))
            await until_watched(server)
            server.broken = True
            with pytest.raises(KopfEndedError):
                await asyncio.wait_for(part, SECONDS_MAX)
            await until_kopf_ends()

    asyncio.run(scenario())


def test_kopf_ends_when_the_operator_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server = ApiServer(404)
        async with serving(server, tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            part = asyncio.create_task(handlers.run(lambda _: None, SETTINGS, EventTimes()))
            await until_watched(server)
            part.cancel()
            await asyncio.gather(part, return_exceptions=True)
            await until_kopf_ends()

    asyncio.run(scenario())


def test_the_process_exits_with_an_error_when_a_watch_is_refused(tmp_path: Path) -> None:
    async def scenario() -> int | None:
        server = ApiServer(404)
        async with serving(server, tmp_path) as config:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
            environment = {
                **os.environ,
                "KUBECONFIG": str(config),
                "ATOLL_WORKER_IMAGE": "w",
                "ATOLL_SYNCER_IMAGE": "s",
                "ATOLL_OPERATOR_HTTP_PORT": str(port),
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "atoll_operator", env=environment,
                stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                await until_watched(server)
                server.broken = True
                return await asyncio.wait_for(process.wait(), SECONDS_MAX)
            finally:
                if process.returncode is None:
                    process.kill()

    assert asyncio.run(scenario()) not in (None, 0)
