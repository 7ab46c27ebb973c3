"""The whole operator: watches, passes, probes; until SIGTERM."""

import asyncio
import signal
import time

import structlog

from atoll_operator.kube.edges import api, handlers, http, watches
from atoll_operator.kube.edges.queue import Key, Queue
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.reconcile import Reconciler
from atoll_operator.kube.repair import Repair
from atoll_operator.kube.settings import Settings
from atoll_operator.kube.speaker import Speaker

PASS_SECONDS_MAX = 120.0
WATCH_SILENCE_SECONDS_MAX = 420.0  # longer than one watch

log = structlog.get_logger()


async def serve(settings: Settings) -> None:
    """Returns on SIGTERM or SIGINT; raises what ended one of its parts."""
    server, syncers, metrics = await api.connect(), Syncers(), Metrics()
    nodes = watches.Nodes(region_label=settings.region_label)
    speaker = Speaker(api=server, settings=settings, metrics=metrics)
    repair = Repair(api=server, syncers=syncers, nodes=nodes, metrics=metrics, speaker=speaker)
    reconciler = Reconciler(
        api=server,
        syncers=syncers,
        nodes=nodes,
        settings=settings,
        metrics=metrics,
        repair=repair,
        speaker=speaker,
    )
    queue = Queue(reconcile=reconciler.reconcile)

    def feed(key: Key) -> None:
        reconciler.touch(key)
        queue.add(key)

    def nodes_changed() -> None:
        for key in reconciler.memories:
            queue.add(key)

    def live() -> str:
        now = time.monotonic()
        slow = [k for k, begun in queue.running.items() if now - begun > PASS_SECONDS_MAX]
        deaf = [p for p, at in nodes.heard_at.items() if now - at > WATCH_SILENCE_SECONDS_MAX]
        return "; ".join(
            [*(f"pass of {k} hangs" for k in slow), *(f"no word of {p}" for p in deaf)]
        )

    def ready() -> str:
        return "" if nodes.ready else "nodes are not listed yet"

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = await http.serve(settings.http_port, live, ready, metrics.registry)
    parts = [
        asyncio.create_task(watches.follow(server, api.NODES, nodes, nodes_changed)),
        asyncio.create_task(watches.follow(server, api.LEASES, nodes, lambda: None)),
        asyncio.create_task(queue.run()),
        asyncio.create_task(handlers.run(feed, settings, handlers.Heard())),
    ]
    log.info("operator runs", regions=settings.regions)
    stop = asyncio.create_task(stopping.wait())
    try:
        ended, _ = await asyncio.wait({stop, *parts}, return_when=asyncio.FIRST_COMPLETED)
        for each in ended - {stop}:
            each.result()
            raise RuntimeError("a part of the operator has ended")
    finally:
        for each in (stop, *parts):
            each.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await runner.cleanup()
        await syncers.close()
        await server.close()
