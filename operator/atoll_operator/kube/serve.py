"""The whole operator in one process: watches, passes, probes; until SIGTERM.

    kopf: watch of jobs ──────────> cache ── keys of jobs ─┐
    watches of children ──────────> cache ── keys of jobs ─┤
    watch of nodes ── jobs with pods on a changed node ────┼─> queue ──> reconciler: one pass
    watch of Leases (clock of silence only)                │             per job at a time
    a pass's own "again in n seconds" ─────────────────────┘
    HTTP: /livez /readyz /metrics

The queue begins when everything has been listed once, or after FIRST_LISTS_SECONDS_MAX: then a job
whose objects cannot be listed at least says so. These parts run until one of them ends. None of
them may end by itself, so an end of one is raised and the process exits; Kubernetes starts it
again, and it begins with a listing of everything.

Everything runs in one event loop, so no part needs a lock: a pass that awaits an answer
lets the others run, and the queue sees to it that no two passes share a job's memory.

Only one replica may run at a time (the chart's Deployment has the strategy Recreate). Two would
not break a job, since every write is idempotent and every owner's word numbered, but they would
write the same statuses twice and delay one another's.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping, Sequence

import structlog

from atoll_operator.kube import health
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key, Sight
from atoll_operator.kube.edges import api, http, watches
from atoll_operator.kube.edges.jobs import Jobs
from atoll_operator.kube.edges.limiter import Limiter
from atoll_operator.kube.edges.polls import Polls
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.edges.reflector import Reflector
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observe import Observer
from atoll_operator.kube.reconcile import Reconciler
from atoll_operator.kube.recorder import Recorder
from atoll_operator.kube.repair import Repair
from atoll_operator.kube.report import StatusWriter
from atoll_operator.kube.settings import Settings

FIRST_LISTS_SECONDS_MAX = 10.0

log = structlog.get_logger()


def reconciler(
    server: api.Api,
    syncers: Syncers,
    polls: Polls,
    nodes: Nodes,
    settings: Settings,
    metrics: Metrics,
) -> Reconciler:
    """The phases of a pass, put together."""
    recorder = Recorder(api=server, metrics=metrics)
    repair = Repair(api=server, syncers=syncers, metrics=metrics, recorder=recorder)
    return Reconciler(
        settings=settings,
        metrics=metrics,
        observer=Observer(cache=server.cache, polls=polls, nodes=nodes, settings=settings),
        applier=Applier(api=server, metrics=metrics, repair=repair),
        writer=StatusWriter(api=server, metrics=metrics, recorder=recorder),
    )


def reflectors(server: api.Api, nodes: Nodes, settings: Settings, queue: Queue) -> list[Reflector]:
    """One for each collection; their sights are those of the cache and of the nodes."""
    found, now = [], time.monotonic()
    for source in watches.sources(server.cache, nodes, settings.namespaces, queue.add):
        sight = Sight(tried_at=now)
        if source.path in (api.NODES, api.LEASES):
            nodes.sights[source.path] = sight
        elif source.path.endswith("/events"):
            server.cache.failures_sights[source.path] = sight
        else:
            server.cache.sights[source.path] = sight
        found.append(Reflector(api=server, source=source, sight=sight))
    return found


def ages(passes: Reconciler, queue: Queue, sights: Mapping[str, Sight]) -> health.Ages:
    """How old everything is now, for the probes."""
    now, last = time.monotonic(), passes.last_pass_at
    return health.Ages(
        last_pass=None if last is None else now - last,
        passes={"/".join(key): now - begun for key, begun in queue.running.items()},
        watches={path: health.watch_age(each, now) for path, each in sights.items()},
    )


async def run_passes(queue: Queue, follow: Sequence[Reflector | Jobs]) -> None:
    """The queue, from the moment on when passes can judge something."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_LISTS_SECONDS_MAX):
            for each in follow:
                await each.listed.wait()
    await queue.run()


async def serve(settings: Settings) -> None:
    """Returns on SIGTERM or SIGINT; raises what ended one of its parts."""
    limiter = Limiter(per_second=settings.api_requests_per_second, burst=settings.api_burst)
    server, syncers, metrics = await api.connect(limiter), Syncers(), Metrics()
    nodes = Nodes(region_label=settings.region_label)

    def asked(key: Key) -> None:
        queue.add(key)

    polls = Polls(syncers=syncers, done=asked)
    passes = reconciler(server, syncers, polls, nodes, settings, metrics)
    queue = Queue(reconcile=passes.reconcile)
    jobs = Jobs(
        api=server,
        cache=server.cache,
        namespaces=settings.namespaces,
        feed=queue.add,
        edited=queue.lift,
    )
    passes.writer.missing = jobs.wants_list.set
    server.cache.sights.update(jobs.sights)
    follow: list[Reflector | Jobs] = [jobs, *reflectors(server, nodes, settings, queue)]
    sights = server.cache.sights | server.cache.failures_sights | nodes.sights

    def live() -> health.Health:
        return health.live(ages(passes, queue, sights))

    def ready() -> health.Health:
        return health.ready(ages(passes, queue, sights))

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = await http.serve(settings.http_port, live, ready, metrics.registry)
    parts = [asyncio.create_task(each.follow()) for each in follow]
    parts.append(asyncio.create_task(run_passes(queue, follow)))
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
        await polls.close()
        await syncers.close()
        await server.close()
