"""The whole operator in one process: watches, the election, passes while it leads, probes.

    kopf: watch of jobs ──────────> cache ── keys of jobs ─┐
    watches of children ──────────> cache ── keys of jobs ─┤
    watch of nodes ── jobs with pods on a changed node ────┼─> term's queue ──> reconciler: one
    watch of Leases (clock of silence only)                │                    pass per job at
    a pass's own "again in n seconds" ─────────────────────┘                    a time
    election: the Lease, every two seconds ── begins and ends terms
    HTTP: /livez /readyz /metrics

All replicas keep the watches, so that a standby has no gap in what it has seen; the one that holds
the Lease has a `Term`, and only that one asks shards, runs passes and writes. Memories, channels
and the queue end with their term: what a former one has seen begin may have ended while another
replica led. A standby's watches may be behind by an event, or by a minute if their connection has
died, so a term begins with a list of the jobs and of all that they are made of.

The parts run until SIGTERM. One that ends by itself ends the process, which Kubernetes starts
again. On SIGTERM the passes end, then the Lease is given back. Everything runs in one event loop,
so no part needs a lock, and the queue sees to it that no two passes share a job's memory.

The liveness probe fails only for what a restart heals: a pass or the election that hangs, though
each of its calls has a deadline, or a watch that has neither failed nor seen a sign of life. An API
server that is away or refuses is none of these, however long it lasts. The readiness probe fails
until every collection has been listed, and while one has been out of sight for BROKEN_SECONDS_MAX
of an API server that answers, as is known from the election, which asks it every two seconds. A
standby is ready. Nothing is routed by readiness.
"""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from kubernetes.aio import client, config
from kubernetes.aio.dynamic import DynamicClient
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from atoll_operator.kube.edges import api, watches
from atoll_operator.kube.edges.api import Api, Count, Limiter
from atoll_operator.kube.edges.election import Fence
from atoll_operator.kube.edges.jobs import Jobs
from atoll_operator.kube.edges.lease import Election
from atoll_operator.kube.edges.polls import Polls, Syncers
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.edges.watches import ERRORS, Nodes, Reflector
from atoll_operator.kube.effects.apply import Applier
from atoll_operator.kube.effects.report import Recorder, StatusWriter
from atoll_operator.kube.effects.secrets import Secrets
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import COMPONENT
from atoll_operator.kube.observed.cache import Key, Ledger, Sight
from atoll_operator.kube.reconcile import ClusterObserver, Reconciler
from atoll_operator.kube.settings import Settings
from atoll_protos.network.listening import listening_socket

FIRST_LISTS_SECONDS_MAX = 10.0
LIST_AGAIN_SECONDS = 1.0
FRESH_SECONDS_MAX = 90.0  # a watch that has died without a word has been begun again by then

log = structlog.get_logger()

Followed = Sequence[Reflector]


def reconciler(
    server: api.Api,
    syncers: Syncers,
    polls: Polls,
    nodes: Nodes,
    settings: Settings,
    metrics: Metrics,
) -> Reconciler:
    recorder = Recorder(api=server, metrics=metrics)
    secrets = Secrets(api=server, metrics=metrics, settings=settings)
    return Reconciler(
        settings=settings,
        metrics=metrics,
        observer=ClusterObserver(cache=server.cache, polls=polls, nodes=nodes, secrets=secrets),
        applier=Applier(
            api=server, metrics=metrics, syncers=syncers, recorder=recorder, secrets=secrets
        ),
        writer=StatusWriter(api=server, metrics=metrics, recorder=recorder),
    )


@dataclass(slots=True, kw_only=True)
class Term:
    """One time of leading."""

    queue: Queue
    passes: Reconciler
    polls: Polls

    async def run(self, follow: Followed, made_of: Followed) -> None:
        """Run until cancelled, and until all passes have ended.

        It begins when everything has been listed once, or after FIRST_LISTS_SECONDS_MAX: then a job
        whose objects cannot be listed at least says so.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LISTS_SECONDS_MAX):
                    for reflector in follow:
                        await reflector.listed.wait()
            await asyncio.gather(*(fresh(reflector) for reflector in made_of))
            for raw in self.passes.observer.cache.jobs(""):
                self.queue.add((raw["metadata"]["namespace"], raw["metadata"]["name"]))
            await self.queue.run()
        finally:
            await self.polls.close()
            self.passes.metrics.held.set(0)
            self.passes.metrics.show_states(())


async def fresh(each: Reflector) -> None:
    """List a collection now; not where its watch is broken, nor for more than FRESH_SECONDS_MAX."""
    until = time.monotonic() + FRESH_SECONDS_MAX
    while not each.is_broken and time.monotonic() < until:
        try:
            await each.list_now()
        except ERRORS as error:
            log.warning("list failed", error=str(error) or type(error).__name__)
            await asyncio.sleep(LIST_AGAIN_SECONDS)
        else:
            return


@dataclass(slots=True, kw_only=True)
class Terms:
    """A term after the other, as the election says; between two of them nothing is done."""

    election: Election
    begin: Callable[[], Term]
    now: Term | None = None

    def ask(self, key: Key) -> None:
        """Ask for a pass; a standby forgets it, because a term begins with all jobs."""
        if self.now is not None:
            self.now.queue.add(key)

    def edited(self, key: Key) -> None:
        if self.now is not None:
            self.now.queue.lift(key)

    async def run(self, follow: Followed, made_of: Followed) -> None:
        """Until cancelled; raises what ends a term but for the election."""
        while True:
            await self.election.leads.wait()
            self.now = self.begin()
            parts = [
                asyncio.create_task(self.now.run(follow, made_of)),
                asyncio.create_task(self.election.stands_by.wait()),
            ]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                if parts[0].done():
                    parts[0].result()
                    raise RuntimeError("the passes have ended by themselves")
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
                self.now = None


async def connect(
    limiter: Limiter,
    kubeconfig: str | None = None,
    *,
    fence: Fence | None = None,
    counts: Count = lambda verb, status: None,
) -> Api:
    """Connect with the pod's service account; outside of a cluster with this file or KUBECONFIG."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(kubeconfig, client_configuration=settings)
    settings.connection_pool_maxsize = 0  # no limit: each watch holds a connection
    connection = client.ApiClient(settings)
    connection.user_agent = COMPONENT  # in the API server's audit log and metrics
    return Api(
        client=connection,
        dynamic=DynamicClient(connection),
        limiter=limiter,
        fence=fence,
        counts=counts,
    )


PASS_SECONDS_MAX = 120.0
WATCH_SECONDS_MAX = 180.0  # longer than silence, back-off and the deadline of a call together
BROKEN_SECONDS_MAX = 60.0
ELECTION_SECONDS_MAX = 60.0  # longer than a look at the Lease with the deadlines of its calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What each part of the operator did last, in monotonic seconds; None: never yet."""

    now: float
    leads: bool
    holder: str  # who leads, as far as this replica knows; empty: nobody
    tried_at: float  # when it last looked at the Lease, or tried to
    answering_since: float | None  # since when the API server answers each look; None: it does not
    last_pass_at: float | None = None  # that succeeded
    passes: Mapping[str, float] = field(default_factory=dict)  # that run: since when, by job
    sights: Mapping[str, Sight] = field(default_factory=dict)  # by path

    def body(self, problems: Sequence[str]) -> dict[str, object]:
        """Return a probe's answer as JSON: what is wrong, and ages in seconds."""

        def age(at: float | None) -> float | None:
            return None if at is None else round(self.now - at, 1)

        return {
            "ok": not problems,
            "problems": list(problems),
            "role": "leader" if self.leads else "standby",
            "leader": self.holder,
            "leaseSeconds": age(self.tried_at),
            "lastPassSeconds": age(self.last_pass_at),
            "runningPassSeconds": {job: age(at) for job, at in sorted(self.passes.items())},
            "watchSeconds": {path: age(x.alive_at) for path, x in sorted(self.sights.items())},
        }


def is_live(signs: Signs) -> list[str]:
    """Return what hangs."""
    now, watches = signs.now, signs.sights.items()
    problems = [
        f"the pass of {k} hangs" for k, at in signs.passes.items() if now - at > PASS_SECONDS_MAX
    ]
    problems += [
        f"the watch of {k} hangs" for k, x in watches if now - x.tried_at > WATCH_SECONDS_MAX
    ]
    if now - signs.tried_at > ELECTION_SECONDS_MAX:
        problems.append("the election hangs")
    return problems


def is_ready(signs: Signs) -> list[str]:
    """Return what cannot be seen."""
    problems, now = [], signs.now
    answering = 0.0 if signs.answering_since is None else now - signs.answering_since
    for path, sight in signs.sights.items():
        why = f": {sight.problem}" if sight.problem else ""
        broken = 0.0 if sight.broken_at is None else now - sight.broken_at
        if not sight.listed and not sight.gone:
            problems.append(f"{path} is not listed yet{why}")
        elif min(broken, answering) > BROKEN_SECONDS_MAX and not sight.gone:
            problems.append(f"{path} cannot be watched{why}")
    return problems


CHECKS = {"/livez": is_live, "/readyz": is_ready}
CONNECTIONS_MAX: Final = 64


class Server(web.Server):
    """One connection more ends the oldest: who holds some open shuts out no probe."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> None:
        super().__init__(handler, access_log=None)
        self._newest: deque[RequestHandler] = deque()

    def __call__(self) -> RequestHandler:
        connection = super().__call__()
        self._newest.append(connection)
        if len(self._newest) > CONNECTIONS_MAX:
            self._newest.popleft().force_close()
        return connection


async def serve_http(
    port: int, signs: Callable[[], Signs], registry: CollectorRegistry
) -> web.ServerRunner:
    """Answer probes, and scrapes in Prometheus' format, on all addresses; the caller cleans up."""

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method not in {"GET", "HEAD"}:
            raise web.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"))
        if request.path == "/metrics":
            headers = {"Content-Type": CONTENT_TYPE_LATEST}
            return web.Response(body=generate_latest(registry), headers=headers)
        if request.path not in CHECKS:
            raise web.HTTPNotFound
        seen = signs()
        problems = CHECKS[request.path](seen)
        return web.json_response(seen.body(problems), status=503 if problems else 200)

    runner = web.ServerRunner(Server(answer))
    await runner.setup()
    await web.SockSite(runner, listening_socket("", port)).start()
    return runner


def signs(terms: Terms, sights: Mapping[str, Sight]) -> Signs:
    election, term = terms.election, terms.now
    return Signs(
        now=time.monotonic(),
        leads=election.leads.is_set(),
        holder=election.holder,
        tried_at=election.tried_at,
        answering_since=election.answering_since,
        last_pass_at=term.passes.last_pass_at if term is not None else None,
        passes={"/".join(key): at for key, at in term.queue.running.items()} if term else {},
        sights=sights,
    )


async def end_of_first(stop: "asyncio.Task[Any]", parts: Collection["asyncio.Task[Any]"]) -> None:
    """Return when `stop` has ended; raises what ended a part, or that one has ended by itself."""
    ended, _ = await asyncio.wait({stop, *parts}, return_when=asyncio.FIRST_COMPLETED)
    for each in ended - {stop}:
        each.result()
        raise RuntimeError("a part of the operator has ended")


async def serve(settings: Settings) -> None:
    """Return on SIGTERM or SIGINT; raises what ended one of its parts."""
    limiter = Limiter(per_second=settings.api_requests_per_second, burst=settings.api_burst)
    fence, metrics, nodes = Fence(), Metrics(), Nodes(region_label=settings.region_label)

    server = await connect(
        limiter,
        fence=fence,
        counts=lambda verb, status: metrics.requests.labels(verb, str(status)).inc(),
    )
    server.cache.ledger = Ledger(limits=settings.limits, serves=settings.serves)
    namespace, name = settings.lease
    election = Election(api=server, fence=fence, namespace=namespace, name=name)
    metrics.leader.set_function(election.leads.is_set)

    def begin() -> Term:
        syncers = Syncers(fence=fence)
        polls = Polls(syncers=syncers, done=terms.ask)
        passes = reconciler(server, syncers, polls, nodes, settings, metrics)
        passes.writer.busy = limiter.is_busy
        queue = Queue(reconcile=passes.reconcile)
        return Term(queue=queue, passes=passes, polls=polls)

    terms = Terms(election=election, begin=begin)
    cache = server.cache
    jobs = [
        Jobs(api=server, source=watches.jobs(cache, each, terms.ask, terms.edited))
        for each in settings.namespaces or [""]
    ]
    others = watches.sources(cache, nodes, settings.namespaces, terms.ask)
    follow: list[Reflector] = [*jobs, *(Reflector(api=server, source=source) for source in others)]
    made_of = [reflector for reflector in follow if reflector.source.path in cache.sights]
    sights = cache.sights | cache.failures_sights | nodes.sights

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = await serve_http(settings.http_port, partial(signs, terms, sights), metrics.registry)
    parts = [asyncio.create_task(reflector.follow()) for reflector in follow]
    parts.append(asyncio.create_task(terms.run(follow, made_of)))
    electing = asyncio.create_task(election.follow())
    log.info("operator runs", regions=settings.regions, name=election.me)
    stop = asyncio.create_task(stopping.wait())
    try:
        await end_of_first(stop, [electing, *parts])
    finally:
        for part in (stop, *parts):
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        electing.cancel()
        await asyncio.gather(electing, return_exceptions=True)
        await election.release()
        await runner.cleanup()
        await server.close()
