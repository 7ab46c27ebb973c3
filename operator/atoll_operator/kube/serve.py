"""The whole operator in one process: watches, the election, passes while it leads, probes.

    kopf: watch of jobs ──────────> cache ── keys of jobs ─┐
    watches of children ──────────> cache ── keys of jobs ─┤
    watch of nodes ── jobs with pods on a changed node ────┼─> term's queue ──> reconciler: one
    watch of Leases (clock of silence only)                │                    pass per job at
    a pass's own "again in n seconds" ─────────────────────┘                    a time
    election: the Lease, every two seconds ── begins and ends terms
    HTTP: /livez /readyz /metrics

All replicas keep the watches, so that a standby has no gap in what it has seen; the one that holds
the Lease has a term (`term`), and only that one asks shards, runs passes and writes.

The parts run until SIGTERM. One that ends by itself ends the process, which Kubernetes starts
again. On SIGTERM the passes end, then the Lease is given back. Everything runs in one event loop,
so no part needs a lock, and the queue sees to it that no two passes share a job's memory.
"""

import asyncio
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from atoll_operator.kube import health
from atoll_operator.kube.edges import http, watches
from atoll_operator.kube.edges.connection import connect
from atoll_operator.kube.edges.fence import Fence
from atoll_operator.kube.edges.jobs import Jobs
from atoll_operator.kube.edges.lease import Election
from atoll_operator.kube.edges.limiter import Limiter
from atoll_operator.kube.edges.namespaces import Namespaces
from atoll_operator.kube.edges.polls import Polls
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.edges.reflector import Reflector
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observed.cache import Sight
from atoll_operator.kube.settings import Settings
from atoll_operator.kube.term import Term, Terms, reconciler

log = structlog.get_logger()


def signs(terms: Terms, sights: Mapping[str, Sight]) -> health.Signs:
    election, term = terms.election, terms.now
    return health.Signs(
        now=time.monotonic(),
        leads=election.leads.is_set(),
        holder=election.holder,
        tried_at=election.tried_at,
        answering_since=election.answering_since,
        last_pass_at=term.passes.last_pass_at if term is not None else None,
        passes={"/".join(key): at for key, at in term.queue.running.items()} if term else {},
        sights=sights,
    )


def served(sights: Mapping[str, Sight], left_out: Collection[str]) -> dict[str, Sight]:
    """The sights that readiness counts: a namespace that is gone makes no replica unready."""
    return {path: each for path, each in sights.items() if each.namespace not in left_out}


async def end_of_first(stop: "asyncio.Task[Any]", parts: Collection["asyncio.Task[Any]"]) -> None:
    """Return when `stop` has ended; raises what ended a part, or that one has ended by itself."""
    ended, _ = await asyncio.wait({stop, *parts}, return_when=asyncio.FIRST_COMPLETED)
    for each in ended - {stop}:
        each.result()
        raise RuntimeError("a part of the operator has ended")


def want_lists(jobs: Sequence[Jobs], namespace: str) -> None:
    for each in jobs:
        if each.sight.namespace in ("", namespace):
            each.wants_list.set()


async def serve(settings: Settings) -> None:
    """Returns on SIGTERM or SIGINT; raises what ended one of its parts."""
    limiter = Limiter(per_second=settings.api_requests_per_second, burst=settings.api_burst)
    fence, metrics, nodes = Fence(), Metrics(), Nodes(region_label=settings.region_label)

    def counts(verb: str, status: int) -> None:
        metrics.requests.labels(verb, str(status)).inc()

    server = await connect(limiter, fence=fence, counts=counts)
    namespace, name = settings.lease
    election = Election(api=server, fence=fence, namespace=namespace, name=name)
    metrics.leader.set_function(election.leads.is_set)

    def begin() -> Term:
        syncers = Syncers(fence=fence)
        polls = Polls(syncers=syncers, done=terms.ask)
        passes = reconciler(server, syncers, polls, nodes, settings, metrics)
        passes.writer.missing = partial(want_lists, jobs)
        passes.writer.busy = lambda: limiter.is_busy
        queue = Queue(reconcile=passes.reconcile)
        return Term(queue=queue, passes=passes, polls=polls, syncers=syncers)

    terms = Terms(election=election, begin=begin)
    cache = server.cache
    jobs = [
        Jobs(api=server, source=watches.jobs(cache, each, terms.ask, terms.edited))
        for each in settings.namespaces or [""]
    ]
    others = watches.sources(cache, nodes, settings.namespaces, terms.ask)
    follow: list[Reflector] = [*jobs, *(Reflector(api=server, source=each) for each in others)]
    made_of = [each for each in follow if each.source.path in cache.sights]
    namespaces = Namespaces(
        api=server,
        cache=cache,
        namespaces=settings.namespaces,
        lease=settings.lease,
        feed=terms.ask,
    )
    sights = cache.sights | cache.failures_sights | nodes.sights

    def live() -> health.Health:
        return health.live(signs(terms, sights))

    def ready() -> health.Health:
        return health.ready(signs(terms, served(sights, cache.left_out)))

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = await http.serve(settings.http_port, live, ready, metrics.registry)
    parts = [asyncio.create_task(each.follow()) for each in follow]
    own = (namespaces.follow(), terms.run(follow, made_of))
    parts += [asyncio.create_task(each) for each in own]
    electing = asyncio.create_task(election.follow())
    log.info("operator runs", regions=settings.regions, name=election.me)
    stop = asyncio.create_task(stopping.wait())
    try:
        await end_of_first(stop, [electing, *parts])
    finally:
        for each in (stop, *parts):
            each.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        electing.cancel()
        await asyncio.gather(electing, return_exceptions=True)
        await election.release()
        await runner.cleanup()
        await server.close()
