"""The edge of the election: reads and writes the Lease every two seconds, for ever.

`election` decides; here are the clock, the requests and what follows from their answers. What fails
is tried again at the next look, with a read first, because a write whose answer was lost may have
been taken. Requests of the election do not wait behind the operator's own limit.

The client library's leader election (kubernetes.aio.leaderelection) is not used: it measures with
the clock of the day, ends with the first error of the network, cannot give a Lease back, and leaves
open what a former leader may still write.
"""

import asyncio
import contextlib
import datetime
import random
import socket
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import structlog

from atoll_operator.kube.edges import election
from atoll_operator.kube.edges.api import (
    JSON,
    MERGE,
    Api,
    ApiError,
    ConflictError,
    ObjectNotFoundError,
    path,
)
from atoll_operator.kube.edges.election import NEVER, TIMES, Fence, Lease, Move, Times
from atoll_operator.kube.edges.watches import ERRORS
from atoll_operator.kube.observed.cache import Object

CALL_SECONDS_MAX = 5.0
RELEASE_SECONDS_MAX = 2.0

log = structlog.get_logger()


def identity() -> str:
    """Name this process as no other one, with the pod's name for people to read."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


@dataclass(slots=True, kw_only=True)
class Election:
    """This replica's part in it."""

    api: Api
    fence: Fence  # open while this replica leads
    namespace: str
    name: str
    times: Times = TIMES
    me: str = field(default_factory=identity)
    seen: Lease | None = None
    unsure: bool = True  # the Lease has to be read before it is written
    tried_at: float = field(default_factory=time.monotonic)
    answering_since: float | None = None  # since when each look was answered; None: the last not
    said: str = ""  # in the log, why this replica stands by
    leads: asyncio.Event = field(default_factory=asyncio.Event)
    stands_by: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.stands_by.set()

    @property
    def holder(self) -> str:
        return self.seen.holder if self.seen is not None else election.NOBODY

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            left = self.fence.left if self.leads.is_set() else None
            took = time.monotonic() - self.tried_at
            pause = election.pause(took, left, random.uniform(0.8, 1.0), self.times)
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Give the Lease back, once `follow` is cancelled; its last renewal may have been taken."""
        seen = self.seen if self.fence.is_open else None
        self._step_down("this replica ends")
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                while seen is not None and seen.holder == self.me:
                    try:
                        await self._send(election.released(seen, _wall()), seen.version)
                    except ConflictError:
                        seen = await self._read()
                    else:
                        log.info("Lease given back", lease=self._full_name)
                        return
        except ERRORS as error:
            log.warning("Lease not given back", lease=self._full_name, error=_text(error))

    async def _look(self) -> None:
        self.tried_at, answered = time.monotonic(), True
        try:
            known = not self.unsure and self.leads.is_set()
            await self._act(self.seen if self.seen is not None and known else await self._read())
        except (ConflictError, ObjectNotFoundError):  # somebody else has written or deleted it
            self.unsure = True
        except ERRORS as error:
            self.unsure = True
            answered = isinstance(error, ApiError) and not error.may_pass
            said = "Lease not renewed" if self.leads.is_set() else "Lease not read"
            log.warning(said, lease=self._full_name, error=_text(error))
        since = self.answering_since
        self.answering_since = (time.monotonic() if since is None else since) if answered else None
        if self.leads.is_set() and self.seen is not None and not self.fence.is_open:
            self._decide(self.seen)

    async def _read(self) -> Lease:
        raw = None
        with contextlib.suppress(ObjectNotFoundError):
            raw = await self._call("get", self.name)
        self.seen = election.see(self.seen, raw, time.monotonic())
        self.unsure = False
        return self.seen

    async def _act(self, seen: Lease) -> None:
        move, reason = self._decide(seen)
        if move is Move.WAIT and reason != self.said:
            self.said = reason
            log.info("stands by", lease=self._full_name, reason=reason)
        if move in (Move.WAIT, Move.STEP_DOWN):
            return
        sent_at = time.monotonic()
        spec = election.renewed(self.me, seen, _wall(), self.times)
        self.seen = election.see(None, await self._send(spec, seen.version), time.monotonic())
        self.fence.renewed_at = sent_at
        if move is Move.TAKE:
            log.info("leads", lease=self._full_name, name=self.me, reason=reason)
            self.said = ""
            self.stands_by.clear()
            self.leads.set()

    def _decide(self, seen: Lease) -> tuple[Move, str]:
        renewed_at = self.fence.renewed_at if self.leads.is_set() else None
        decided = election.next_move(self.me, seen, renewed_at, time.monotonic(), self.times)
        if decided[0] is Move.STEP_DOWN:
            self._step_down(decided[1])
        return decided

    def _step_down(self, reason: str) -> None:
        self.fence.renewed_at = NEVER
        if self.leads.is_set():
            log.warning("leads no more", lease=self._full_name, name=self.me, reason=reason)
        self.leads.clear()
        self.stands_by.set()

    async def _send(self, spec: Object, version: str) -> Object:
        """Write the Lease over this version, by a merge patch; without one make it."""
        metadata = {"name": self.name, "namespace": self.namespace}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata | ({"resourceVersion": version} if version else {}),
            "spec": spec,
        }
        verb, name, how = ("patch", self.name, MERGE) if version else ("post", "", JSON)
        return await self._call(verb, name, body=body, content_type=how)

    async def _call(self, verb: str, name: str, **options: Any) -> Object:
        """Ask for no longer than this replica still leads, if it does."""
        left = self.fence.left if self.leads.is_set() else CALL_SECONDS_MAX
        seconds, where = max(0.1, min(CALL_SECONDS_MAX, left)), path("Lease", self.namespace, name)
        return await self.api.call(verb, where, seconds=seconds, of_election=True, **options)

    @property
    def _full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def _wall() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
