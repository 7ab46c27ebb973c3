"""The plan of one pass: from an observation to everything that is to be done and said.

`plan` reads nothing but its arguments and changes none of them. Everything is decided in one place
from one observation, because the parts depend on each other: a pod that is being replaced must not
be named owner, and a shard that moves must not be held back by a rollout.

To add a decision: a function of values in one of the modules of this package, its inputs as fields
of `Observation`, its result as a field of `Plan`, a line in `apply` that does it, and a test in
tests/unit/kube/test_planner.py.

Whatever changes brings a pass by itself; one that nothing has asked for is needed for what time
alone brings. A job that trains as it should (*steady*) gets a pass when its progress is due and at
the latest every STEADY_SECONDS, for an event that was lost. Silence is not seen later for it: an
overdue Lease counts as doubtful, and ends the steadiness, 10 s before it can count as lost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.fields import TlsMode
from atoll_operator.api.job.spec import KIND, Job
from atoll_operator.api.status import job_status
from atoll_operator.api.status.conditions import PhaseKind
from atoll_operator.kube.names import LEARNER_ROLE, MANAGED_BY, SHARD_ROLE, JobOwner
from atoll_operator.kube.observed import objects, observation
from atoll_operator.kube.observed.objects import rfc3339, seconds_of
from atoll_operator.kube.observed.observation import (
    Object,
    Observation,
    Pod,
    Shown,
    place_of,
    with_hosts,
    workload_name,
)
from atoll_operator.kube.plan import accepted, actions, applied, restarts, situation, status
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.accepted import speaks_tls
from atoll_operator.kube.plan.actions import Deletion, Plan, PodReplacement, SlotOwner, StatusWrite
from atoll_operator.kube.plan.certificates import leaf_names, needed
from atoll_operator.kube.plan.pods import container_names
from atoll_operator.kube.plan.replacements import NodeState, is_excluded, nears_storm, states_of
from atoll_operator.kube.plan.situation import Situation, before_of, shard_addresses, situation_of
from atoll_operator.kube.plan.status import BUSY_WRITES, WRITE_SECONDS
from atoll_operator.kube.settings import Settings
from atoll_protos.exits import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsToRead:
    """The Secrets with a job's certificates, and how urgently they are to be read."""

    owner: JobOwner
    waits: bool  # a pod cannot start, or no shard takes what is there
    names: frozenset[str] = frozenset()  # of those that the status tells of, too
    used: frozenset[str] = frozenset()  # by workloads: these stay, also of a region that has left


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is known without asking, and what is to be asked."""

    seen: Observation
    addresses: Mapping[int, str] = field(default_factory=dict)  # of shards to ask
    speaks_tls: bool = False  # whether they are asked over TLS
    secrets: SecretsToRead | None = None  # None: the job needs no certificates now


def inquire(shown: Shown, settings: Settings, now: float) -> Inquiry:
    """Choose what to look at. Of a job that is not run here, or that cannot be read: nothing."""
    if not is_managed_here(shown.raw):
        return Inquiry(seen=Observation(at=shown.at, raw=shown.raw))
    found = accepted.read(
        shown.raw,
        shown.children,
        settings.serves,
        spans_regions=settings.spans_regions,
        denied=shown.denied,
    )
    seen = Observation(
        at=shown.at,
        raw=shown.raw,
        job=found.job,
        accepted=found.spec,
        reason=found.reason,
        error=found.error,
        unread=shown.unread,
    )
    job = found.job
    if job is None or shown.unread:
        return Inquiry(seen=seen)
    workloads = [child for child in shown.children if child["kind"] in observation.WORKLOADS]
    seen = replace(
        seen,
        children=shown.children,
        pods=_pods(shown, job, now),
        tls=speaks_tls(shown.children, job.name),
    )
    of_workload = observation.by_workload(job.name, seen.pods)
    parsed = [
        objects.workload(
            workload,
            shown.failures.get(workload["metadata"]["uid"]),
            of_workload.get(workload["metadata"]["name"], ()),
        )
        for workload in workloads
    ]
    seen = replace(seen, workloads={each.name: each for each in parsed})
    over = before_of(seen, now).over
    addresses = shard_addresses(job, seen.pods, settings.serves)
    if over and not phases.lingers(seen.status, now):
        addresses = dict.fromkeys(addresses, "")  # all is known
    required = job.spec.syncer.tls.mode is TlsMode.REQUIRED
    tls = required if seen.tls is None else seen.tls
    asks = tls and any(addresses.values())
    return Inquiry(
        seen=seen,
        addresses=addresses,
        speaks_tls=tls,
        secrets=_secrets(shown, seen, job, workloads, settings.serves, now, asks=asks),
    )


def is_managed_here(raw: Object) -> bool:
    """Whether this operator runs the job: it is not being deleted and has no other manager."""
    managed_by = raw["spec"].get("managedBy")
    return "deletionTimestamp" not in raw["metadata"] and managed_by in (None, MANAGED_BY)


def _pods(shown: Shown, job: Job, now: float) -> tuple[Pod, ...]:
    containers, found = container_names(job), []
    for child in shown.children:
        if child["kind"] == "Pod":
            pod = objects.pod(child, containers)
            failure = shown.failures.get(pod.uid)
            found.append(replace(pod, held_up=objects.held_up(pod, failure, now)))
    return tuple(found)


def _secrets(
    shown: Shown,
    seen: Observation,
    job: Job,
    workloads: Sequence[Object],
    serves: Callable[[str], bool],
    now: float,
    *,
    asks: bool,
) -> SecretsToRead | None:
    """Those to read; elsewhere than at the syncer only to ask (`asks`) the shards."""
    home = serves(job.spec.syncer_region)
    if home:
        runs = any(workload["spec"].get("replicas") for workload in workloads)
        if not needed(job, before_of(seen, now), runs=runs, tls=seen.tls):
            return None
    elif not asks:
        return None
    waits = any(
        objects.cannot_start(pod, now) or (pod.exit_code == ExitCode.TRY_AGAIN and not pod.runs)
        for pod in seen.pods
    )
    return SecretsToRead(
        owner=JobOwner.of(shown.raw, job.name),
        waits=waits or (not home and shown.refused),
        names=frozenset(leaf_names(job, seen.status) if home else ()),
        used=frozenset(objects.mounted_secrets(workloads)),
    )


POLL_SECONDS = 1.0  # while something runs
STEADY_SECONDS = 5.0  # while it runs as it should; well below the time from doubtful to lost
AGAIN_SECONDS = 0.3  # while a controller or the registrar is waited for
QUIET_SECONDS = 300.0  # while nothing runs
EXPIRY_MARGIN_SECONDS = 0.1


def pause_until(case: Situation, plan: Plan, *, waits: bool) -> float | None:
    """Seconds until the next pass, after all that `plan` does.

    None: an event must come first, or the job has expired. `waits`: a pod waits for its controller.
    """
    if waits:
        found: float | None = AGAIN_SECONDS
    elif is_steady(case, plan):
        found = _of_steady(case)
    else:
        found = _of_phase(case)
    found = sooner(found, until_written(case.seen, plan.status))
    if found is None:
        return None
    refused = plan.refused or case.certificates.missing
    return sooner(found, POLL_SECONDS if refused else None, plan.children.wait_seconds)


def until_written(seen: Observation, write: StatusWrite | None) -> float | None:
    """Seconds to a pass for a status that is put off, as no other may come; None: none is."""
    left = WRITE_SECONDS - seen.remembered.unwritten_seconds
    return max(POLL_SECONDS, left) if write is None and left > 0 else None


def sooner(*pauses: float | None) -> float | None:
    return min((pause for pause in pauses if pause is not None), default=None)


def _of_phase(case: Situation) -> float | None:
    if case.phase.kind is PhaseKind.REJECTED:
        return None
    if case.phase.kind.over:
        return _seconds_left(case)
    if case.phase.kind is PhaseKind.SUSPENDED and all(pod.ended for pod in case.seen.pods):
        return QUIET_SECONDS
    return POLL_SECONDS


def _seconds_left(case: Situation) -> float | None:
    """Until a finished job has lived for its ttlSecondsAfterFinished; None: it has."""
    ttl = case.job.spec.ttl_seconds_after_finished
    completed = case.seen.status.completion_time
    if not completed or not case.before.over:
        return POLL_SECONDS
    if any(not (pod.terminating or pod.ended) for pod in case.seen.pods):
        return POLL_SECONDS
    if ttl is None:
        return QUIET_SECONDS
    left = ttl - (case.now - seconds_of(completed))
    return left + EXPIRY_MARGIN_SECONDS if left > 0 else None


# ---------------------------------------------------------------- steady jobs


def is_steady(case: Situation, plan: Plan) -> bool:
    """Whether all of a job is as it should be, so that only an event can change what is to do."""
    seen, remembered = case.seen, case.seen.remembered
    if case.phase.kind is not PhaseKind.RUNNING or case.hold is not None or case.exited:
        return False
    if plan.acts or plan.marks or plan.refused or plan.children.check:
        return False
    if case.certificates.acts or case.certificates.missing:
        return False
    if seen.error or remembered.undeleted or remembered.writes_a_minute >= BUSY_WRITES:
        return False
    return _all_train(case) and _all_placed(case)


def _all_train(case: Situation) -> bool:
    """Whether every shard serves, every learner trains, and each pod is the one that is wanted."""
    seen, job = case.seen, case.job
    slots = job_status.training(seen.replies) or []
    if not situation.all_serve(seen.replies) or len(slots) != job.spec.learners:
        return False
    trains = with_hosts(frozenset(slot.uid for slot in slots), seen.pods)
    counts = dict.fromkeys(seen.workloads, 0)
    for pod in seen.pods:
        name = workload_name(job.name, pod)
        live = seen.workloads.get(name)
        if live is None or pod.template != live.template or pod.terminating:
            return False
        if not pod.ready or (pod.role == LEARNER_ROLE and pod.uid not in trains):
            return False
        counts[name] += 1
    return all(
        live.observed and not live.trouble and live.replicas == counts[name]
        for name, live in seen.workloads.items()
    )


def _all_placed(case: Situation) -> bool:
    """Whether the nodes of all pods are well, and no storm is near or has just been."""
    seen, failure = case.seen, case.job.spec.failure
    if seen.nodes is None or case.placement.held or case.placement.suspected:
        return False
    seconds = failure.node_loss_seconds
    if any(since < seconds for since in seen.remembered.storm_seconds.values()):
        return False
    of_nodes = states_of(seen.nodes, seconds)
    if any(of_nodes.states.get(pod.node) is not NodeState.WELL for pod in seen.pods):
        return False
    spans = case.settings.spans_regions
    regions = [of_nodes.tally(region.name, spans_regions=spans) for region in case.job.spec.regions]
    return not any(nears_storm(region, failure) for region in regions)


def _of_steady(case: Situation) -> float:
    """Until the job's deadline, if that is near."""
    deadline, running = case.job.spec.active_deadline_seconds, case.before.running_seconds
    if deadline is None or running is None:
        return STEADY_SECONDS
    return max(POLL_SECONDS, min(STEADY_SECONDS, deadline - running))


EXPIRED = "spec.ttlSecondsAfterFinished have passed"


def plan(seen: Observation, settings: Settings, now: float) -> Plan:
    """Decide everything about one job in one pass.

    `now` is wall time in UNIX seconds; it dates statuses and Events, and measures deadlines, which
    outlive this process. All shorter times are ages in the observation.
    """
    if seen.job is not None and seen.unread:
        return Plan(
            at=seen.at,
            namespace=seen.namespace,
            job=seen.job.name,
            status=status.of_unread(situation_of(seen, seen.job, settings, now)),
        )
    if seen.job is None:
        said = status.of_rejected(seen, now) if seen.error else None
        name = seen.raw["metadata"]["name"]
        pause = until_written(seen, said)
        return Plan(
            at=seen.at, namespace=seen.namespace, job=name, status=said, pause_seconds=pause
        )
    case = situation_of(seen, seen.job, settings, now)
    job, placement = case.job, case.placement
    children = applied.of_children(case)
    replaced, waits = _replacements(case)
    refused = (*case.certificates.refused, *children.refused)
    found = Plan(
        at=seen.at,
        namespace=seen.namespace,
        job=job.name,
        registrar_address=seen.remembered.registrar_address,
        intent=phases.intent(case.phase) if case.home else pb.StatusRequest(),
        storms=placement.storms,
        children=children,
        refused=refused,
        replace=replaced,
        delete=restarts.deletions(case),
        owners=_owners(case),
        restart=restarts.of_templates(case),
        marks=status.marks(seen.pods, seen.replies, seen.remembered.idle_seconds),
        training=with_hosts(
            frozenset(slot.uid for slot in job_status.training(seen.replies) or ()), seen.pods
        ),
        pods=seen.pods,
        status=status.of_job(case, refused),
    )
    pause = pause_until(case, found, waits=waits)
    if pause is None and case.phase.kind.over:
        if found.status is None:
            gone = Deletion(kind=KIND, name=job.name, uid=seen.uid, reason=EXPIRED)
            return replace(found, expire=gone)
        pause = POLL_SECONDS  # the last status is written before the job is deleted
    return replace(found, pause_seconds=pause)


# ---------------------------------------------------------------- lost nodes


def _replacements(case: Situation) -> tuple[tuple[PodReplacement, ...], bool]:
    """Pods that may be deleted now, and whether another waits for its controller.

    A silent Lease must still be unchanged when the pod is deleted, but a Node that is NotReady or
    gone needs no last look; a learner's slot must have no owner, as far as the registrar can be
    reached. What is left of a learner, or of a shard's second process, that the job no longer asks
    for is made nowhere again, so nothing has to exclude the node.
    """
    seen, job, placement = case.seen, case.job, case.placement
    found, waits = [], False
    for replacement in placement.replace:
        pod, state = replacement.pod, placement.lost.get(replacement.pod.node)
        live = seen.workloads.get(workload_name(job.name, pod))
        left = live is None and not _is_wanted(pod, job)
        again = not left and (live is None or live.replicas > 0)
        place = "made again on another node" if again else "removed"
        if not (left or is_excluded(replacement, live, placement.lost)):
            waits = True
            continue
        key = (place_of(job.name, pod), f"{pod.node} is lost")
        if restarts.is_done(case, key):
            waits = True
            continue
        node = (seen.nodes or {}).get(pod.node)
        retire = None
        if pod.role == LEARNER_ROLE and seen.remembered.registrar_address:
            retire = situation.to_retire(pod, seen.registrar)
        found.append(
            PodReplacement(
                pod=pod,
                reason=replacement.reason,
                silent_renewal=node.renewed if node and state is NodeState.SILENT else None,
                retire_generation=retire,
                silent_seconds=seen.lease_ages.get(pod.node, 0.0),
                key=key,
                event=actions.warning(
                    seen.raw,
                    actions.NODE_LOST,
                    pod.name,
                    f"{pod.name} is {place}: {replacement.reason}",
                    rfc3339(case.now),
                ),
            )
        )
    return tuple(found), waits


def _is_wanted(pod: Pod, job: Job) -> bool:
    if pod.role == LEARNER_ROLE:
        return pod.slot in job.spec.slots
    return pod.role != SHARD_ROLE or pod.shard < job.spec.syncer.shards


def _owners(case: Situation) -> tuple[SlotOwner, ...]:
    """Successors that wait to be named owner of their slot; not pods about to be replaced."""
    seen = case.seen
    replaced = {replacement.pod.uid for replacement in case.placement.replace}
    waiting = situation.to_name(seen.pods, seen.registrar, seen.remembered.absent_seconds)
    return tuple(
        SlotOwner(pod=pod.name, slot=pod.slot, uid=pod.uid, generation=generation)
        for pod, generation in waiting
        if pod.uid not in replaced
    )
