"""The edge to probes and Prometheus: /livez, /readyz, /metrics."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

Check = Callable[[], str]  # what is wrong, or nothing


async def serve(port: int, live: Check, ready: Check, registry: CollectorRegistry) -> web.AppRunner:
    """Listening when it returns."""

    def answer(check: Check) -> Callable[[web.Request], object]:
        async def handler(_: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=wrong or "ok", status=503 if wrong else 200)

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
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
