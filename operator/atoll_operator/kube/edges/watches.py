"""Collections of the API server, each followed for ever by list and watch: children, nodes, Leases.

`Reflector.follow` lists everything once, page by page, then watches from the list's resource
version on. The API server ends each watch after some minutes and the next begins where it ended.

    a watch cannot be begun, or breaks (network, 5xx, 429)     watch again from the last version
    the API server does not take one in BEGIN_SECONDS_MAX      the same: the connection is dead
    a watch is silent for longer than its collection may be    the next one begins at once, on a
                                                               connection of its own
    its version is too old (410), 403, 404, any other refusal  list again: objects may have been
                                                               deleted without a word of it
    a list fails                                               list again

Each failure in a row waits longer, from 1 to 30 s, spread at random, and at least as long as
Retry-After says. Nothing ends `follow`. Probes and passes read how it fares in its `Sight`.

Silence. The API server sends a bookmark about once a minute on each watch, and every node renews
its Lease each 10 s; a connection whose peer has died without a word shows itself by their absence.
Silence alone is no failure: of a kind of which nothing has happened since the API server started
there are no bookmarks either. So the next watch is begun, which fails if the API server is away.

A namespace that is gone. The chart gives rights by a Role in each namespace, so who deletes one
takes these along, and every watch there is refused (403). That says nothing of a namespace that is
only badly set up. So where a collection has been out of sight for GONE_SECONDS, and its namespace
does not exist or is Terminating, it is empty: its objects are forgotten, and neither passes nor
readiness wait for it (`Sight.gone`) until it can be seen again.

An event of a job or a child asks for a pass of that job, unless the cache knew it already, as it
knows what a pass has just written; one of a node, if what is kept of it has changed, for passes of
the jobs that have a pod on it; a renewed Lease for none: silence is seen by the passes that running
jobs have by the clock (`plan.planner`). After each list of Leases, and when their watch works
again, no Lease counts as silent for the settling time (`replacements.Leases`). A restarted operator
therefore waits a whole nodeLossSeconds before it declares any node lost.
"""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import aiohttp
import structlog

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import BEGUN, KINDS, LEASES, NODES, Api, ApiError, Query, path
from atoll_operator.kube.observed.cache import (
    Cache,
    Key,
    Object,
    Sight,
    failure,
    manifest,
    slim,
    slim_node,
)
from atoll_operator.kube.observed.memory import doubled
from atoll_operator.kube.observed.objects import node
from atoll_operator.kube.observed.observation import Node
from atoll_operator.kube.plan.replacements import Census, Leases
from atoll_protos.names import Label

WATCH_SECONDS = (240, 360)  # after which the API server ends a watch; spread at random
SILENT_SECONDS_MAX = 75.0  # bookmarks come each minute
LEASE_SILENT_SECONDS_MAX = 25.0
BEGIN_SECONDS_MAX = 20.0  # in which the API server takes a watch
RETRY_SECONDS = (1.0, 30.0)  # first, and at most
GONE_SECONDS = 60.0
PAGE_OBJECTS = 200
ERRORS = (ApiError, aiohttp.ClientError, TimeoutError, OSError, ValueError)

Feed = Callable[[Key], None]

log = structlog.get_logger()


def retry_seconds(failures: int, chance: float) -> float:
    """Seconds until the next try; `chance`, in 0..1, spreads them over the upper half."""
    return doubled(RETRY_SECONDS, failures) * (0.5 + 0.5 * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One collection, and which jobs are concerned by what it shows."""

    path: str
    sight: Sight  # how its watch fares
    feed: Feed  # asks for a pass of a job
    keep: Callable[[Object], Any]  # what is kept of an object: little
    listed: Callable[[list[Any], int], Iterable[Key]]  # everything that exists, at this version
    changed: Callable[[str, Any], Iterable[Key]]  # ADDED, MODIFIED or DELETED, and what is kept
    resumed: Callable[[], None] = lambda: None  # the watch works again: changes may come late
    query: Query = ()  # which objects of the collection: a selector by labels or fields
    silent_seconds_max: Callable[[], float] = lambda: SILENT_SECONDS_MAX

    def take(self, event: str, raw: Object) -> None:
        for key in self.changed(event, self.keep(raw)):
            self.feed(key)

    def take_list(self, items: list[Any], version: int) -> None:
        """Take what is kept of all objects there are."""
        for key in self.listed(items, version):
            self.feed(key)


@dataclass(slots=True, kw_only=True)
class Reflector:
    """Follows one source."""

    api: Api
    source: Source
    version: str = ""  # to watch from; empty: list first
    failures: int = 0  # in a row
    silent: bool = False  # the last watch was left for its silence
    listed: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
            except ERRORS as error:
                await self._failed(error)

    @property
    def sight(self) -> Sight:
        return self.source.sight

    @property
    def is_broken(self) -> bool:
        return self.sight.broken_at is not None or not self.sight.listed

    async def list_now(self) -> str:
        """List beside the watch, which goes on; the version of the list."""
        found: list[Any] = []
        version = ""
        async for page in self.api.pages(self.source.path, self.source.query, PAGE_OBJECTS):
            found += [self.source.keep(item) for item in page.items]
            version = page.version
            self.sight.tried_at = time.monotonic()
        self.source.take_list(found, int(version))
        return version

    async def _list(self) -> None:
        self.version = await self.list_now()
        self.sight.listed = True
        self.listed.set()
        self._works()

    async def _watch(self) -> None:
        source, begun_at, begun = self.source, time.monotonic(), False
        events = self.api.watch(
            source.path, source.query, self.version, random.randint(*WATCH_SECONDS)
        )
        async with contextlib.aclosing(events):
            while True:
                try:
                    silence = source.silent_seconds_max()
                    patience = silence if begun else min(silence, BEGIN_SECONDS_MAX)
                    async with asyncio.timeout(patience):
                        event = await anext(events, None)
                except TimeoutError:
                    if not begun:
                        raise
                    self.silent = True
                    break
                if event is None:
                    break
                begun = True
                self._take(event)
        self.sight.tried_at = time.monotonic()
        if self.sight.tried_at - begun_at < RETRY_SECONDS[0]:
            await asyncio.sleep(RETRY_SECONDS[0])  # a server that ends every watch at once

    def _take(self, event: Object) -> None:
        kind, raw = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(raw.get("code", 0), raw.get("message", ""))
        if kind != BEGUN:
            self.version, self.failures = raw["metadata"]["resourceVersion"], 0
        self._works()
        if kind not in (BEGUN, "BOOKMARK"):
            self.source.take(kind, raw)

    def _works(self) -> None:
        """Note a sign of life; the first one after a failure is said."""
        if self.sight.problem:
            log.info("watch works again", path=self.source.path)
        if self.sight.problem or self.silent:
            self.source.resumed()
        self.silent = False
        self.sight.works(time.monotonic())

    async def _failed(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self.sight.problem:
            log.warning("watch broke", path=self.source.path, error=text)
        self.sight.fails(text, time.monotonic())
        if isinstance(error, ApiError) and not error.may_pass:
            self.version = ""
        if not self.sight.gone and await self._is_gone():
            log.warning("namespace is gone", path=self.source.path)
            self.sight.gone = True
            self.source.take_list([], sys.maxsize)
        wait = retry_seconds(self.failures, random.random())
        self.failures += 1
        if isinstance(error, ApiError):
            wait = max(wait, error.retry_after_seconds)
        await asyncio.sleep(wait)

    async def _is_gone(self) -> bool:
        """Whether the API server says so; an API server that refuses or is away says nothing."""
        namespace, broken_at = self.sight.namespace, self.sight.broken_at
        if not namespace or broken_at is None or time.monotonic() - broken_at < GONE_SECONDS:
            return False
        try:
            found = await self.api.get(path("Namespace", "", namespace))
        except ERRORS:
            return False
        return found is None or (found.get("status") or {}).get("phase") == "Terminating"


# One watch for all that is read of Events, without what pods repeat most and their status has, too.
WARNINGS = "type=Warning,reason!=BackOff,reason!=Failed,reason!=FailedScheduling,reason!=Unhealthy"
LOOK_SECONDS = 0.5  # for which what nodes and Leases show is taken for all passes
UNSEEN_SECONDS_MAX = 12.0  # after which nodes that cannot be watched are not judged


@dataclass(slots=True, kw_only=True)
class Nodes:
    """What is known of the cluster's nodes. Written by their watches, read by every pass."""

    region_label: str
    nodes: dict[str, Node] = field(default_factory=dict)  # by name, without their Leases
    leases: Leases = field(default_factory=Leases)
    sights: dict[str, Sight] = field(default_factory=dict)  # of the two collections, by path
    last_look: tuple[float, Census] | None = None

    def usable(self, now: float) -> bool:
        return len(self.sights) == len((NODES, LEASES)) and all(
            sight.listed and (sight.broken_at is None or now - sight.broken_at < UNSEEN_SECONDS_MAX)
            for sight in self.sights.values()
        )

    def look(self, now: float) -> Census:
        """Every node by name, with what its Lease showed at `now` or up to LOOK_SECONDS before.

        All passes of that time share one look: with thousands of nodes each costs milliseconds. A
        change of a node, or a gap in watching Leases, makes a new one; a renewal does not, and what
        it ends, a Lease's silence, is asked once more before a pod is deleted.
        """
        kept = self.last_look
        if kept is None or not 0 <= now - kept[0] < LOOK_SECONDS:
            found = {name: self.leases.look(each, now) for name, each in self.nodes.items()}
            kept = self.last_look = (now, Census(found))
        return kept[1]

    def take(self, where: str, kind: str, raw: dict[str, Any]) -> bool:
        """Take in an event; whether what is kept of a node has changed."""
        name = raw["metadata"]["name"]
        if where == NODES:
            before = self.nodes.get(name)
            if kind == "DELETED":
                self.nodes.pop(name, None)
            else:
                self.nodes[name] = node(raw, self.region_label)
            changed = self.nodes.get(name) != before
            self.last_look = None if changed else self.last_look
            return changed
        if kind == "DELETED":
            self.leases.gone(name)
        else:
            spec = raw.get("spec", {})
            renewed, seconds = spec.get("renewTime", ""), spec.get("leaseDurationSeconds")
            self.leases.seen(name, renewed, seconds, time.monotonic())
        return False

    def listed(self, where: str, items: list[dict[str, Any]]) -> set[str]:
        """Take in a whole list: what is not in it has been deleted. Names of changed nodes."""
        names = {item["metadata"]["name"] for item in items}
        self.last_look = None
        known = self.nodes if where == NODES else self.leases.leases
        changed = known.keys() - names if where == NODES else set()
        for name in known.keys() - names:
            known.pop(name)
        changed |= {item["metadata"]["name"] for item in items if self.take(where, "ADDED", item)}
        if where == LEASES:
            self.resumed()
        return changed

    def resumed(self) -> None:
        self.last_look = None
        self.leases.resumed(time.monotonic())

    def lease_silent_seconds_max(self) -> float:
        """How long the watch of Leases may be silent: not long where there are nodes."""
        return LEASE_SILENT_SECONDS_MAX if self.leases.leases else SILENT_SECONDS_MAX


def sources(cache: Cache, nodes: Nodes, namespaces: Sequence[str], feed: Feed) -> list[Source]:
    """Every collection that is followed but the jobs; no namespaces: the whole cluster."""
    found = []
    for namespace in namespaces or [""]:
        found += [_cached(cache, kind, namespace, feed) for kind in KINDS]
        found.append(_failures(cache, namespace, feed))
    silent = {"resumed": nodes.resumed, "silent_seconds_max": nodes.lease_silent_seconds_max}
    found.append(_nodes(cache, nodes, NODES, feed))
    return [*found, _nodes(cache, nodes, LEASES, feed, **silent)]


def jobs(cache: Cache, namespace: str, feed: Feed, edited: Feed) -> Source:
    """Return the jobs; of one whose manifest has changed `edited` is called before `feed`."""
    source = _cached(cache, KIND, namespace, feed)

    def changed(event: str, raw: Object) -> Iterable[Key]:
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        known = cache.job(key)
        if known is None or manifest(known) != manifest(raw):
            edited(key)
        return source.changed(event, raw)

    return replace(source, query=(), changed=changed)


def _sight(sights: dict[str, Sight], where: str, namespace: str = "") -> Sight:
    found = sights[where] = Sight(namespace=namespace, tried_at=time.monotonic())
    return found


def _cached(cache: Cache, kind: str, namespace: str, feed: Feed) -> Source:
    where = path(kind, namespace)
    return Source(
        path=where,
        sight=_sight(cache.sights, where, namespace),
        feed=feed,
        query=[("labelSelector", Label.JOB)],
        keep=partial(slim, kind),
        listed=partial(cache.listed, kind, namespace),
        changed=lambda event, raw: (cache.gone if event == "DELETED" else cache.seen)(kind, raw),
    )


def _failures(cache: Cache, namespace: str, feed: Feed) -> Source:
    """Events of a controller or a kubelet that could not make or start a pod: only they say why."""
    where = path("Event", namespace)
    return Source(
        path=where,
        sight=_sight(cache.failures_sights, where, namespace),
        feed=feed,
        query=[("fieldSelector", WARNINGS)],
        keep=failure,
        listed=lambda items, _: cache.failures_listed(namespace, filter(None, items)),
        changed=lambda event, kept: cache.failed(event, kept) if kept is not None else (),
    )


def _nodes(cache: Cache, nodes: Nodes, where: str, feed: Feed, **more: Any) -> Source:
    """Nodes, or their Leases, of which none is news of a job."""

    def changed(event: str, raw: Object) -> Iterable[Key]:
        return cache.jobs_on([raw["metadata"]["name"]]) if nodes.take(where, event, raw) else ()

    return Source(
        path=where,
        sight=_sight(nodes.sights, where),
        feed=feed,
        keep=slim_node,
        listed=lambda items, _: cache.jobs_on(nodes.listed(where, items)),
        changed=changed,
        **more,
    )
