"""What the operator watches: jobs and their children for the cache, nodes, and Leases.

An event of a job or a child asks for a pass of that job, unless the cache knew it already, as it
knows what a pass has just written; one of a node, if what is kept of it has changed, for passes of
the jobs that have a pod on it; a renewed Lease for none: silence is seen by the passes that running
jobs have by the clock (`plan.pauses`).

`Leases` (in `losses.nodes`) notes when each Lease's renewTime was seen to change, which is right
only while the watch runs. After each list, and when a broken watch works again, `resumed` restarts
the settling time, during which no Lease counts as silent. A restarted operator therefore waits a
whole nodeLossSeconds before it declares any node lost.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, path
from atoll_operator.kube.edges.reflector import LEASE_SILENT_SECONDS_MAX, SILENT_SECONDS_MAX, Source
from atoll_operator.kube.observed.cache import (
    Cache,
    EventFailure,
    Key,
    Object,
    Sight,
    failure,
    manifest,
    slim,
    slim_node,
)
from atoll_operator.kube.observed.objects import node
from atoll_operator.kube.observed.observation import Node
from atoll_operator.kube.plan.losses.nodes import Census, Leases
from atoll_protos.names import Label

# One watch for all that is read of Events, without what pods repeat most and their status has, too.
WARNINGS = "type=Warning,reason!=BackOff,reason!=Failed,reason!=FailedScheduling,reason!=Unhealthy"
LOOK_SECONDS = 0.5  # for which what nodes and Leases show is taken for all passes
UNSEEN_SECONDS_MAX = 12.0  # after which nodes that cannot be watched are not judged

Feed = Callable[[Key], None]


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
            each.listed and (each.broken_at is None or now - each.broken_at < UNSEEN_SECONDS_MAX)
            for each in self.sights.values()
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
        names = {each["metadata"]["name"] for each in items}
        self.last_look = None
        known = self.nodes if where == NODES else self.leases.leases
        changed = known.keys() - names if where == NODES else set()
        for name in known.keys() - names:
            known.pop(name)
        changed |= {each["metadata"]["name"] for each in items if self.take(where, "ADDED", each)}
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
    return [*found, _nodes(cache, nodes, feed), _leases(nodes)]


def jobs(cache: Cache, namespace: str, feed: Feed, edited: Feed) -> Source:
    """The jobs; of one whose manifest has changed `edited` is told before `feed`."""
    found = _cached(cache, KIND, namespace, feed)

    def changed(event: str, raw: Object) -> None:
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        known = cache.job(key)
        if known is None or manifest(known) != manifest(raw):
            edited(key)
        found.changed(event, raw)

    return replace(found, query=(), changed=changed)


def _sight(sights: dict[str, Sight], where: str, namespace: str = "") -> Sight:
    found = sights[where] = Sight(namespace=namespace, tried_at=time.monotonic())
    return found


def _cached(cache: Cache, kind: str, namespace: str, feed: Feed) -> Source:
    def changed(event: str, raw: Object) -> None:
        _feed(feed, cache.gone(kind, raw) if event == "DELETED" else cache.seen(kind, raw))

    def listed(items: list[Object], version: int) -> None:
        _feed(feed, cache.listed(kind, namespace, items, version))

    where = path(kind, namespace)
    return Source(
        path=where,
        sight=_sight(cache.sights, where, namespace),
        query=[("labelSelector", Label.JOB)],
        keep=partial(slim, kind),
        listed=listed,
        changed=changed,
    )


def _failures(cache: Cache, namespace: str, feed: Feed) -> Source:
    """Events of a controller or a kubelet that could not make or start a pod: only they say why."""

    def changed(event: str, kept: EventFailure | None) -> None:
        if kept is not None:
            _feed(feed, cache.failed(event, kept))

    def listed(items: list[EventFailure | None], _: int) -> None:
        _feed(feed, cache.failures_listed(namespace, filter(None, items)))

    where = path("Event", namespace)
    return Source(
        path=where,
        sight=_sight(cache.failures_sights, where, namespace),
        query=[("fieldSelector", WARNINGS)],
        keep=failure,
        listed=listed,
        changed=changed,
    )


def _nodes(cache: Cache, nodes: Nodes, feed: Feed) -> Source:
    def changed(event: str, raw: Object) -> None:
        if nodes.take(NODES, event, raw):
            _feed(feed, cache.jobs_on([raw["metadata"]["name"]]))

    def listed(items: list[Object], _: int) -> None:
        _feed(feed, cache.jobs_on(nodes.listed(NODES, items)))

    sight = _sight(nodes.sights, NODES)
    return Source(path=NODES, sight=sight, keep=slim_node, listed=listed, changed=changed)


def _leases(nodes: Nodes) -> Source:
    def changed(event: str, raw: Object) -> None:
        nodes.take(LEASES, event, raw)

    def listed(items: list[Object], _: int) -> None:
        nodes.listed(LEASES, items)

    return Source(
        path=LEASES,
        sight=_sight(nodes.sights, LEASES),
        keep=slim_node,
        listed=listed,
        changed=changed,
        resumed=nodes.resumed,
        silent_seconds_max=nodes.lease_silent_seconds_max,
    )


def _feed(feed: Feed, keys: Iterable[Key]) -> None:
    for key in keys:
        feed(key)
