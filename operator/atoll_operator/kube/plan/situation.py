"""One job at one moment: what was seen of it, and what follows from that for every decision.

Phase and placement are decided once per pass, here, so the status, the children and the deletions
of one pass cannot contradict each other.
"""

from dataclasses import dataclass, replace

from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import Hold, Phase, PhaseKind
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed.observation import Observation, Pod
from atoll_operator.kube.plan import elsewhere, replacements, sessions
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.certificates import (
    NOTHING,
    CertificateWork,
    wanted,
    work_of,
    work_of_region_secrets,
)
from atoll_operator.kube.plan.owner import JobOwner
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What all decisions of one pass rest on."""

    seen: Observation
    job: Job
    settings: Settings
    now: float  # UNIX seconds
    before: Before  # what earlier passes have written
    phase: Phase
    placement: Placement
    home: bool = True  # the syncer's region is served here
    hold: Hold | None = None  # why the learners wait, where it is not
    exited: tuple[Pod, ...] = ()  # pods that have ended for good
    joined: frozenset[str] | None = None  # UIDs of pods whose learner has a session; None: unknown
    certificates: CertificateWork = NOTHING  # what to do about them, and what of them is missing


def situation_of(seen: Observation, job: Job, settings: Settings, now: float) -> Situation:
    before = before_of(seen, now)
    joined = sessions.joined(seen.registrar, seen.pods)
    exited = phases.exited_for_good(job, seen.pods, joined, seen.workloads)
    home, hold = settings.serves(job.spec.syncer_region), None
    if home:
        phase = phases.phase_at_home(
            job, before, seen.pods, seen.registrar, seen.remembered.final_seconds, exited
        )
    else:
        served = [each.name for each in job.spec.regions if settings.serves(each.name)]
        scene = elsewhere.ElsewhereFacts(
            seen=seen, job=job, before=before, exited=exited, regions=served
        )
        phase = elsewhere.phase_elsewhere(scene)
        if phase.kind is PhaseKind.RUNNING and served and not seen.unread:
            hold = elsewhere.hold(scene)
    return Situation(
        seen=seen,
        job=job,
        settings=settings,
        now=now,
        before=before,
        phase=phase,
        placement=_place(seen, job, phase, settings, now),
        home=home,
        hold=hold,
        exited=exited,
        joined=joined,
        certificates=_certificates(seen, job, settings, now),
    )


def _certificates(seen: Observation, job: Job, settings: Settings, now: float) -> CertificateWork:
    if seen.certificates is None:
        return NOTHING
    if not settings.serves(job.spec.syncer_region):
        refusals = [f"shard {n}: {each.text}" for n, each in sorted(seen.refusals.items())]
        none_takes = len(refusals) == job.spec.syncer.shards or not any(seen.replies)
        return work_of_region_secrets(
            job,
            seen.namespace,
            settings.serves,
            seen.certificates,
            refusals if none_takes else (),
            now,
        )
    owner = JobOwner.of(seen.raw, job.name)
    leaves = wanted(job, owner, settings.serves)
    return work_of(job, leaves, seen.certificates, seen.remembered.refused, now)


def before_of(seen: Observation, now: float) -> Before:
    generation = None if seen.error else seen.raw["metadata"]["generation"]
    return phases.before(seen.status, now, generation=generation, retry=retry_of(seen))


def retry_of(seen: Observation) -> str:
    annotations = seen.raw["metadata"].get("annotations") or {}
    return str(annotations.get(Annotation.RETRY, ""))


def _place(seen: Observation, job: Job, phase: Phase, settings: Settings, now: float) -> Placement:
    """What is to be done about lost nodes; nothing before all nodes have been listed."""
    if seen.nodes is None or phase.kind is PhaseKind.REJECTED:
        return Placement()
    judged = sessions.judge(
        seen.pods,
        seen.registrar,
        seen.remembered.absent_seconds,
        seen.remembered.silent_seconds,
        needs_all=job.spec.learner.hosts_needed == job.spec.learner.hosts,
    )
    counts = replacements.counts(job.name, seen.pods, seen.workloads, now)
    spans = settings.spans_regions
    placement = replacements.placement_of(seen, job, judged, counts, spans_regions=spans)
    if phase.kind is not PhaseKind.RUNNING:
        return placement
    pods = [pod for pod in seen.pods if pod.node not in placement.lost]
    found = replacements.crashing(seen, job, pods, counts, now, spans_regions=spans)
    exhausted = (*placement.exhausted, *found.exhausted)
    return replace(placement, suspected=found.pods, exhausted=exhausted)
