"""The whole operator in one process: watches, passes, probes; until SIGTERM.

    kopf's thread ── keys of jobs and children ─┐
    watch of nodes ── every known job ──────────┼─> queue ──> reconciler: one pass per job at a time
    watch of Leases (clock of silence only)     │
    a pass's own "again in n seconds" ──────────┘
    HTTP: /livez /readyz /metrics

These parts run until one of them ends. None of them may end by itself, so an end of one is raised
and the process exits; Kubernetes starts it again, and it begins with a listing of everything.

Everything but kopf runs in one event loop, so no part needs a lock: a pass that awaits an answer
lets the others run, and the queue sees to it that no two passes share a job's memory.

Only one replica may run at a time (the chart's Deployment has the strategy Recreate). Two would
not break a job, since every write is idempotent and every owner's word numbered, but they would
write the same statuses twice and delay one another's.
"""

import asyncio
import signal
import time

import structlog

from atoll_operator.kube import health
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.edges import api, handlers, http, watches
from atoll_operator.kube.edges.queue import Key, Queue
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observe import Observer
from atoll_operator.kube.reconcile import Reconciler
from atoll_operator.kube.repair import Repair
from atoll_operator.kube.report import StatusWriter
from atoll_operator.kube.settings import Settings

log = structlog.get_logger()


def reconciler(
    server: api.Api, syncers: Syncers, nodes: Nodes, settings: Settings, metrics: Metrics
) -> Reconciler:
    """The phases of a pass, put together."""
    repair = Repair(api=server, syncers=syncers, metrics=metrics)
    return Reconciler(
        api=server,
        settings=settings,
        metrics=metrics,
        observer=Observer(api=server, syncers=syncers, nodes=nodes, settings=settings),
        applier=Applier(api=server, metrics=metrics, repair=repair),
        writer=StatusWriter(api=server, metrics=metrics),
    )


def ages(
    passes: Reconciler, queue: Queue, nodes: Nodes, events: handlers.EventTimes
) -> health.Ages:
    """How old everything is now, for the probes."""
    now, last = time.monotonic(), passes.last_pass_at
    return health.Ages(
        last_pass=None if last is None else now - last,
        passes={"/".join(key): now - begun for key, begun in queue.running.items()},
        watches={path: now - at for path, at in nodes.last_at.items()},
        events=events.ages(now),
    )


async def serve(settings: Settings) -> None:
    """Returns on SIGTERM or SIGINT; raises what ended one of its parts."""
    server, syncers, metrics = await api.connect(), Syncers(), Metrics()
    nodes, events = Nodes(region_label=settings.region_label), handlers.EventTimes()
    passes = reconciler(server, syncers, nodes, settings, metrics)
    queue = Queue(reconcile=passes.reconcile)

    def feed(key: Key) -> None:
        passes.touch(key)
        queue.add(key)

    def nodes_changed() -> None:
        for key in passes.memories:
            queue.add(key)

    def live() -> health.Health:
        return health.live(ages(passes, queue, nodes, events))

    def ready() -> health.Health:
        return health.ready(ages(passes, queue, nodes, events), listed=nodes.ready)

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = await http.serve(settings.http_port, live, ready, metrics.registry)
    parts = [
        asyncio.create_task(watches.follow(server, api.NODES, nodes, nodes_changed)),
        asyncio.create_task(watches.follow(server, api.LEASES, nodes, lambda: None)),
        asyncio.create_task(queue.run()),
        asyncio.create_task(handlers.run(feed, settings, events)),
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
