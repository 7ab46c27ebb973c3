"""The whole operator in one process: watches, the election, passes while it leads, probes.

    kopf: watch of jobs ──────────> cache ── keys of jobs ─┐
    watches of children ──────────> cache ── keys of jobs ─┤
    watch of nodes ── jobs with pods on a changed node ────┼─> term's queue ──> reconciler: one
    watch of Leases (clock of silence only)                │                    pass per job at
    a pass's own "again in n seconds" ─────────────────────┘                    a time
    election: the Lease, every two seconds ── begins and ends terms
    HTTP: /livez /readyz /metrics

Two replicas run, or more. All of them keep the watches; the one that holds the Lease has a term
(`term`), and only that one asks shards, runs passes and writes. Another takes over within some 15 s
of the leader's death, at once when it ends in good order, and without a gap in what it has seen:
the silence of a node's Lease is counted by a standby too. A leader that cannot renew its Lease, or
that was stopped and goes on later, is refused every write by its own clock (`edges.fence`) and
stands by.

These parts run until SIGTERM, or until one of them ends. None of them may end by itself, so an end
of one is raised and the process exits; Kubernetes starts it again, and it begins with a listing of
everything. On SIGTERM the passes end, then the Lease is given back.

Everything runs in one event loop, so no part needs a lock: a pass that awaits an answer
lets the others run, and the queue sees to it that no two passes share a job's memory.
"""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from atoll_operator.kube import health
from atoll_operator.kube.cache import Sight
from atoll_operator.kube.edges import api, http, watches
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
from atoll_operator.kube.edges.watches import Feed, Nodes
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.settings import Settings
from atoll_operator.kube.term import Term, Terms, reconciler

log = structlog.get_logger()


def reflectors(server: api.Api, nodes: Nodes, settings: Settings, feed: Feed) -> list[Reflector]:
    """One for each collection; their sights are those of the cache and of the nodes."""
    found, now = [], time.monotonic()
    for source in watches.sources(server.cache, nodes, settings.namespaces, feed):
        sight = Sight(namespace=source.namespace, tried_at=now)
        if source.path in (api.NODES, api.LEASES):
            nodes.sights[source.path] = sight
        elif source.path.endswith("/events"):
            server.cache.failures_sights[source.path] = sight
        else:
            server.cache.sights[source.path] = sight
        found.append(Reflector(api=server, source=source, sight=sight))
    return found


def ages(terms: Terms, sights: Mapping[str, Sight]) -> health.Ages:
    """How old everything is now, for the probes."""
    now, election, term = time.monotonic(), terms.election, terms.now
    last = term.passes.last_pass_at if term is not None else None
    running = term.queue.running if term is not None else {}
    answering = election.answering_since
    return health.Ages(
        election=health.ElectionAge(
            leads=election.leads.is_set(),
            holder=election.holder,
            tried=now - election.tried_at,
            answering=None if answering is None else now - answering,
        ),
        last_pass=None if last is None else now - last,
        passes={"/".join(key): now - begun for key, begun in running.items()},
        watches={path: health.watch_age(each, now) for path, each in sights.items()},
    )


def want_lists(jobs: Sequence[Jobs], namespace: str) -> None:
    """Have the jobs of a namespace listed again."""
    for each in jobs:
        if each.namespace in ("", namespace):
            each.wants_list.set()


async def serve(settings: Settings) -> None:
    """Returns on SIGTERM or SIGINT; raises what ended one of its parts."""
    limiter = Limiter(per_second=settings.api_requests_per_second, burst=settings.api_burst)
    fence, metrics, nodes = Fence(), Metrics(), Nodes(region_label=settings.region_label)

    def counts(verb: str, status: int) -> None:
        metrics.requests.labels(verb, str(status)).inc()

    server = await connect(limiter, fence=fence, counts=counts)
    namespace, name = settings.lease
    election = Election(
        api=server, fence=fence, namespace=namespace, name=name, gauge=metrics.leader
    )

    def begin() -> Term:
        syncers = Syncers(fence=fence)
        polls = Polls(syncers=syncers, done=terms.ask)
        passes = reconciler(server, syncers, polls, nodes, settings, metrics)
        passes.writer.missing = partial(want_lists, jobs)
        passes.writer.busy = lambda: limiter.is_busy
        queue = Queue(reconcile=passes.reconcile)
        return Term(queue=queue, passes=passes, polls=polls, syncers=syncers)

    terms = Terms(election=election, begin=begin)
    jobs = [
        Jobs(
            api=server,
            cache=server.cache,
            namespace=each,
            feed=terms.ask,
            edited=terms.edited,
        )
        for each in settings.namespaces or [""]
    ]
    server.cache.sights.update({each.path: each.sight for each in jobs})
    found = reflectors(server, nodes, settings, terms.ask)
    follow: list[Reflector | Jobs] = [*jobs, *found]
    made_of: list[Reflector | Jobs] = [
        *jobs,
        *(each for each in found if each.source.path in server.cache.sights),
    ]
    namespaces = Namespaces(
        api=server,
        cache=server.cache,
        namespaces=settings.namespaces,
        lease=settings.lease,
        feed=terms.ask,
    )
    sights = server.cache.sights | server.cache.failures_sights | nodes.sights

    def live() -> health.Health:
        return health.live(ages(terms, sights))

    def ready() -> health.Health:
        left_out = server.cache.left_out
        served = {path: each for path, each in sights.items() if each.namespace not in left_out}
        return health.ready(ages(terms, served))

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = await http.serve(settings.http_port, live, ready, metrics.registry)
    parts = [asyncio.create_task(each.follow()) for each in (*follow, namespaces)]
    parts.append(asyncio.create_task(terms.run(follow, made_of)))
    electing = asyncio.create_task(election.follow())
    log.info("operator runs", regions=settings.regions, name=election.me)
    stop = asyncio.create_task(stopping.wait())
    try:
        everything = {stop, electing, *parts}
        ended, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        for each in ended - {stop}:
            each.result()
            raise RuntimeError("a part of the operator has ended")
    finally:
        for each in (stop, *parts):
            each.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        electing.cancel()
        await asyncio.gather(electing, return_exceptions=True)
        await election.release()
        await runner.cleanup()
        await server.close()
