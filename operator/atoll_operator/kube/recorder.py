"""Writes Events, seldom: one object for what happens again and again, and none for what flaps.

What is told twice within TELL_SECONDS is counted and written once, when that time is over. What
settles (`plan.events`) is kept back for SETTLE_SECONDS, and dropped when it is taken back before.
`flush`, called in every pass, writes what is due of a job.

Each write is a server-side apply under a name that follows from what is told. So it makes the
object or renews it, also after the API server has dropped it (after an hour), and never conflicts
with what an earlier operator has written; only the count begins again with a restarted operator. An
Event that is refused is logged: no pass ends for it.

Everything here may be lost: a restarted operator tells what changes from then on.
"""

import time
from dataclasses import dataclass, field

import structlog

from atoll_operator.api.reasons import UNKNOWN
from atoll_operator.kube.edges.api import Api, ApiError
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.plan.events import SETTLE_SECONDS, Event

TELL_SECONDS = 30.0  # between two writes of one Event
FORGET_SECONDS = 3600.0  # the API server keeps an Event for so long

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Told:
    """One Event object."""

    event: Event  # the latest
    first: str
    count: int = 0
    written: int = 0  # the count that the API server has
    written_at: float = float("-inf")  # monotonic

    @property
    def owes(self) -> bool:
        """Whether the API server does not have the latest yet."""
        return self.written < self.count


@dataclass(slots=True, kw_only=True)
class Unsettled:
    """A change of a condition that has not lasted long enough yet."""

    event: Event
    before: str  # the status that was told last
    due_at: float


@dataclass(slots=True, kw_only=True)
class Recorder:
    """All Events that this operator has told of late."""

    api: Api
    metrics: Metrics
    told: dict[str, dict[str, Told]] = field(default_factory=dict)  # by the job's UID, and name
    unsettled: dict[str, dict[str, Unsettled]] = field(default_factory=dict)  # by UID and type
    last: dict[str, dict[str, str]] = field(default_factory=dict)
    """The status that was told last, by UID and type of the condition."""

    async def tell(self, event: Event) -> None:
        """Tell something now, or when it has lasted; what is silent only takes back what waits."""
        if event.silent:
            self.unsettled.get(event.job["uid"], {}).pop(event.condition, None)
        elif event.settles:
            self._settle(event)
        else:
            self._count(event)
        await self.flush(event.job["uid"])

    async def flush(self, uid: str) -> None:
        """Write what is due of one job; raises what the network raises."""
        now = time.monotonic()
        unsettled = self.unsettled.get(uid, {})
        for kind, each in list(unsettled.items()):
            if now >= each.due_at:
                del unsettled[kind]
                self.last.setdefault(uid, {})[kind] = each.event.after
                self._count(each.event)
        known = self.told.get(uid, {})
        for name, told in list(known.items()):
            waited = now - told.written_at
            if told.owes and waited >= TELL_SECONDS:
                await self._write(told, now)
            elif waited > FORGET_SECONDS and (told.written or not told.owes):
                del known[name]
        if not unsettled:
            self.unsettled.pop(uid, None)
        if not known:
            self.told.pop(uid, None)

    def due_seconds(self, uid: str) -> float | None:
        """Until `flush` has something of the job to write; None: there is nothing."""
        due = [each.due_at for each in self.unsettled.get(uid, {}).values()]
        due += [t.written_at + TELL_SECONDS for t in self.told.get(uid, {}).values() if t.owes]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self.told.pop(uid, None)
        self.unsettled.pop(uid, None)
        self.last.pop(uid, None)

    def _settle(self, event: Event) -> None:
        of_job = self.unsettled.setdefault(event.job["uid"], {})
        known = of_job.get(event.condition)
        before = known.before if known else event.before
        if before == UNKNOWN:  # for a while it could not be seen, and it may be as it was
            before = self.last.get(event.job["uid"], {}).get(event.condition, before)
        if event.after == before:
            of_job.pop(event.condition, None)
            return
        due_at = time.monotonic() + SETTLE_SECONDS
        of_job[event.condition] = Unsettled(event=event, before=before, due_at=due_at)

    def _count(self, event: Event) -> None:
        of_job = self.told.setdefault(event.job["uid"], {})
        told = of_job.setdefault(event.name, Told(event=event, first=event.at))
        told.event, told.count = event, told.count + 1

    async def _write(self, told: Told, now: float) -> None:
        told.written, told.written_at = told.count, now
        try:
            await self.api.apply_event(told.event.to_object(told.first, told.count))
        except ApiError as error:
            log.warning("event refused", job=told.event.job["name"], error=str(error))
            return
        self.metrics.writes.labels("Event").inc()
