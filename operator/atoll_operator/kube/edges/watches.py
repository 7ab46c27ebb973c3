"""Nodes and their Leases, followed by list and watch; the clock of silence is ours."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import structlog

from atoll_operator.kube.edges.api import LEASES, NODES, Api, ApiError
from atoll_operator.kube.observe import Node, node
from atoll_operator.kube.plan.leases import Leases

WATCH_SECONDS = 300
RETRY_SECONDS = 1.0
ERRORS = (ApiError, aiohttp.ClientError, TimeoutError, OSError)

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Nodes:
    """What is known of the cluster's nodes."""

    region_label: str
    nodes: dict[str, Node] = field(default_factory=dict)
    leases: Leases = field(default_factory=Leases)
    synced: set[str] = field(default_factory=set)
    heard_at: dict[str, float] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether both lists have been read."""
        return len(self.synced) == len((NODES, LEASES))

    def look(self, now: float) -> dict[str, Node]:
        """Every node with its silence."""
        return {name: self.leases.look(each, now) for name, each in self.nodes.items()}

    def take(self, where: str, kind: str, raw: dict[str, Any]) -> None:
        """One object as it is now, or the word that it is gone."""
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
        """A whole list: what is not in it is gone."""
        names = {each["metadata"]["name"] for each in items}
        known = self.nodes if where == NODES else self.leases.leases
        for name in known.keys() - names:
            known.pop(name)
        for each in items:
            self.take(where, "ADDED", each)
        if where == LEASES:
            self.leases.resumed(time.monotonic())
        self.synced.add(where)


async def follow(api: Api, where: str, nodes: Nodes, changed: Callable[[], None]) -> None:
    """For ever: list, then watch; list again whenever the watch breaks."""
    while True:
        try:
            await _round(api, where, nodes, changed)
        except ERRORS as error:
            log.warning("watch broke", path=where, error=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)


async def _round(api: Api, where: str, nodes: Nodes, changed: Callable[[], None]) -> None:
    whole = await api.call("get", where)
    nodes.listed(where, whole["items"])
    nodes.heard_at[where] = time.monotonic()
    changed()
    version = whole["metadata"]["resourceVersion"]
    while True:
        async for event in api.watch(where, version, WATCH_SECONDS):
            nodes.heard_at[where] = time.monotonic()
            if event["type"] == "ERROR":
                status = event["object"]
                raise ApiError(status.get("code", 0), status.get("message", ""))  # 410: too old
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                nodes.take(where, event["type"], event["object"])
                if where == NODES:
                    changed()
