"""One collection of the API server, followed for ever by list and watch.

`follow` lists everything once, page by page, then watches from the list's resource version on. The
API server ends each watch after some minutes and the next begins where it ended, without a list.

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

Each object is made small (`Source.keep`) before the next page is read.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import structlog

from atoll_operator.kube.edges.api import BEGUN, Api, ApiError, Query
from atoll_operator.kube.observed.cache import Object, Sight
from atoll_operator.kube.observed.memory import doubled

WATCH_SECONDS = (240, 360)  # after which the API server ends a watch; spread at random
SILENT_SECONDS_MAX = 75.0  # bookmarks come each minute
LEASE_SILENT_SECONDS_MAX = 25.0
BEGIN_SECONDS_MAX = 20.0  # in which the API server takes a watch
RETRY_SECONDS = (1.0, 30.0)  # first, and at most
PAGE_OBJECTS = 200
ERRORS = (ApiError, aiohttp.ClientError, TimeoutError, OSError, ValueError)

log = structlog.get_logger()


def retry_seconds(failures: int, chance: float) -> float:
    """Seconds until the next try; `chance`, in 0..1, spreads them over the upper half."""
    return doubled(RETRY_SECONDS, failures) * (0.5 + 0.5 * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One collection, and who is told of it."""

    path: str
    sight: Sight  # how its watch fares
    keep: Callable[[Object], Any]  # what is kept of an object: little
    listed: Callable[[list[Any], int], None]  # everything that exists, at this version
    changed: Callable[[str, Any], None]  # ADDED, MODIFIED or DELETED, and what is kept
    resumed: Callable[[], None] = lambda: None  # the watch works again: changes may come late
    query: Query = ()  # which objects of the collection: a selector by labels or fields
    silent_seconds_max: Callable[[], float] = lambda: SILENT_SECONDS_MAX


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
            found += [self.source.keep(each) for each in page.items]
            version = page.version
            self.sight.tried_at = time.monotonic()
        self.source.listed(found, int(version))
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
            self.source.changed(kind, self.source.keep(raw))

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
        wait = retry_seconds(self.failures, random.random())
        self.failures += 1
        if isinstance(error, ApiError):
            wait = max(wait, error.retry_after_seconds)
        await asyncio.sleep(wait)
