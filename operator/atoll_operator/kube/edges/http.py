"""The edge to probes and Prometheus: /livez, /readyz and /metrics over HTTP.

A probe answers 200, or 503 when something is wrong, and says in a JSON object what, and how old the
last pass and each watch are.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from atoll_operator.kube.health import Health
from atoll_protos.network.listening import listening_socket

Check = Callable[[], Health]


async def serve(port: int, live: Check, ready: Check, registry: CollectorRegistry) -> web.AppRunner:
    """Start the server; it listens on all addresses when this returns. The caller cleans up."""

    def answer(check: Check) -> Callable[[web.Request], object]:
        async def handler(_: web.Request) -> web.Response:
            health = check()
            return web.json_response(health.body(), status=200 if health.ok else 503)

        return handler

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(registry), headers=headers)

    app = web.Application()
    app.router.add_get("/livez", answer(live))  # type: ignore[arg-type]
    app.router.add_get("/readyz", answer(ready))  # type: ignore[arg-type]
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening_socket("", port)).start()
    return runner
