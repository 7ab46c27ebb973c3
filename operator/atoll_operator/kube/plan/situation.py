"""One job at one moment: what was seen of it, and what follows from that for every decision.

The phase and the placement are decided once per pass, here, and every later decision rests on the
same two. So the status, the children and the deletions of one pass cannot contradict each other.
"""

from dataclasses import dataclass, replace

from atoll_operator.api import status as statuses
from atoll_operator.api.facts import Hold, Kind, Phase
from atoll_operator.api.spec import Job
from atoll_operator.kube.names import LEARNER_ROLE, Annotation
from atoll_operator.kube.observation import Observation, Pod, with_hosts, with_region
from atoll_operator.kube.plan import certificates, elsewhere, replacements, sessions, suspects
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.certificates import Work
from atoll_operator.kube.plan.owner import Owner
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.settings import Settings

NOTHING = Work()


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
    certificates: Work = NOTHING  # what to do about them, and what of them is missing


def situation_of(seen: Observation, job: Job, settings: Settings, now: float) -> Situation:
    """Decide the phase and the placement of a job whose manifest could be read."""
    before = phases.before(
        seen.status,
        now,
        generation=None if seen.error else seen.raw["metadata"]["generation"],
        retry=retry_of(seen),
    )
    joined = sessions.joined(seen.registrar, seen.pods)
    exited = phases.exited_for_good(job, seen.pods, joined, seen.workloads)
    home, hold = settings.serves(job.spec.syncer_region), None
    if home:
        phase = phases.decide(
            job, before, seen.pods, seen.registrar, seen.remembered.final_seconds, exited
        )
    else:
        scene = _scene(seen, job, settings, before, exited)
        phase = elsewhere.decide(scene)
        served = phase.kind is Kind.RUNNING and scene.regions
        hold = elsewhere.hold(scene) if served and not seen.unread else None
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


def _scene(
    seen: Observation, job: Job, settings: Settings, before: Before, exited: tuple[Pod, ...]
) -> elsewhere.Scene:
    return elsewhere.Scene(
        job=job,
        before=before,
        status=seen.status,
        generation=seen.raw["metadata"]["generation"],
        pods=seen.pods,
        exited=exited,
        regions=[each.name for each in job.spec.regions if settings.serves(each.name)],
        replies=seen.replies,
        silent_seconds=seen.remembered.silent_seconds,
        refused=any(not each.other_run for each in seen.refusals.values()),
        final_seconds=seen.remembered.final_seconds,
        runs=any(each.replicas for each in seen.workloads.values()),
    )


def _certificates(seen: Observation, job: Job, settings: Settings, now: float) -> Work:
    if seen.certificates is None:
        return NOTHING
    if not settings.serves(job.spec.syncer_region):
        refusals = [f"shard {n}: {each.text}" for n, each in sorted(seen.refusals.items())]
        none_takes = len(refusals) == job.spec.syncer.shards or not any(seen.replies)
        return certificates.decide_brought(
            job,
            seen.namespace,
            settings.serves,
            seen.certificates,
            refusals if none_takes else (),
            now,
        )
    owner = Owner.of(seen.raw, job.name)
    leaves = certificates.wanted(job, owner, settings.serves)
    return certificates.decide(job, leaves, seen.certificates, seen.remembered.refused, now)


def retry_of(seen: Observation) -> str:
    """The value of the annotation with which a person asks for another try."""
    annotations = seen.raw["metadata"].get("annotations") or {}
    return str(annotations.get(Annotation.RETRY, ""))


def _place(seen: Observation, job: Job, phase: Phase, settings: Settings, now: float) -> Placement:
    """What is to be done about lost nodes; nothing before all nodes have been listed."""
    if seen.nodes is None or phase.kind is Kind.REJECTED:
        return Placement()
    remembered, loss_seconds = seen.remembered, job.spec.failure.node_loss_seconds
    judged = sessions.judge(
        seen.pods,
        seen.registrar,
        remembered.absent_seconds,
        remembered.silent_seconds,
        needs_all=job.spec.learner.hosts_needed == job.spec.learner.hosts,
    )
    home = job.spec.syncer_region
    of_regions = replacements.region_nodes(
        [region.name for region in job.spec.regions],
        seen.nodes,
        spans_regions=settings.spans_regions,
    )
    counts = replacements.counts(job.name, seen.pods, seen.workloads, now)
    placement = replacements.decide(
        replacements.PlacementInput(
            pods=[
                with_region(pod, home)
                for pod in seen.pods
                if pod.role == LEARNER_ROLE or not pod.ended  # a StatefulSet waits for its name
            ],
            nodes=seen.nodes,
            dead=judged.dead,
            unseen=judged.unseen,
            counts=counts,
            failure=job.spec.failure,
            region_nodes=of_regions,
            released=Annotation.RELEASE_HOLD in (seen.raw["metadata"].get("annotations") or {}),
            settling=frozenset(
                region for region, since in remembered.storm_seconds.items() if since < loss_seconds
            ),
        )
    )
    if phase.kind is not Kind.RUNNING:
        return placement
    found = suspects.crashing(
        suspects.Scene(
            job=job.name,
            pods=[pod for pod in seen.pods if pod.node not in placement.lost],
            training=with_hosts(
                frozenset(slot.uid for slot in statuses.training(seen.replies) or ()), seen.pods
            ),
            workloads=seen.workloads,
            region_nodes=of_regions,
            counts=counts,
            failure=job.spec.failure,
            crashes=remembered.crashes,
            now=now,
        )
    )
    exhausted = (*placement.exhausted, *found.exhausted)
    return replace(placement, suspected=found.pods, exhausted=exhausted)
