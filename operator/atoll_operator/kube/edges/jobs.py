"""The edge to kopf: it watches the jobs, and its events go into the cache and ask for passes.

There is a kopf for each namespace that the install names, or one for the whole cluster: a refusal
ends a kopf, and only that of its namespace. It runs in a thread with an event loop of its own,
because it would take this process's signals and tasks. There are no handlers but one of events, no
timers and no finalizers: nothing here can block a delete, or grow annotations on users' objects.

What kopf leaves out, and what makes up for it:

- Jobs that were deleted while its watch was broken. kopf lists again after a gap and shows what
  there is, as events without a type. These ask for a list of our own, which is compared with the
  cache (`Cache.listed`). After a gap that leaves nothing to show, the API server answers the next
  write of the status with 404 (`Api.apply_status`).
- That it has found no jobs to watch: in the moment after a CRD is made, discovery may not name them
  yet, and kopf would watch nothing. So discovery is read first, and a kopf lives for
  KOPF_SECONDS_MAX, after which a list and another one follow.
- That it lives. It begins a watch again that is silent for INACTIVE_SECONDS, so while its event
  loop answers (each BEAT_SECONDS) its watch is at most some minutes old.
- Errors that it does not retry: 404 at once, 403 and 5xx after about a minute. It ends as a whole,
  as a watch that broke (`watches`): a list and another kopf follow. Meanwhile no job is judged.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kopf

from atoll_operator.kube.edges.watches import PAGE_OBJECTS, Reflector
from atoll_operator.kube.names import GROUP, PLURAL, VERSION
from atoll_operator.kube.observed.cache import Object

INACTIVE_SECONDS = 75.0  # the API server sends a bookmark every minute
BEAT_SECONDS = 10.0
KOPF_SECONDS_MAX = 1800.0
SETTLING_SECONDS = 0.5  # a list of kopf's is many events: they ask for one list of ours
THREAD = "kopf"

Take = Callable[[str | None, Object], None]


class KopfEndedError(ConnectionError):
    """kopf has ended, or cannot begin, and with it the watch of the jobs."""


@dataclass(slots=True, kw_only=True)
class Jobs(Reflector):
    """Follows the jobs of one namespace, or of all, by kopf's watch in place of its own."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)  # kopf has listed, or has ended

    async def _watch(self) -> None:
        """Run kopf for KOPF_SECONDS_MAX. Raises KopfEndedError when it ends earlier.

        On cancellation kopf is asked to stop and not waited for: its thread is a daemon and ends
        with the process, and what it still sends is left out, because a list of after the
        cancellation may know better.

        The stop flag is an asyncio.Event of kopf's own loop: for a threading.Event kopf would wait
        in the loop's default executor, which `asyncio.Runner` joins, so a kopf that has ended by
        itself would never come back from its thread.
        """
        self.version = ""  # a list follows whatever ends it
        served = await self.api.get(f"/apis/{GROUP}/{VERSION}") or {"resources": ()}
        if PLURAL not in {resource["name"] for resource in served["resources"]}:
            raise KopfEndedError(f"the API server's discovery does not name {PLURAL}")
        loop, inner, stop = asyncio.get_running_loop(), asyncio.new_event_loop(), asyncio.Event()
        ended: asyncio.Future[None] = loop.create_future()

        def hand_over(call: Callable[..., None], *values: Any) -> None:
            """Have `call` made in this loop, from kopf's thread."""
            with contextlib.suppress(RuntimeError):  # this loop may be closed by now
                loop.call_soon_threadsafe(lambda: None if ended.done() else call(*values))

        def finish(error: BaseException | None) -> None:
            ended.set_exception(KopfEndedError(f"kopf has ended: {error or 'without an error'}"))
            self.wake.set()

        def guard() -> None:
            cause: BaseException | None = None
            namespace = self.sight.namespace
            try:
                with asyncio.Runner(loop_factory=lambda: inner) as runner:
                    runner.run(
                        kopf.operator(
                            registry=registry(lambda *event: hand_over(self._take_event, *event)),
                            settings=settings(),
                            standalone=True,
                            clusterwide=not namespace,
                            namespaces=[namespace] if namespace else [],
                            stop_flag=stop,
                        )
                    )
            except BaseException as error:  # the end of a thread: `ended` raises it in our loop
                cause = error
            hand_over(finish, cause)

        threading.Thread(target=guard, name=THREAD, daemon=True).start()
        until = time.monotonic() + KOPF_SECONDS_MAX
        try:
            while not ended.done() and time.monotonic() < until:
                with contextlib.suppress(RuntimeError):  # its loop is closed, and it ends
                    inner.call_soon_threadsafe(hand_over, self._beat)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_SECONDS):
                        await self.wake.wait()
                if self.wake.is_set() and not ended.done():
                    await asyncio.sleep(SETTLING_SECONDS)
                    self.wake.clear()
                    await self.list_now()
            if ended.done():
                ended.result()
        finally:
            ended.cancel()
            self.wake.clear()
            with contextlib.suppress(RuntimeError):  # kopf has ended and its loop is closed
                inner.call_soon_threadsafe(stop.set)

    def _take_event(self, kind: str | None, raw: Object) -> None:
        """Take in an event of kopf's; no kind: kopf has listed."""
        self._beat()
        if kind is None:
            self.wake.set()
        self.source.take(kind or "ADDED", raw)

    def _beat(self) -> None:
        self.failures = 0
        self._works()


def settings() -> kopf.OperatorSettings:
    """kopf only watches: posting of Events, scanning of CRDs and finalizers are switched off."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.persistence.finalizer = f"{GROUP}/unused"
    found.watching.inactivity_timeout = INACTIVE_SECONDS
    found.watching.chunk_size = PAGE_OBJECTS
    found.networking.enforce_retry_after = True
    return found


def registry(take: Take) -> kopf.OperatorRegistry:
    """kopf's login, and one handler that passes events of jobs on."""
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    def login(**keywords: Any) -> Any:
        return kopf.login_with_service_account(**keywords) or kopf.login_with_kubeconfig(**keywords)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)
    async def job(event: Any, **_: Any) -> None:
        take(event["type"], {**event["object"], "metadata": {**event["object"]["metadata"]}})

    return found
