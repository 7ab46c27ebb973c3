"""Writes Events, seldom: one object for what happens again and again, and none for what flaps.

What is told twice within TELL_SECONDS is counted and written once, when that time is over. What
settles (`status.events`) is kept back for SETTLE_SECONDS, and dropped when it is taken back before.
`flush`, called in every pass, writes what is due, under a name that follows from what is told: so
it never conflicts with an earlier operator's. An Event that is refused is logged: no pass ends for
it. All of this may be lost.
"""

import time
from dataclasses import dataclass, field

import structlog

from atoll_operator.api.status.reasons import UNKNOWN
from atoll_operator.kube.edges.api import Api, ApiError
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.plan.status.events import SETTLE_SECONDS, Event

TELL_SECONDS = 30.0  # between two writes of one Event
FORGET_SECONDS = 3600.0  # the API server keeps an Event for so long

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class EventObject:
    """One Event object."""

    event: Event  # the latest
    first: str
    count: int = 0
    written: int = 0  # the count that the API server has
    written_at: float = float("-inf")  # monotonic

    @property
    def owes(self) -> bool:
        return self.written < self.count


@dataclass(slots=True, kw_only=True)
class Unsettled:
    """A change of a condition that has not lasted long enough yet."""

    event: Event
    before: str  # the status that was told last
    due_at: float


@dataclass(slots=True, kw_only=True)
class JobEvents:
    """What is told of one job."""

    told: dict[str, EventObject] = field(default_factory=dict)  # by name
    unsettled: dict[str, Unsettled] = field(default_factory=dict)  # by type of the condition
    last: dict[str, str] = field(default_factory=dict)  # by type: the status that was told last


@dataclass(slots=True, kw_only=True)
class Recorder:
    """All Events that this operator has told of late."""

    api: Api
    metrics: Metrics
    jobs: dict[str, JobEvents] = field(default_factory=dict)  # by UID

    async def tell(self, event: Event) -> None:
        """Tell something now, or when it has lasted; what is silent only takes back what waits."""
        job = self.jobs.setdefault(event.job["uid"], JobEvents())
        if event.silent:
            job.unsettled.pop(event.condition, None)
        elif event.settles:
            _settle(job, event)
        else:
            _count(job, event)
        await self.flush(event.job["uid"])

    async def flush(self, uid: str) -> None:
        """Write what is due of one job; raises what the network raises."""
        now, job = time.monotonic(), self.jobs.get(uid, JobEvents())
        for kind, each in list(job.unsettled.items()):
            if now >= each.due_at:
                del job.unsettled[kind]
                job.last[kind] = each.event.after
                _count(job, each.event)
        for name, told in list(job.told.items()):
            waited = now - told.written_at
            if told.owes and waited >= TELL_SECONDS:
                await self._write(told, now)
            elif waited > FORGET_SECONDS and (told.written or not told.owes):
                del job.told[name]

    def due_seconds(self, uid: str) -> float | None:
        """Until `flush` has something of the job to write; None: there is nothing."""
        job = self.jobs.get(uid, JobEvents())
        due = [each.due_at for each in job.unsettled.values()]
        due += [told.written_at + TELL_SECONDS for told in job.told.values() if told.owes]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def forget(self, uid: str) -> None:
        self.jobs.pop(uid, None)

    async def _write(self, told: EventObject, now: float) -> None:
        told.written, told.written_at = told.count, now
        try:
            await self.api.apply_event(told.event.to_object(told.first, told.count))
        except ApiError as error:
            log.warning("event refused", job=told.event.job["name"], error=str(error))
            return
        self.metrics.writes.labels("Event").inc()


def _settle(job: JobEvents, event: Event) -> None:
    known = job.unsettled.get(event.condition)
    before = known.before if known else event.before
    if before == UNKNOWN:  # for a while it could not be seen, and it may be as it was
        before = job.last.get(event.condition, before)
    if event.after == before:
        job.unsettled.pop(event.condition, None)
        return
    due_at = time.monotonic() + SETTLE_SECONDS
    job.unsettled[event.condition] = Unsettled(event=event, before=before, due_at=due_at)


def _count(job: JobEvents, event: Event) -> None:
    told = job.told.setdefault(event.name, EventObject(event=event, first=event.at))
    told.event, told.count = event, told.count + 1
