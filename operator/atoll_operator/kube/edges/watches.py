"""Nodes and their Leases, followed by list and watch; with a clock of their silence.

kopf follows jobs and their children (`handlers`). Nodes and Leases are followed here, because a
decision about a lost node rests on them and on *when* they were seen, which kopf does not tell.

`follow` reads one collection for ever: list everything, then watch from the list's resource
version on. Whenever the watch breaks, it lists again, so that no change can be missed: what is
absent from a list has been deleted meanwhile. The API server ends each watch after WATCH_SECONDS
and the next begins where it ended, without a list. A version that has become too old is an ERROR
event (410), and so is answered by a list.

Bookmarks, which the API server sends about once a minute, carry a new version and nothing else.
They let a quiet watch go on from a recent version, and they prove that it is alive: `last_at` is
the time of the last list, event or bookmark. The liveness probe may therefore put a limit on its
age (`health`), also in a cluster where nothing happens.

The clock of silence. `Leases` (in `plan.nodes`) notes when each Lease's renewTime was seen to
change, by the monotonic clock of this process. That is right only while the watch runs. After
each list `resumed` restarts the settling time, during which no Lease counts as silent:
renewals that happened in the gap are seen now at the earliest. A restarted operator therefore
waits a whole nodeLossSeconds before it declares any node lost, which is the safe side.

A changed Node asks for a pass of every known job (`changed`), because any of them may have pods on
it. A renewed Lease asks for none: there is one every few seconds per node, and silence is measured
by the passes, which come every second while a job runs.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import structlog

from atoll_operator.kube.edges.api import LEASES, NODES, Api, ApiError
from atoll_operator.kube.observation import Node, node
from atoll_operator.kube.plan.nodes import Leases

WATCH_SECONDS = 300
RETRY_SECONDS = 1.0
ERRORS = (ApiError, aiohttp.ClientError, TimeoutError, OSError)

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Nodes:
    """What is known of the cluster's nodes. Written by `follow`, read by every pass."""

    region_label: str
    nodes: dict[str, Node] = field(default_factory=dict)  # by name, without their Leases
    leases: Leases = field(default_factory=Leases)
    listed_paths: set[str] = field(default_factory=set)  # of collections read at least once
    last_at: dict[str, float] = field(default_factory=dict)  # last sign of life, by path

    @property
    def ready(self) -> bool:
        """Whether both collections have been listed."""
        return len(self.listed_paths) == len((NODES, LEASES))

    def look(self, now: float) -> dict[str, Node]:
        """Every node with what its Lease shows at `now`, by name."""
        return {name: self.leases.look(each, now) for name, each in self.nodes.items()}

    def take(self, where: str, kind: str, raw: dict[str, Any]) -> None:
        """Take in one event: an object as it is now, or as it was when it was deleted."""
        name = raw["metadata"]["name"]
        if where == NODES:
            if kind == "DELETED":
                self.nodes.pop(name, None)
            else:
                self.nodes[name] = node(raw, self.region_label)
        elif kind == "DELETED":
            self.leases.gone(name)
        else:
            spec = raw.get("spec", {})
            renewed, seconds = spec.get("renewTime", ""), spec.get("leaseDurationSeconds")
            self.leases.seen(name, renewed, seconds, time.monotonic())

    def listed(self, where: str, items: list[dict[str, Any]]) -> None:
        """Take in a whole list: what is not in it has been deleted."""
        names = {each["metadata"]["name"] for each in items}
        known = self.nodes if where == NODES else self.leases.leases
        for name in known.keys() - names:
            known.pop(name)
        for each in items:
            self.take(where, "ADDED", each)
        if where == LEASES:
            self.leases.resumed(time.monotonic())
        self.listed_paths.add(where)


async def follow(api: Api, where: str, nodes: Nodes, changed: Callable[[], None]) -> None:
    """List, then watch, until cancelled; list again whenever the watch breaks."""
    while True:
        try:
            await _round(api, where, nodes, changed)
        except ERRORS as error:
            log.warning("watch broke", path=where, error=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)


async def _round(api: Api, where: str, nodes: Nodes, changed: Callable[[], None]) -> None:
    whole = await api.call("get", where)
    nodes.listed(where, whole["items"])
    nodes.last_at[where] = time.monotonic()
    changed()
    version = whole["metadata"]["resourceVersion"]
    while True:
        async for event in api.watch(where, version, WATCH_SECONDS):
            nodes.last_at[where] = time.monotonic()
            if event["type"] == "ERROR":
                status = event["object"]
                raise ApiError(status.get("code", 0), status.get("message", ""))  # 410: too old
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                nodes.take(where, event["type"], event["object"])
                if where == NODES:
                    changed()
