"""An API server behind a proxy that refuses, delays, hangs, breaks off and goes away on command.

The proxy lies between one operator, which runs here as a process, and the API server of a cluster
of the lab. Everything that it does not spoil it passes on unchanged, with the credentials of the
cluster's administrator, and it counts what it is asked.

A watch that hangs is what a connection whose peer has died looks like: it stays open, and nothing
comes. What was under way stays where it is, and a new request to the same collection is taken and
never answered.
"""

import asyncio
import base64
import contextlib
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from unit.kube.api_server import kubeconfig

HOP_BY_HOP = {"connection", "host", "keep-alive", "transfer-encoding", "content-length"}
START_SECONDS_MAX = 300.0

Refusal = tuple[int, dict[str, str]]  # HTTP status and headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that arrived."""

    at: float  # monotonic
    verb: str  # get, list, watch, or as HTTP has it
    path: str
    status: int  # 0: none was sent


@dataclass(slots=True)
class Faults:
    """What is spoilt now. The test writes it, the proxy reads it."""

    refuses: Callable[[str, str], Refusal | None] = lambda verb, path: None
    hangs: Callable[[str], bool] = lambda path: False
    delay_seconds: float = 0.0
    away: bool = False


@dataclass(slots=True)
class Proxy:
    """Runs in a thread of its own, with an event loop of its own."""

    kubeconfig: str  # of the cluster
    folder: Path
    faults: Faults = field(default_factory=Faults)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    server: str = ""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    session: Any = None
    streams: dict[int, web.Request] = field(default_factory=dict)  # what is open now, by id()
    dead: set[int] = field(default_factory=set)  # of those what hangs for ever
    serves: threading.Event = field(default_factory=threading.Event)
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    thread: threading.Thread | None = None

    def start(self) -> Path:
        """Serve; returns a KUBECONFIG for clients that are to come through here."""
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert self.serves.wait(START_SECONDS_MAX)
        config = self.folder / "faulty.kubeconfig"
        config.write_text(kubeconfig(self.url))
        return config

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.ends.set)
        if self.thread is not None:
            self.thread.join(START_SECONDS_MAX)

    def break_off(self) -> None:
        """Reset every connection that has a request under way, such as a watch."""

        def reset() -> None:
            for each in list(self.streams.values()):
                if each.transport is not None:
                    each.transport.abort()

        self.loop.call_soon_threadsafe(reset)

    def hang_what_is_open(self) -> None:
        """Let nothing more come on the watches that are open now; they are not closed."""
        self.loop.call_soon_threadsafe(lambda: self.dead.update(self.streams))

    def since(self, moment: float) -> list[Asked]:
        """What was asked from then on."""
        return [each for each in list(self.asked) if each.at >= moment]

    def busiest_minute(self, moment: float) -> Counter[str]:
        """How often what was asked, in the minute from then on in which most was asked."""
        found = self.since(moment)
        minutes = [[b for b in found if a.at <= b.at < a.at + 60.0] for a in found]
        return Counter(f"{each.verb} {each.path}" for each in max(minutes, key=len, default=[]))

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:  # it ends what still hangs
            runner.run(self._run())

    async def _run(self) -> None:
        self.server, context = _credentials(self.kubeconfig)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self.session:
            app = web.Application(client_max_size=1 << 26)
            app.router.add_route("*", "/{path:.*}", self._take)
            runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self.serves.set()
            await self.ends.wait()
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.StreamResponse:
        verb, path = _verb(request), request.path
        asked_at = time.monotonic()
        self.streams[id(request)] = request
        status = 0
        try:
            answer = await self._answer(request, verb, path)
            status = answer.status
        finally:
            self.streams.pop(id(request), None)
            self.dead.discard(id(request))
            self.asked.append(Asked(at=asked_at, verb=verb, path=path, status=status))
        return answer

    async def _answer(self, request: web.Request, verb: str, path: str) -> web.StreamResponse:
        if self.faults.away and request.transport is not None:
            request.transport.abort()
            return web.Response(status=502)
        await asyncio.sleep(self.faults.delay_seconds if verb != "watch" else 0.0)
        await self._while_it_hangs(request)
        refusal = self.faults.refuses(verb, path)
        if refusal is not None:
            status, headers = refusal
            body = {"kind": "Status", "code": status, "message": f"refused with {status} by a test"}
            return web.json_response(body, status=status, headers=headers)
        return await self._pass_on(request, path)

    async def _pass_on(self, request: web.Request, path: str) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        headers.pop("Authorization", None)
        body = await request.read() or None  # an empty one would be given a media type
        try:
            async with self.session.request(
                request.method, f"{self.server}{path}", params=request.query,
                data=body, headers=headers,
            ) as answer:  # fmt: skip
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
                kept.pop("Content-Encoding", None)
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await self._while_it_hangs(request)
                    await response.write(chunk)
                return response
        except aiohttp.ClientError:  # the API server itself is away
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _while_it_hangs(self, request: web.Request) -> None:
        while id(request) in self.dead or self.faults.hangs(request.path):  # noqa: ASYNC110  the test's thread ends it
            await asyncio.sleep(0.1)


def _verb(request: web.Request) -> str:
    if request.method != "GET":
        return request.method.lower()
    if request.query.get("watch"):
        return "watch"
    return "list" if "limit" in request.query else "get"


def _credentials(kubeconfig: str) -> tuple[str, ssl.SSLContext]:
    """The server of a kubeconfig, and how to talk to it as its user."""
    raw = yaml.safe_load(Path(kubeconfig).read_text())
    cluster, user = raw["clusters"][0]["cluster"], raw["users"][0]["user"]
    context = ssl.create_default_context(cadata=_text(cluster, "certificate-authority"))
    with contextlib.ExitStack() as stack:
        files = []
        for name in ("client-certificate", "client-key"):
            file = stack.enter_context(tempfile.NamedTemporaryFile("w"))
            file.write(_text(user, name))
            file.flush()
            files.append(file.name)
        context.load_cert_chain(*files)
    return cluster["server"], context


def _text(holder: dict[str, str], name: str) -> str:
    if f"{name}-data" in holder:
        return base64.b64decode(holder[f"{name}-data"]).decode()
    return Path(holder[name]).read_text()
