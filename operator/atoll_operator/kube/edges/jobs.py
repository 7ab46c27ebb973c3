"""The edge to kopf: it watches the jobs, and its events go into the cache and ask for passes.

There is a kopf for each namespace that the install names, or one for the whole cluster: a refusal
ends a kopf, and only that of its namespace. It runs in a thread with an event loop of its own,
because it would take this process's signals and tasks. There are no handlers but one of events, no
timers and no finalizers: nothing here can block a delete, or grow annotations on users' objects.

What kopf does not say, and what makes up for it:

- That a job was deleted while its watch was broken. kopf lists again after a gap and shows what
  there is, as events without a type. Each asks for a list of our own, which is compared with the
  cache (`Cache.listed`). After a gap that leaves nothing to show, the list is asked for by the job
  whose status has no place (`StatusWriter`), and at the latest every RELIST_SECONDS.
- That it has found no jobs to watch: in the moment after a CRD is made, discovery may not name them
  yet. kopf would watch nothing, for ever; `run` looks at what it has found, and ends it.
- That it lives. It begins a watch again that is silent for INACTIVE_SECONDS, so while it runs its
  watch is at most some minutes old. A beat of its loop each BEAT_SECONDS shows that it runs.
- Errors that it does not retry: 404 at once, 403 and 5xx after about a minute. It ends as a whole,
  as a watch that broke (`reflector`): a list and another kopf follow. Meanwhile no job is judged.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights  # kopf.operator takes one and exports no name

from atoll_operator.kube.edges.watches import PAGE_OBJECTS, Reflector
from atoll_operator.kube.names import GROUP, PLURAL, VERSION
from atoll_operator.kube.observed.cache import Object

INACTIVE_SECONDS = 75.0  # the API server sends a bookmark every minute
BEAT_SECONDS = 10.0
RELIST_SECONDS = 1800.0
SETTLING_SECONDS = 0.5  # a list of kopf's is many events: they ask for one list of ours
THREAD = "kopf"

Take = Callable[[str | None, Object], None]


class KopfEndedError(ConnectionError):
    """kopf has ended, and with it the watch of the jobs."""


@dataclass(slots=True, kw_only=True)
class Jobs(Reflector):
    """Follows the jobs of one namespace, or of all, by kopf's watch in place of its own."""

    wants_list: asyncio.Event = field(default_factory=asyncio.Event)

    async def _watch(self) -> None:
        """kopf, and our own lists beside it; raises what ends either of them."""
        self.version = ""  # a list follows whatever ends it
        parts = [
            asyncio.create_task(self._list_again()),
            asyncio.create_task(run(self._hear, self._beat, self.sight.namespace)),
        ]
        try:
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                each.result()
        finally:
            for each in parts:
                each.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _list_again(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELIST_SECONDS):
                    await self.wants_list.wait()
            await asyncio.sleep(SETTLING_SECONDS)
            self.wants_list.clear()
            await self.list_now()

    def _hear(self, kind: str | None, raw: Object) -> None:
        """Take in an event of kopf's; no kind: kopf has listed."""
        self._beat()
        if kind is None:
            self.wants_list.set()
        self.source.changed(kind or "ADDED", self.source.keep(raw))

    def _beat(self) -> None:
        self.failures = 0
        self._works()


def registry(
    take: Take, beat: Callable[[], None], insights: Insights, stop: asyncio.Event
) -> kopf.OperatorRegistry:
    """kopf's registry: its settings, its login, and one handler that passes events of jobs on.

    kopf only watches: posting of Events, scanning of CRDs and finalizers are switched off. It is
    stopped if it finds no resource to watch; `beat` is called for as long as it has one.
    """
    found = kopf.OperatorRegistry()
    beats: list[asyncio.Task[None]] = []

    @kopf.on.startup(registry=found)
    async def begin(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.persistence.finalizer = f"{GROUP}/unused"
        settings.watching.inactivity_timeout = INACTIVE_SECONDS
        settings.watching.chunk_size = PAGE_OBJECTS
        settings.networking.enforce_retry_after = True
        beats.append(asyncio.create_task(keep_beating()))

    @kopf.on.cleanup(registry=found)
    async def end(**_: Any) -> None:
        for each in beats:
            each.cancel()

    @kopf.on.login(registry=found)
    def login(**keywords: Any) -> Any:
        return kopf.login_with_service_account(**keywords) or kopf.login_with_kubeconfig(**keywords)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)
    async def job(event: Any, **_: Any) -> None:
        take(event["type"], {**event["object"], "metadata": {**event["object"]["metadata"]}})

    async def keep_beating() -> None:
        await insights.ready_resources.wait()
        if not insights.watched_resources:
            stop.set()
            return
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            beat()

    return found


async def run(take: Take, beat: Callable[[], None], namespace: str) -> None:
    """Run kopf until cancelled; raises KopfEndedError when it ends, whatever ended it.

    `take` and `beat` are called in the caller's event loop, never in kopf's thread. On cancellation
    kopf is asked to stop and not waited for: its thread is a daemon and ends with the process, and
    what it still says is left out, because a list of after the cancellation may know better.

    The stop flag is an asyncio.Event of kopf's own loop: for a threading.Event kopf would wait in
    the loop's default executor, which `asyncio.Runner` joins, so a kopf that has ended by itself
    would never come back from its thread.
    """
    loop, inner, stop = asyncio.get_running_loop(), asyncio.new_event_loop(), asyncio.Event()
    ended: asyncio.Future[None] = loop.create_future()
    insights = Insights()

    def unless_ended(what: Callable[..., None], *values: Any) -> None:
        if not ended.done():
            what(*values)

    def hand_over(kind: str | None, raw: Object) -> None:
        loop.call_soon_threadsafe(unless_ended, take, kind, raw)

    def pass_on_beat() -> None:
        loop.call_soon_threadsafe(unless_ended, beat)

    def finish(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_exception(KopfEndedError(f"kopf has ended: {error or 'without an error'}"))

    def guard() -> None:
        cause: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: inner) as runner:
                runner.run(
                    kopf.operator(
                        registry=registry(hand_over, pass_on_beat, insights, stop),
                        insights=insights,
                        standalone=True,
                        clusterwide=not namespace,
                        namespaces=[namespace] if namespace else [],
                        stop_flag=stop,
                    )
                )
            if not insights.watched_resources:
                cause = LookupError(f"the API server's discovery does not name {PLURAL}")
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
