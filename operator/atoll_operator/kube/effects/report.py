"""The last phase of a pass: writes the status and its Events, and measures replacements.

At most one status is written per pass, and none when nothing is new (`plan.status`), or when it is
only progress and the limit on requests is nearly reached. Events are written only after the status
that they announce: an operator that dies between the two says too little rather than something
twice.

Events are few: what happens twice within TELL_SECONDS is counted and written once, when that time
is over. What settles (`plan.events`) is kept back for SETTLE_SECONDS, and dropped when it is taken
back before. `flush`, called in every pass, writes what is due, under a name that follows from the
content: so it never conflicts with an earlier operator's. An Event that is refused is logged: no
pass ends for it. All of this may be lost.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from atoll_operator.api.status.reasons import UNKNOWN
from atoll_operator.kube.edges.api import Api, ApiError, ConflictError, ObjectNotFoundError
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.plan.actions import SETTLE_SECONDS, Event, Plan
from atoll_operator.kube.plan.replacements import works_again

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
        due = [event.due_at for event in job.unsettled.values()]
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


@dataclass(slots=True, kw_only=True)
class StatusWriter:
    """Reports one plan per pass."""

    api: Api
    metrics: Metrics
    recorder: Recorder
    busy: Callable[[str], bool] = lambda _: False  # whether a namespace's progress should wait

    async def report(self, plan: Plan, memory: JobMemory) -> bool:
        """Whether there is nothing left to write; raises ApiError and what the network raises."""
        self._measure(plan, memory)
        await self.recorder.flush(memory.uid)
        if plan.status is None or (not plan.status.urgent and self.busy(plan.namespace)):
            return plan.status is None
        try:
            await self.api.apply_status(plan.namespace, plan.job, memory.uid, plan.status.status)
        except (ObjectNotFoundError, ConflictError):
            return False
        memory.note_write(plan.at)
        self.metrics.writes.labels("Status").inc()
        for each in plan.status.changed:
            log.info(
                "condition", job=plan.job, type=each.type, status=each.status, reason=each.reason
            )
        for event in plan.status.events:
            await self.recorder.tell(event)
        return True

    def _measure(self, plan: Plan, memory: JobMemory) -> None:
        for key, each in list(memory.replacements.items()):
            if works_again(each, plan.pods, plan.training):
                seconds = time.monotonic() - each.lost_at
                self.metrics.replacement_seconds.labels(each.role).observe(seconds)
                log.info("replacement works", pod=each.name, seconds=round(seconds, 1))
                del memory.replacements[key]
