"""The edge of the election: reads and writes the Lease every two seconds, for ever.

`election` decides; here are the clock, the requests and what follows from their answers. What fails
is tried again at the next look, with a read first, because a write whose answer was lost may have
been taken. A replica that leads goes on while it tries, until its Lease is too old. It then stands
by, in the same process: its watches are as good as before, and an API server that was away for five
minutes finds both replicas as it left them. Nobody can take a Lease while there is no API server.

A name is new with each process: a container that is started again does not take itself for the one
that was killed. Requests of the election do not wait behind the operator's own limit, or a leader
with much to do would lose its Lease for that.

The client library has a leader election too (kubernetes.aio.leaderelection). It is not used: it
measures with the clock of the day, which may be set back, ends with the first error of the network,
cannot give a Lease back, and leaves open what a former leader may still write.
"""

import asyncio
import datetime
import random
import socket
import time
import uuid
from dataclasses import dataclass, field

import structlog
from prometheus_client import Gauge

from atoll_operator.kube import election
from atoll_operator.kube.edges.api import Api, ApiError, ConflictError, NotFoundError, lease_path
from atoll_operator.kube.edges.fence import Fence
from atoll_operator.kube.edges.reflector import ERRORS
from atoll_operator.kube.election import (
    TIMES,
    Record,
    Renew,
    Seen,
    StepDown,
    Take,
    Times,
    Wait,
)

CALL_SECONDS_MAX = 5.0
RELEASE_SECONDS_MAX = 2.0

log = structlog.get_logger()


def identity() -> str:
    """A name for this process that no other one has, with the pod's name for people to read."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


@dataclass(slots=True, kw_only=True)
class Election:
    """This replica's part in it."""

    api: Api
    fence: Fence
    namespace: str
    name: str
    gauge: Gauge  # 1 while this replica leads
    times: Times = TIMES
    me: str = field(default_factory=identity)
    seen: Seen | None = None
    renewed_at: float | None = None  # monotonic; None: this replica stands by
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
        """Who leads, as far as this replica knows."""
        return self.seen.record.holder if self.seen is not None else election.NOBODY

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            left = None if self.renewed_at is None else self._left()
            took = time.monotonic() - self.tried_at
            pause = election.pause(took, left, random.uniform(0.8, 1.0), self.times)
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Give the Lease back, if this replica has it: another one leads at its next look.

        Only after `follow` was cancelled. A renewal that was under way then may have been taken.
        """
        led = self.renewed_at is not None and self._left() > 0
        self._step_down("this replica ends")
        if not led or self.seen is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                try:
                    await self._send(election.released(self.seen.record, _wall()))
                except ConflictError:
                    await self._read()
                    if self.holder != self.me:
                        return
                    await self._send(election.released(self.seen.record, _wall()))
        except ERRORS as error:
            log.warning("Lease not given back", lease=self._full_name, error=_text(error))
        else:
            log.info("Lease given back", lease=self._full_name)

    async def _look(self) -> None:
        self.tried_at = time.monotonic()
        try:
            if self.unsure or self.seen is None or self.renewed_at is None:
                await self._read()
            await self._act()
        except (ConflictError, NotFoundError):  # somebody else has written or deleted it
            self._answered()
            self.unsure = True
        except ERRORS as error:
            self.unsure = True
            if isinstance(error, ApiError) and not error.may_pass:
                self._answered()
            else:
                self.answering_since = None
            log.warning(
                "Lease not renewed" if self.leads.is_set() else "Lease not read",
                lease=self._full_name,
                error=_text(error),
            )
        if self.renewed_at is not None and self._left() <= 0:
            self._decide()

    async def _read(self) -> None:
        raw = await self.api.lease("get", self._path, seconds=self._seconds())
        self.seen = election.see(self.seen, election.record(raw), time.monotonic())
        self.unsure = False
        self._answered()

    async def _act(self) -> None:
        decided = self._decide()
        if isinstance(decided, Wait) and decided.reason != self.said:
            self.said = decided.reason
            log.info("stands by", lease=self._full_name, reason=decided.reason)
        if self.seen is None or isinstance(decided, Wait | StepDown):
            return
        sent_at = time.monotonic()
        record = election.written(self.me, self.seen.record, _wall(), self.times)
        record = await self._send(record)
        self.seen = Seen(record=record, at=time.monotonic())
        self._answered()
        self.renewed_at = sent_at
        self.fence.renewed(sent_at)
        if isinstance(decided, Take):
            log.info("leads", lease=self._full_name, name=self.me, reason=decided.reason)
            self.said = ""
            self.gauge.set(1)
            self.stands_by.clear()
            self.leads.set()

    def _decide(self) -> Wait | Take | Renew | StepDown:
        assert self.seen is not None
        decided = election.decide(self.me, self.seen, self.renewed_at, time.monotonic(), self.times)
        if isinstance(decided, StepDown):
            self._step_down(decided.reason)
        return decided

    def _step_down(self, reason: str) -> None:
        self.fence.close()
        if self.renewed_at is not None:
            log.warning("leads no more", lease=self._full_name, name=self.me, reason=reason)
        self.renewed_at = None
        self.gauge.set(0)
        self.leads.clear()
        self.stands_by.set()

    async def _send(self, record: Record) -> Record:
        body, seconds = election.to_object(self.name, self.namespace, record), self._seconds()
        if record.version:
            answer = await self.api.lease("patch", self._path, body=body, seconds=seconds)
        else:
            where = lease_path(self.namespace)
            answer = await self.api.lease("post", where, body=body, seconds=seconds)
        return election.record(answer)

    def _answered(self) -> None:
        if self.answering_since is None:
            self.answering_since = time.monotonic()

    def _left(self) -> float:
        """Seconds for which this replica still leads without another renewal."""
        assert self.renewed_at is not None
        return self.renewed_at + self.times.renew_seconds_max - time.monotonic()

    def _seconds(self) -> float:
        """How long a request of the election may take."""
        if self.renewed_at is None:
            return CALL_SECONDS_MAX
        return max(0.1, min(CALL_SECONDS_MAX, self._left()))

    @property
    def _path(self) -> str:
        return lease_path(self.namespace, self.name)

    @property
    def _full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


def _wall() -> str:
    """The time of day as the API server writes it: RFC 3339 with microseconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
