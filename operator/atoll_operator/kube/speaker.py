"""What is said of a job: its status, written once a pass, and Events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_operator.api import conditions
from atoll_operator.api import status as statuses
from atoll_operator.api.conditions import Kind
from atoll_operator.api.spec import StorageType
from atoll_operator.kube import readings
from atoll_operator.kube.edges.api import Api, NotFoundError
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.plan import events, phase
from atoll_operator.kube.plan.children import Object
from atoll_operator.kube.readings import Sight
from atoll_operator.kube.settings import Settings

WRITE_SECONDS = 10.0  # between two writes of mere progress


@dataclass(slots=True, kw_only=True)
class Speaker:
    """One write a pass, and none when nothing is new."""

    api: Api
    settings: Settings
    metrics: Metrics

    async def say(self, sight: Sight) -> None:
        """Conditions and counts of this pass."""
        found = conditions.decide(self._facts(sight))
        old = sight.raw.get("status") or {}
        over = sight.phase.kind.over and readings.written_over(sight.raw)
        if over:
            body = {k: v for k, v in old.items() if k not in ("conditions", "observedGeneration")}
        else:
            served = [r.name for r in sight.job.spec.regions if self.settings.serves(r.name)]
            body = statuses.body(
                statuses.View(
                    job=sight.job,
                    replies=sight.replies,
                    asked_at=sight.memory.asked_at or sight.wall,
                    ready=readings.ready_by_region(sight.pods, served),
                    replaced=readings.replaced_by_region(sight),
                    idle=sight.phase.kind is not Kind.RUNNING and not sight.pods,
                )
            )
            body |= readings.times(sight, old)
        if sight.phase.kind is Kind.COMPLETE and phase.export_url(sight.job):
            body["exportURL"] = phase.export_url(sight.job)
        await self.write(sight.raw, sight.memory, found, body, now=sight.now, wall=sight.wall)

    def _facts(self, sight: Sight) -> conditions.Facts:
        job, live = sight.job, statuses.training(sight.replies)
        shard_problems, losses = readings.problems(sight)
        steps = job.spec.steps or 0
        behind = [str(r.shard) for r in sight.replies if r is not None and r.steps != steps]
        moved = sight.memory.tick_at or sight.now
        return conditions.Facts(
            phase=sight.phase,
            shard_states=tuple(reply.state if reply else None for reply in sight.replies),
            shard_problems=tuple(shard_problems),
            desired=job.spec.learners,
            live=None if live is None else len(live),
            quorum=job.spec.sync.quorum,
            losses=tuple(losses),
            held=tuple(each.message for each in sight.placement.held),
            drift=(f"spec.steps is not yet known to shard {', '.join(behind)}",) if behind else (),
            stalled_seconds=sight.now - moved,
            ephemeral=job.spec.syncer.storage.type is StorageType.EPHEMERAL,
            pods_left=sum(pod.role == LEARNER_ROLE for pod in sight.pods),
            troubles=conditions.troubles(sight.replies),
        )

    async def write(
        self,
        raw: Object,
        memory: Memory,
        found: Sequence[conditions.Condition],
        body: Mapping[str, Any],
        *,
        now: float,
        wall: str,
    ) -> None:
        """One write a pass, and none when nothing is new."""
        metadata, old = raw["metadata"], raw.get("status") or {}
        generation = metadata["generation"]
        known = old.get("conditions") or []
        merged = conditions.merged(known, found, generation, wall)
        new = {**body, "observedGeneration": generation, "conditions": merged}
        if new == old:
            return
        urgent = known != merged or readings.lasting(new) != readings.lasting(old)
        if not urgent and now - memory.written_at < WRITE_SECONDS:
            return
        try:
            await self.api.apply_status(metadata["namespace"], metadata["name"], new)
        except NotFoundError:
            return
        memory.written_at = now
        self.metrics.writes.labels("Status").inc()
        for each in conditions.transitions(known, found):
            await self.event(events.of_transition(raw, each, wall))

    async def event(self, event: Mapping[str, Any]) -> None:
        """An Event beside those of transitions."""
        await self.api.create_event(event["metadata"]["namespace"], event)
        self.metrics.writes.labels("Event").inc()
