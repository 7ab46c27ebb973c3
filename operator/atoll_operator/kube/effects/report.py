"""The last phase of a pass: writes the status and its Events, and measures replacements.

At most one status is written per pass, and none when nothing is new (`plan.status`), or when it is
only progress and the limit on requests is nearly reached. Events are told only after the status
that they announce: an operator that dies between the two says too little rather than something
twice.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from atoll_operator.kube.edges.api import Api, ConflictError, ObjectNotFoundError
from atoll_operator.kube.effects.recorder import Recorder
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.losses.replacements import works_again

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class StatusWriter:
    """Reports one plan per pass."""

    api: Api
    metrics: Metrics
    recorder: Recorder
    missing: Callable[[str], None] = lambda _: None  # told where the API server lacks a job
    busy: Callable[[], bool] = lambda: False  # whether progress should wait

    async def report(self, plan: Plan, memory: JobMemory) -> bool:
        """Whether there is nothing left to write; raises ApiError and what the network raises."""
        self._measure(plan, memory)
        await self.recorder.flush(memory.uid)
        if plan.status is None or (not plan.status.urgent and self.busy()):
            return plan.status is None
        try:
            await self.api.apply_status(plan.namespace, plan.job, memory.uid, plan.status.status)
        except ObjectNotFoundError:
            self.missing(plan.namespace)
            return False
        except ConflictError:
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
