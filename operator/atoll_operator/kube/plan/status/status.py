"""What the status of a job says after a pass, and whether that is worth a write.

What cannot be seen is Unknown or absent, never the last value. An answer older than
REPLY_SECONDS_MAX (`memory`) counts as none. The one exception is a job that is over: its pods and
shards are gone by intent, so the last counts stay.

Nothing new is not written. A change of a condition's status or reason, or of a count, is written at
once; after BUSY_WRITES writes within a minute once in BUSY_SECONDS. A message and mere progress are
written at most every WRITE_SECONDS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll_operator.api.job.learner_fields import RegionPlacement
from atoll_operator.api.job.syncer_fields import TlsMode
from atoll_operator.api.status import conditions, seen_status
from atoll_operator.api.status.condition_facts import (
    ENDED,
    Facts,
    PhaseKind,
    capped,
    late,
    leading,
    reading,
    refused_offers,
    tick_seconds,
    troubles,
)
from atoll_operator.api.status.job_status import Condition, FailureRecord, Status
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_PORT, SHARD_ROLE, shard_deployments
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import ChildRefusal, Object, Observation, texts_of
from atoll_operator.kube.plan.losses import sessions
from atoll_operator.kube.plan.manifest import elsewhere
from atoll_operator.kube.plan.manifest import phase as phases
from atoll_operator.kube.plan.manifest.accepted import INVALID
from atoll_operator.kube.plan.manifest.phase import export_url, last_words
from atoll_operator.kube.plan.shard_processes import serves, standbys
from atoll_operator.kube.plan.situation import Situation, retry_of
from atoll_operator.kube.plan.status import events
from atoll_operator.kube.plan.status.events import Event
from atoll_operator.kube.plan.status.problems import (
    larger_claims,
    problems,
    unbound_claims,
    without_standby,
)
from atoll_operator.kube.plan.status.region_counts import ready_by_region, replaced_by_region
from atoll_operator.kube.plan.status.starts import starting
from atoll_operator.kube.plan.workloads import exposure
from atoll_operator.sizing import expected

WRITE_SECONDS = 10.0  # between two writes of mere progress
UNREACHABLE_SECONDS = 10.0  # of silence, after which a Ready pod's shard cannot be reached
BUSY_WRITES = 10  # within a minute: then even changes of conditions are written more seldom
BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWrite:
    """A status to write, and what to say once it is written."""

    status: Object
    changed: tuple[Condition, ...] = ()  # conditions whose status has changed
    events: tuple[Event, ...] = ()  # one for each of them, and for a run that is lost
    urgent: bool = True  # more than progress


def of_rejected(seen: Observation, now: float) -> StatusWrite | None:
    """The status of an unreadable manifest: what runs goes on unseen, and what is over stays so."""
    old = seen.status
    begun = old.start_time is not None
    found = conditions.rejected(seen.reason or INVALID, seen.error, begun=begun)
    if phases.before(old, now).over:
        known = {each.type: each for each in old.conditions or []}
        found = (found[0], *(known.get(each.type, each) for each in found[1:]))
    return _write(seen, found, old, now)


def of_unread(case: Situation) -> StatusWrite | None:
    """The status of a job whose objects cannot be read: its phase, and all else Unknown."""
    facts = replace(_facts(case), unread=case.seen.unread, drift=())
    status = case.seen.status
    if not case.phase.kind.over:
        status = Status(run=_run(case)).model_copy(update=_lasts(case))
    return _write(case.seen, conditions.conditions_of(facts), status, case.now)


def of_job(case: Situation, refused: Sequence[ChildRefusal] = ()) -> StatusWrite | None:
    """None: nothing to write. `refused`: children that the API server has refused."""
    facts = replace(
        _facts(case),
        refused=(*texts_of(refused), *case.seen.remembered.undeleted),
        template_refused=any(each.of_template for each in refused),
    )
    found = conditions.conditions_of(facts)
    if case.phase.kind.over and case.before.over:
        # Pods and shards are gone: what was written while they were there stays.
        status = _with_last_reports(case)
    else:
        status = seen_status.status_of(_view(case))
        kept = status.checkpoint or case.seen.status.checkpoint  # of use when all else is lost
        about = {"run": status.run or _run(case), "checkpoint": kept, **_lasts(case)}
        status = status.model_copy(update=about)
    place = export_url(case.job) if case.home else case.job.spec.export_url
    if case.phase.kind is PhaseKind.COMPLETE and place:
        status = status.model_copy(update={"export_url": place})
    return _write(case.seen, found, status, case.now)


def _with_last_reports(case: Situation) -> Status:
    """The status with learners' last reports, which shards that stay give all clusters alike."""
    status = case.seen.status
    last, known = seen_status.status_of(_view(case)).progress, status.progress
    if last is None or known is None or last.step < known.step or last.tokens <= known.tokens:
        return status
    kept = {"loss": known.loss, "metrics": last.metrics or known.metrics}
    return status.model_copy(update={"progress": last.model_copy(update=kept)})


def _view(case: Situation) -> seen_status.SeenJob:
    seen, job = case.seen, case.job
    served = [region.name for region in job.spec.regions if case.settings.serves(region.name)]
    return seen_status.SeenJob(
        job=job,
        replies=seen.replies,
        asked_at=seen.remembered.asked_at or rfc3339(case.now),
        ready=ready_by_region(seen.pods, served, job.spec.learner.hosts_needed),
        replaced=replaced_by_region(job, seen.workloads),
        endpoints=_endpoints(case) if case.home else None,
        standbys=standbys(job, seen.pods) if case.home else None,
        idle=case.phase.kind is not PhaseKind.RUNNING and not seen.pods,
    )


def _endpoints(case: Situation) -> list[str] | None:
    job, syncer = case.job, case.seen.status.syncer
    home = job.spec.syncer_region
    any_node = any(
        r.name == home and r.placement is RegionPlacement.ANYWHERE for r in job.spec.regions
    )
    return exposure.endpoints(
        job,
        case.seen.children,
        case.seen.nodes,
        home if case.settings.spans_regions and not any_node else "",
        (syncer.endpoints if syncer else None) or (),
    )


def _lasts(case: Situation) -> dict[str, Any]:
    """startTime as of the last resume or retry, completionTime once, how a failed job stood."""
    found: dict[str, Any] = {}
    old, retried = case.seen.status, case.before.retried
    if case.phase.kind is not PhaseKind.SUSPENDED:
        found["start_time"] = (None if retried else old.start_time) or rfc3339(case.now)
    if case.phase.kind.over:
        found["completion_time"] = (None if retried else old.completion_time) or rfc3339(case.now)
    if case.phase.kind is PhaseKind.FAILED:
        generation = case.seen.raw["metadata"]["generation"]
        found["failure"] = FailureRecord(generation=generation, retry=retry_of(case.seen))
    return found


def _run(case: Situation) -> str | None:
    """The run as written before; a retried job whose shards have kept nothing begins another."""
    kept = case.job.spec.syncer.storage.outlives_pods
    return None if case.before.retried and not kept else case.seen.status.run


def _facts(case: Situation) -> Facts:
    seen, job, placement = case.seen, case.job, case.placement
    live = seen_status.listed(job, seen.replies)
    gone = {pod.uid for pod in case.exited}
    left = [pod for pod in seen.pods if pod.uid not in gone]
    ended = all(reply is not None and reply.state in ENDED for reply in seen.replies)
    shard_problems, losses, spares = problems(left, placement, None if ended else case.joined)
    if any(pod.role == SHARD_ROLE and pod.unschedulable for pod in seen.pods):
        shard_problems += unbound_claims(seen.children)
    deployed = shard_deployments(job)
    for each in seen.workloads.values():
        if each.trouble:
            said = f"{each.kind} {each.name} cannot make a pod: {each.trouble}"
            shard = deployed.get(each.name)
            if shard is not None and any(p.shard == shard and serves(p) for p in left):
                spares.append(without_standby(shard, said))
            else:
                (losses if shard is None else shard_problems).append(said)
    return Facts(
        phase=case.phase,
        warnings=expected.warnings(job.spec),
        unaccepted=(seen.reason, seen.error) if seen.error else None,
        shard_states=tuple(reply.state if reply else None for reply in seen.replies),
        reading=reading(seen.replies),
        shard_problems=tuple(shard_problems),
        without_standby=tuple(spares),
        desired=job.spec.learners,
        live=None if live is None else len(live),
        missing=seen_status.missing(job, seen.replies),
        starting=starting(case),
        away=elsewhere.away(
            job, case.settings, seen_status.missing(job, seen.replies), seen.registrar
        )
        if case.home
        else (),
        held_elsewhere=sessions.held_elsewhere(left, seen.registrar, case.now),
        quorum=job.spec.learners_needed,
        losses=tuple(losses),
        exited=tuple(sorted(last_words(pod) for pod in case.exited)),
        held=tuple(each.message for each in placement.held),
        drift=_drift(case) if case.home else (),  # elsewhere the home's length counts
        other_counts=seen_status.unlisted(job, seen.replies)
        if case.home
        else elsewhere.differences(job, next(iter(seen.replies), None)),
        stale_endpoints=exposure.stale(job, seen.nodes, _endpoints(case) or ())
        if case.home
        else (),
        transport=_transport(case),
        stalled_seconds=seen.remembered.still_seconds,
        tick_seconds=tick_seconds(seen.replies),
        ephemeral=not job.spec.syncer.storage.outlives_pods,
        larger_claims=tuple(larger_claims(seen.children, job.spec.syncer.storage.size)),
        pods_left=sum(pod.role == LEARNER_ROLE for pod in seen.pods),
        troubles=troubles(seen.replies),
        refused_offers=refused_offers(seen.replies),
        late=late(seen.replies, job.spec.sync),
        leading=leading(seen.replies),
        capped=capped(seen.replies),
        unreachable=_unreachable(case),
        begun=conditions.has_begun(seen.status.conditions or []),
        hold=case.hold,
        served=any(case.settings.serves(each.name) for each in job.spec.regions),
        certificates=case.certificates.missing,
        certificates_reason=case.certificates.why,
        expiring=(
            *case.certificates.expiring,
            *(f"{slot}: {said}" for slot, said in sorted(seen.remembered.troubles.items())),
        ),
    )


def _drift(case: Situation) -> tuple[str, ...]:
    """That shards know of another length than the manifest's."""
    spec = case.job.spec
    name, asked = ("steps", spec.steps) if spec.tokens is None else ("tokens", spec.tokens)
    known = {each.shard: getattr(each, name) for each in case.seen.replies if each is not None}
    others = [f"{length} at shard {shard}" for shard, length in known.items() if length != asked]
    return (f"spec.{name} is {asked}, and still {', '.join(others)}",) if others else ()


def _transport(case: Situation) -> str:
    """That the run talks in another way than the manifest asks for; empty: it does not."""
    asked = case.job.spec.syncer.tls.mode
    if case.seen.tls is None or case.seen.tls == (asked is TlsMode.REQUIRED):
        return ""
    if not any(each.replicas for each in case.seen.workloads.values()):
        return ""  # it starts as the manifest says
    way = "over TLS" if case.seen.tls else "in plain text"
    remedy = "suspend the job and resume it when it has no pods"
    if not case.job.spec.syncer.storage.outlives_pods:
        remedy = "start another job, since Ephemeral storage keeps its shards' pods while suspended"
    return f"spec.syncer.tls.mode is {asked}, and the run continues {way} as it began; {remedy}"


def _unreachable(case: Situation) -> tuple[str, ...]:
    """What to do about silent shards whose own kubelet finds them ready: the way is blocked."""
    seen = case.seen
    if not case.home:
        return _unreachable_endpoints(case)
    ready = {pod.shard for pod in seen.pods if pod.role == SHARD_ROLE and pod.ready}
    silent = [str(number) for number in _silent(seen) if number in ready]
    if not silent:
        return ()
    return (
        f"the pod of shard {', '.join(silent)} is Ready, but the operator gets no answer from it:"
        f" let the operator's namespace reach port {SHARD_PORT} through NetworkPolicies and the"
        " service mesh",
    )


def _silent(seen: Observation) -> list[int]:
    seconds = seen.remembered.silent_seconds
    return [
        number
        for number, reply in enumerate(seen.replies)
        if reply is None and seconds.get(number, 0.0) >= UNREACHABLE_SECONDS
    ]


def _unreachable_endpoints(case: Situation) -> tuple[str, ...]:
    seen, endpoints = case.seen, case.job.spec.syncer.endpoints
    silent = _silent(seen) if endpoints else []
    mute = ", ".join(endpoints[number] for number in silent if number not in seen.refusals)
    refusing = ", ".join(endpoints[number] for number in silent if number in seen.refusals)
    found = []
    if mute:
        found.append(
            f"nothing answers at {mute}: compare spec.syncer.endpoints with"
            " status.syncer.endpoints in the syncer's cluster, and let this cluster reach them"
        )
    if refusing:
        found.append(
            f"what answers at {refusing} refuses the credentials of this cluster: see Accepted"
        )
    return tuple(found)


# ---------------------------------------------------------------- whether to write


def _write(
    seen: Observation, found: Sequence[Condition], status: Status, now: float
) -> StatusWrite | None:
    """The write, or None when nothing is new, or only progress a moment after the last write."""
    old = seen.status
    known = old.conditions or []
    generation = seen.raw["metadata"]["generation"]
    merged = conditions.merged(known, found, generation, rfc3339(now))
    new = status.model_copy(update={"observed_generation": generation, "conditions": merged})
    if _without_clock(new) == _without_clock(old):
        return None
    urgent = _states(known) != _states(merged) or _lasting(new) != _lasting(old)
    busy = seen.remembered.writes_a_minute >= BUSY_WRITES
    wait = (BUSY_SECONDS if busy else 0.0) if urgent else WRITE_SECONDS
    if seen.remembered.unwritten_seconds < wait:
        return None
    changed = conditions.transitions(known, found)
    before = {each.type: each.status for each in known}
    begun = conditions.has_begun(known)
    said = [
        events.of_transition(seen.raw, each, before.get(each.type, ""), rfc3339(now), begun=begun)
        for each in changed
    ]
    if old.run and new.run and new.run != old.run:
        step = new.progress.step if new.progress else None
        said.append(events.run_lost(seen.raw, old.run, new.run, step, rfc3339(now)))
    return StatusWrite(status=new.to_object(), changed=changed, events=tuple(said), urgent=urgent)


def _states(found: Sequence[Condition]) -> list[tuple[str, str, str, int | None]]:
    """Without messages, which may name a number that moves all the time."""
    return [(each.type, each.status, each.reason, each.observed_generation) for each in found]


def _without_clock(status: Status) -> Status:
    """A status without the time of its numbers: the same numbers a second later are no news."""
    if status.progress is None:
        return status
    still = {"last_updated_time": "", "estimated_remaining_seconds": None}
    return status.model_copy(update={"progress": status.progress.model_copy(update=still)})


def _lasting(status: Status) -> Status:
    """A status without what moves all the time, and without its conditions."""
    columns = status.columns.model_copy(update={"progress": None}) if status.columns else None
    moving = {"progress": None, "conditions": None, "columns": columns}
    return status.model_copy(update=moving)
