"""How long until a job's next pass, if no event asks for one earlier.

Whatever changes brings a pass by itself. A pass that nothing has asked for is needed for what time
alone brings: an answer is waited for, a silence grows, something new is on trial, progress is due,
a deadline passes. A job that trains as it should has none of the middle two: it is *steady*, and
gets a pass when its progress is due and at the latest every STEADY_SECONDS, for an event that was
lost. Silence is not seen later for it: an overdue Lease counts as doubtful, and ends the
steadiness, 10 s before it can count as lost (`nodes`).
"""

from atoll_operator.api.status import seen_status
from atoll_operator.api.status.condition_facts import PhaseKind
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.observed.objects import seconds_of
from atoll_operator.kube.observed.observation import Observation, with_hosts, workload_name
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.losses import sessions
from atoll_operator.kube.plan.losses.nodes import NodeState, nears_storm, states_of
from atoll_operator.kube.plan.shard_processes import is_spare
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.status.status import BUSY_WRITES, WRITE_SECONDS, StatusWrite

POLL_SECONDS = 1.0  # while something runs
STEADY_SECONDS = 5.0  # while it runs as it should; well below the time from doubtful to lost
AGAIN_SECONDS = 0.3  # while a controller or the registrar is waited for
RESTORE_SECONDS = 5.0  # while what a job restores is not there: no event of it tells this job
QUIET_SECONDS = 300.0  # while nothing runs
EXPIRY_MARGIN_SECONDS = 0.1


def pause(case: Situation, plan: Plan, *, waits: bool) -> float | None:
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
    return min((each for each in pauses if each is not None), default=None)


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
    slots = seen_status.training(seen.replies) or []
    if not sessions.all_serve(seen.replies) or len(slots) != job.spec.learners:
        return False
    trains = with_hosts(frozenset(slot.uid for slot in slots), seen.pods)
    counts = dict.fromkeys(seen.workloads, 0)
    for pod in seen.pods:
        name = workload_name(job.name, pod)
        live = seen.workloads.get(name)
        if live is None or pod.template != live.template or pod.terminating:
            return False
        if not (pod.ready or (pod.started and is_spare(pod, seen.pods))):
            return False
        if pod.role == LEARNER_ROLE and pod.uid not in trains:
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
    regions = [of_nodes.tally(each.name, spans_regions=spans) for each in case.job.spec.regions]
    return not any(nears_storm(each, failure) for each in regions)


def _of_steady(case: Situation) -> float:
    """Until the job's deadline, if that is near."""
    deadline, running = case.job.spec.active_deadline_seconds, case.before.running_seconds
    if deadline is None or running is None:
        return STEADY_SECONDS
    return max(POLL_SECONDS, min(STEADY_SECONDS, deadline - running))
