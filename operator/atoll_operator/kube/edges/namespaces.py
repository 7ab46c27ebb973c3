"""Which of the namespaces that this install serves are gone: they hold nobody up.

The chart gives rights by a Role in each namespace, so who deletes a namespace takes these along,
and every watch there is refused (403). That says nothing of a namespace that is only badly set up.
So one whose collections have been out of sight for GONE_SECONDS, and that does not exist or is
Terminating, is left out: its jobs are forgotten, readiness does not count it, and an Event of the
election's Lease says so. When all of its collections can be seen it is served again.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import KINDS, Api, path
from atoll_operator.kube.edges.fence import NotLeaderError
from atoll_operator.kube.edges.reflector import ERRORS
from atoll_operator.kube.names import COMPONENT
from atoll_operator.kube.observed.cache import Cache, Key
from atoll_operator.kube.observed.objects import rfc3339

LOOK_SECONDS = 5.0
GONE_SECONDS = 60.0
LEFT_OUT, SERVED = "NamespaceLeftOut", "NamespaceServed"

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Namespaces:
    """Keeps `Cache.left_out`."""

    api: Api
    cache: Cache
    namespaces: Sequence[str]  # empty: the whole cluster, and nothing to do
    lease: tuple[str, str]  # namespace and name, of the election
    feed: Callable[[Key], None]

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for each in self.namespaces:
                await self.look(each, time.monotonic())

    async def look(self, namespace: str, now: float) -> None:
        left_out = self.cache.left_out
        long = self.cache.broken_seconds(namespace, now) >= GONE_SECONDS
        if namespace in left_out and not self.cache.problem(namespace):
            left_out.discard(namespace)
            await self._tell(namespace, SERVED, "is there and is served again")
        elif namespace not in left_out and long and await self._is_gone(namespace):
            left_out.add(namespace)
            for kind in (KIND, *KINDS):
                for key in self.cache.listed(kind, namespace, [], sys.maxsize):
                    self.feed(key)
            said = "is gone, or is being deleted: it is left out until it can be watched again"
            await self._tell(namespace, LEFT_OUT, said)

    async def _is_gone(self, namespace: str) -> bool:
        """Whether the API server says so; an API server that refuses or is away says nothing."""
        try:
            found = await self.api.get(path("Namespace", "", namespace))
        except ERRORS:
            return False
        return found is None or (found.get("status") or {}).get("phase") == "Terminating"

    async def _tell(self, namespace: str, reason: str, text: str) -> None:
        log.warning("namespace", namespace=namespace, reason=reason)
        where, name = self.lease
        at = rfc3339(time.time())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{namespace}.{reason.lower()}", "namespace": where},
            "involvedObject": {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "name": name,
                "namespace": where,
            },
            "reason": reason,
            "message": f"the namespace {namespace}, which this install serves, {text}",
            "type": "Warning" if reason == LEFT_OUT else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            await self.api.apply_event(event)
        except NotLeaderError:
            return  # the leader tells it
        except ERRORS as error:
            log.warning("event refused", error=str(error))
