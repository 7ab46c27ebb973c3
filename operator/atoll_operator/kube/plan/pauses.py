"""How long until a job's next pass, if no event asks for one earlier.

Whatever changes brings a pass by itself: the job, its children, its pods, the nodes of its pods,
and what its shards say of states, sessions and owners (`edges.polls`). A pass that nothing has
asked for is needed only for what time alone brings:

    an answer is waited for      a controller has not observed a change, a word was refused
    a silence grows              a Lease is overdue, a shard or a session is away, a storm settles
    something is on trial        pods that start, restart, or have a template that is new
    progress is due              tick, tokens and loss are written every WRITE_SECONDS
    a deadline passes            activeDeadlineSeconds, ttlSecondsAfterFinished

A job that trains as it should has none of the middle two: it is *steady* (`is_steady`), and gets a
pass when its progress is due and at the latest every STEADY_SECONDS, which makes up for an event
that was lost. So a fleet that is well costs the operator a fraction of one in trouble. Silence is
not seen later for it: an overdue Lease counts as doubtful, and ends the steadiness, 10 s before it
can count as lost (`nodes`).
"""

from dataclasses import dataclass

from atoll_operator.api import status as statuses
from atoll_operator.api.facts import Kind
from atoll_operator.kube.names import LEARNER_ROLE
from atoll_operator.kube.objects import seconds_of
from atoll_operator.kube.observation import with_hosts, workload_name
from atoll_operator.kube.plan import replacements, sessions
from atoll_operator.kube.plan.changes import Changes
from atoll_operator.kube.plan.nodes import Census, NodeState, nears_storm
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.status import BUSY_WRITES, WRITE_SECONDS

POLL_SECONDS = 1.0  # while something runs
STEADY_SECONDS = 5.0  # while it runs as it should; well below the time from doubtful to lost
AGAIN_SECONDS = 0.3  # while a controller or the registrar is waited for
RESTORE_SECONDS = 5.0  # while what a job restores is not there: no event of it tells this job
QUIET_SECONDS = 300.0  # while nothing runs
EXPIRY_MARGIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Doings:
    """What the pass finds to do, as far as the next one depends on it."""

    children: Changes
    refused: bool = False  # a child or a certificate was not taken by the API server
    waits: bool = False  # a pod on a lost node waits for its controller
    acts: bool = False  # pods are deleted, or owners named
    writes: bool = False  # a status is written


def pause(case: Situation, doings: Doings) -> float | None:
    """Seconds until the next pass. None: an event must come first, or the job has expired."""
    if doings.waits:
        found: float | None = AGAIN_SECONDS
    elif is_steady(case, doings):
        found = _of_steady(case, writes=doings.writes)
    else:
        found = _of_phase(case)
    if found is None:
        return None
    if doings.refused or case.certificates.missing:
        found = min(found, POLL_SECONDS)
    revert_seconds = doings.children.wait_seconds
    return found if revert_seconds is None else min(found, revert_seconds)


def _of_phase(case: Situation) -> float | None:
    if case.phase.kind is Kind.REJECTED:
        return None
    if case.phase.kind.over:
        return _seconds_left(case)
    if case.phase.kind is Kind.SUSPENDED and all(pod.ended for pod in case.seen.pods):
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


def is_steady(case: Situation, doings: Doings) -> bool:
    """Whether all of a job is as it should be, so that only an event can change what is to do."""
    seen, remembered, children = case.seen, case.seen.remembered, doings.children
    if case.phase.kind is not Kind.RUNNING or case.hold is not None or case.exited:
        return False
    if doings.acts or doings.refused or children.apply or children.check or children.prune:
        return False
    if case.certificates.acts or case.certificates.missing:
        return False
    if seen.error or remembered.undeleted or remembered.writes_a_minute >= BUSY_WRITES:
        return False
    return _all_train(case) and _all_placed(case)


def _all_train(case: Situation) -> bool:
    """Whether every shard serves, every learner trains, and each pod is the one that is wanted."""
    seen, job = case.seen, case.job
    slots = statuses.training(seen.replies) or []
    if not sessions.all_serve(seen.replies) or len(slots) != job.spec.learners:
        return False
    trains = with_hosts(frozenset(slot.uid for slot in slots), seen.pods)
    counts = dict.fromkeys(seen.workloads, 0)
    for pod in seen.pods:
        name = workload_name(job.name, pod)
        live = seen.workloads.get(name)
        if live is None or pod.template != live.template or not pod.ready or pod.terminating:
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
    census = seen.nodes if isinstance(seen.nodes, Census) else Census(seen.nodes)
    states = census.states(seconds)
    if any(states.get(pod.node) is not NodeState.WELL for pod in seen.pods):
        return False
    of_regions = replacements.region_nodes(
        [region.name for region in case.job.spec.regions],
        census,
        spans_regions=case.settings.spans_regions,
    )
    tallies = [census.tally(each, seconds) for each in of_regions.values()]
    return not any(nears_storm(each, failure) for each in tallies)


def _of_steady(case: Situation, *, writes: bool) -> float:
    """Until progress is due, or the job's deadline."""
    found = STEADY_SECONDS
    due = WRITE_SECONDS - case.seen.remembered.unwritten_seconds
    if not writes and due > 0:
        found = min(found, due)
    deadline, running = case.job.spec.active_deadline_seconds, case.before.running_seconds
    if deadline is not None and running is not None:
        found = min(found, deadline - running)
    return max(found, POLL_SECONDS)
