"""The edge to kopf: its watches feed keys, and nothing else of it is used.

kopf watches jobs and their children in a thread of its own, because it would take this process's
signals and asyncio tasks. Each event is turned into the key of the job it belongs to and handed to
the operator's event loop. There are no create, update or field handlers, timers, daemons or
finalizers: nothing of this operator can block a delete, and no annotation grows on users' objects.

kopf lists again after each break of a watch, and ends a watch that has been silent for longer than
INACTIVE_SECONDS, bookmarks included. It passes on events but no bookmarks, so in a cluster without
changes `EventTimes` grow without bound although all is well. The probes report them and put no
limit on them.

A watch whose error kopf does not retry (404 at once, 403 and 5xx after about a minute) ends kopf as
a whole. `run` then raises, the process exits with a code other than 0, and the kubelet starts it
again: an operator that watches nothing is worse than one that restarts.
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
THREAD = "kopf"


class KopfEndedError(Exception):
    """kopf has ended, and with it every watch of jobs and children."""


class EventTimes:
    """When the last event of each watched kind came; written by kopf's thread, read by probes."""

    def __init__(self) -> None:
        # Every key from the start: a dict that never grows may be read while it is written.
        plurals = (PLURAL, *(plural for _, _, plural in CHILDREN))
        self._at: dict[str, float | None] = dict.fromkeys(plurals)

    def note(self, plural: str) -> None:
        """An event of this kind comes now."""
        self._at[plural] = time.monotonic()

    def ages(self, now: float) -> dict[str, float | None]:
        """Seconds since the last event by kind, None where none has come yet."""
        return {plural: None if at is None else now - at for plural, at in self._at.items()}


def registry(feed: Callable[[Key], None], times: EventTimes) -> kopf.OperatorRegistry:
    """kopf's registry with handlers that feed the key of the job that an object belongs to.

    Posting of Events, scanning of CRDs and finalizers are switched off: kopf only watches. The
    children's watches are filtered on the server by the label that every child carries.
    """
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
        times.note(PLURAL)
        feed((namespace, name))

    def child(namespace: str, labels: Mapping[str, str], resource: Any, **_: Any) -> None:
        times.note(resource.plural)
        feed((namespace, labels[Label.JOB]))

    for group, version, plural in CHILDREN:
        watch = kopf.on.event(
            group, version, plural, labels={Label.JOB: kopf.PRESENT}, registry=found, id=plural
        )
        watch(child)  # type: ignore[arg-type]
    return found


async def run(feed: Callable[[Key], None], settings: Settings, times: EventTimes) -> None:
    """Feed keys until cancelled; raises KopfEndedError when kopf ends, whatever ended it.

    `feed` is called in the caller's event loop, never in kopf's thread. On cancellation kopf is
    asked to stop and not waited for: its thread is a daemon and ends with the process.

    kopf ends as a whole as soon as one of its watches gets an error that it does not retry. Its
    stop flag is an asyncio.Event of its own loop: for a threading.Event kopf would wait in the
    loop's default executor, which `asyncio.Runner` joins, so a kopf that has ended by itself would
    never come back from its thread, and the operator would live on without any watch.
    """
    loop, inner, stop = asyncio.get_running_loop(), asyncio.new_event_loop(), asyncio.Event()

    def hand_over(key: Key) -> None:
        loop.call_soon_threadsafe(feed, key)

    ended: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_exception(KopfEndedError(f"kopf has ended: {error or 'without an error'}"))

    def guard() -> None:
        cause = None
        try:
            with asyncio.Runner(loop_factory=lambda: inner) as runner:
                runner.run(
                    kopf.operator(
                        registry=registry(hand_over, times),
                        standalone=True,
                        clusterwide=not settings.namespaces,
                        namespaces=settings.namespaces,
                        stop_flag=stop,
                    )
                )
        except BaseException as error:  # the end of a thread: `run` raises it in the caller's loop
            cause = error
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(finish, cause)

    threading.Thread(target=guard, name=THREAD, daemon=True).start()
    try:
        await ended
    finally:
        with contextlib.suppress(RuntimeError):  # kopf has ended and its loop is closed
            inner.call_soon_threadsafe(stop.set)
