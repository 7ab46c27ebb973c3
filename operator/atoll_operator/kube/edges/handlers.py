"""The edge to kopf: its watches feed keys, and nothing else of it is used.

No create, update or field handlers, timers, daemons or finalizers: nothing of ours can block a
delete, and no annotation grows.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from atoll_operator.kube.edges.queue import Key
from atoll_operator.kube.names import GROUP, PLURAL, VERSION
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label

CHILDREN = (
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "deployments"),
)
INACTIVE_SECONDS = 75.0  # the API server sends a bookmark every minute


class Heard:
    """When the last event of each watched kind came."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, plural: str) -> None:
        """Now."""
        self.at[plural] = time.monotonic()


def registry(feed: Callable[[Key], None], heard: Heard) -> kopf.OperatorRegistry:
    """Handlers that hand over the key of the job an object belongs to."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.persistence.finalizer = f"{GROUP}/unused"
        settings.watching.inactivity_timeout = INACTIVE_SECONDS
        for group, version, plural in CHILDREN:
            settings.watching.label_selectors[group, version, plural] = Label.JOB

    @kopf.on.login(registry=found)
    def login(**keywords: Any) -> Any:
        return kopf.login_with_service_account(**keywords) or kopf.login_with_kubeconfig(**keywords)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)  # type: ignore[arg-type]
    def job(namespace: str, name: str, **_: Any) -> None:
        heard.note(PLURAL)
        feed((namespace, name))

    def child(namespace: str, labels: Mapping[str, str], resource: Any, **_: Any) -> None:
        heard.note(resource.plural)
        feed((namespace, labels[Label.JOB]))

    for group, version, plural in CHILDREN:
        watch = kopf.on.event(
            group, version, plural, labels={Label.JOB: kopf.PRESENT}, registry=found, id=plural
        )
        watch(child)  # type: ignore[arg-type]
    return found


async def run(feed: Callable[[Key], None], settings: Settings, heard: Heard) -> None:
    """Until cancelled. kopf has a thread of its own, for it would take our signals and tasks."""
    loop, stop = asyncio.get_running_loop(), threading.Event()

    def hand_over(key: Key) -> None:
        loop.call_soon_threadsafe(feed, key)

    def work() -> None:
        asyncio.run(
            kopf.operator(
                registry=registry(hand_over, heard),
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
                stop_flag=stop,
            )
        )

    ended: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not ended.done():
            ended.set_result(None)

    def guard() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # our loop may be closed by now
                loop.call_soon_threadsafe(finish)

    threading.Thread(target=guard, name="kopf", daemon=True).start()
    try:
        await ended
    finally:
        stop.set()
