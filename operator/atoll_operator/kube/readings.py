"""What one pass knows of a job, and small readings of it; pure."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import conditions
from atoll_operator.api.conditions import Kind, Phase
from atoll_operator.api.spec import Job
from atoll_operator.kube import observe
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.names import (
    LEARNER_ROLE,
    SHARD_ROLE,
    evaluator_name,
    learner_set,
    shard_name,
)
from atoll_operator.kube.observe import Pod, Workload
from atoll_operator.kube.plan import phase
from atoll_operator.kube.plan.children import Object, syncer_region
from atoll_operator.kube.plan.nodes import Placement


@dataclass(slots=True, kw_only=True)
class Sight:
    """All that one pass knows."""

    raw: Object
    job: Job
    memory: Memory
    now: float
    wall: str
    pods: list[Pod]
    workloads: dict[str, Workload]
    replies: list[pb.StatusReply | None]
    phase: Phase = field(default_factory=lambda: Phase(kind=Kind.RUNNING, reason="", message=""))
    placement: Placement = field(default_factory=Placement)
    absent: Mapping[str, float] = field(default_factory=dict)

    @property
    def registrar(self) -> pb.StatusReply | None:
        """Shard 0's word, if it is young enough."""
        return self.replies[0] if self.replies else None

    @property
    def namespace(self) -> str:
        """Of the job."""
        return str(self.raw["metadata"]["namespace"])


def rfc3339(seconds: float) -> str:
    """In whole seconds, UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """The reverse of `rfc3339`."""
    return datetime.datetime.fromisoformat(text).timestamp()


def condition(raw: Object, kind: str) -> Mapping[str, str] | None:
    """The condition of a type, when it is True."""
    for each in (raw.get("status") or {}).get("conditions") or []:
        if each["type"] == kind and each["status"] == conditions.TRUE:
            found: Mapping[str, str] = each
            return found
    return None


def before(raw: Object, now: float) -> phase.Before:
    """What earlier passes have written; `now` is wall time."""
    started = (raw.get("status") or {}).get("startTime")
    return phase.Before(
        complete=condition(raw, "Complete"),
        failed=condition(raw, "Failed"),
        running_seconds=now - seconds_of(started) if started else None,
    )


def written_over(raw: Object) -> bool:
    """Whether Complete or Failed is written."""
    return bool(condition(raw, "Complete") or condition(raw, "Failed"))


def times(sight: Sight, old: Mapping[str, Any]) -> dict[str, str]:
    """startTime as of the last resume, completionTime once."""
    found = {}
    if sight.phase.kind is not Kind.SUSPENDED:
        found["startTime"] = old.get("startTime", sight.wall)
    if sight.phase.kind.over:
        found["completionTime"] = old.get("completionTime", sight.wall)
    return found


def has_run(sight: Sight) -> bool:
    """Whether a run has ever begun."""
    return bool((sight.raw.get("status") or {}).get("run")) or any(
        reply is not None and reply.run for reply in sight.replies
    )


def shards_exist(sight: Sight) -> bool:
    """Whether shards are asked for in the cluster."""
    return any(
        live.kind == "Deployment" and live.replicas and "-syncer-" in name
        for name, live in sight.workloads.items()
    )


def homed(pod: Pod, job: Job) -> Pod:
    """Shards and evaluators live in the syncer's region."""
    if pod.region:
        return pod
    return observe.replace_region(pod, syncer_region(job))


def child_name(job: Job, pod: Pod) -> str:
    """Of the workload that makes this pod."""
    if pod.role == LEARNER_ROLE:
        return learner_set(job.name, pod.region)
    return shard_name(job.name, pod.shard) if pod.role == SHARD_ROLE else evaluator_name(job.name)


def counts(sight: Sight) -> dict[str, int]:
    """Replacements so far, by pod name; one that is under way is not counted against itself."""
    found: dict[str, int] = {}
    for pod in sight.pods:
        live = sight.workloads.get(child_name(sight.job, pod))
        if live is None or pod.role != LEARNER_ROLE:
            continue
        count, uid = live.replaced.get(pod.ordinal, (0, ""))
        found[pod.name] = count - 1 if uid == pod.uid else count
    return found


def ready_by_region(pods: Sequence[Pod], regions: Sequence[str]) -> dict[str, int]:
    """Pods of learners that are Ready."""
    return {
        region: sum(
            pod.ready and not pod.terminating
            for pod in pods
            if pod.region == region and pod.role == LEARNER_ROLE
        )
        for region in regions
    }


def replaced_by_region(sight: Sight) -> dict[str, int]:
    """Replacements so far."""
    found = {}
    for region in sight.job.spec.regions:
        live = sight.workloads.get(learner_set(sight.job.name, region.name))
        found[region.name] = sum(count for count, _ in live.replaced.values()) if live else 0
    return found


def problems(sight: Sight) -> tuple[list[str], list[str]]:
    """What is wrong with shards' and with learners' pods, in words."""
    shards: list[str] = []
    learners: list[str] = []
    lost = sight.placement.lost
    for pod in sight.pods:
        said = ""
        if pod.node in lost:
            said = f"{pod.name} is on {pod.node}, which is {lost[pod.node]}"
        elif pod.unschedulable:
            said = f"{pod.name} waits for a node: {pod.unschedulable}"
        elif pod.waiting not in ("", "ContainerCreating", "PodInitializing"):
            code = "" if pod.exit_code is None else f", last exit code {pod.exit_code}"
            said = f"{pod.name} waits: {pod.waiting}{code}"
        if said:
            (shards if pod.role == SHARD_ROLE else learners).append(said)
    learners += [
        f"{name} has used its spec.failure.maxReplacementsPerSlot"
        for name in sight.placement.exhausted
    ]
    return sorted(shards), sorted(learners)


def lasting(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without what moves all the time."""
    kept = {k: v for k, v in status.items() if k not in ("progress", "columns", "conditions")}
    columns = status.get("columns") or {}
    return {**kept, "columns": {k: v for k, v in columns.items() if k != "progress"}}
