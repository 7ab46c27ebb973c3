"""One job at one moment: sessions and owners of its slots, phase and placement.

Phase and placement are decided once per pass (`situation_of`), so the status, the children and the
deletions of one pass cannot contradict each other.

A pod on a cut-off node goes on running where nothing can stop it, and two processes must never act
for one slot. So the operator sets at the registrar who is the slot's *owner*, with a generation
(rule 4): a change that was computed from an old Status does nothing. There are two kinds:

    retire   SetOwner(slot, "", generation), before it deletes a learner's pod for a lost node: from
             then on the old process is refused, although it may run
    name     SetOwner(slot, UID, generation), once the StatefulSet has made the successor, whose UID
             the operator has just read from the API server, past all caches

A slot that never had an owner needs none. After a registrar's restart Status shows no slot until it
is joined: the generation is then unknown, and asked for with 0 (`to_name` gives None).

A learner of several hosts has one session, held by a process of the pod of host 0, its *head* (rule
30): the other pods own nothing and are never named. A host other than the head's counts as dead
while its learner is not Training, since steps need every host; where fewer are enough
(spec.learner.hostsMin) its node alone counts. Stalled shows nothing: the head's session lives on
while it waits inside a collective for a host that fell silent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import Hold, Phase, PhaseKind
from atoll_operator.api.status.job_status import GONE
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_PORT, SHARD_ROLE, Annotation, JobOwner
from atoll_operator.kube.observed.observation import (
    BUSY_STATES,
    Observation,
    Pod,
    Sessions,
    is_followed,
    with_hosts,
)
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan import replacements
from atoll_operator.kube.plan.certificates import (
    NOTHING,
    CertificateWork,
    wanted,
    work_of,
    work_of_region_secrets,
)
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.settings import Settings
from atoll_protos.network import addresses

ADMITTING_STATES = frozenset({pb.SHARD_SERVING, pb.SHARD_FINAL})  # of a registrar
REPORT_SECONDS_MAX = 10.0  # reports come at least every 2 s
ABSENT_SECONDS = 10.0  # after a registrar's restart learners join within seconds
HELD_SECONDS = 60.0  # in which the process of a former pod ends
SILENT_SECONDS = 5.0  # of a shard


def judge(
    pods: Sequence[Pod],
    registrar: pb.StatusReply | None,
    absent_seconds: Mapping[str, float],
    silent_seconds: Mapping[int, float],
    *,
    needs_all: bool = True,
) -> Sessions:
    """Sort pods by their sessions.

    `absent_seconds`: by slot, how long the registrar has not shown it. `silent_seconds`: by shard,
    how long it has not answered. `needs_all`: a learner does not train without all its hosts.
    """
    slots = {slot.slot: slot for slot in registrar.slots} if registrar else {}
    dead, unseen = set(), set()
    for pod in pods:
        if pod.role == SHARD_ROLE:
            if silent_seconds.get(pod.shard, 0.0) >= SILENT_SECONDS or is_followed(pod, pods):
                dead.add(pod.uid)
        elif pod.role != LEARNER_ROLE or registrar is None:
            unseen.add(pod.uid)
        elif _is_dead(pod, slots.get(pod.slot), absent_seconds.get(pod.slot, 0.0)):
            dead.add(pod.uid)
        elif not (pod.is_head or needs_all):
            unseen.add(pod.uid)
    return Sessions(dead=frozenset(dead), unseen=frozenset(unseen))


def joined(registrar: pb.StatusReply | None, pods: Iterable[Pod]) -> frozenset[str] | None:
    """UIDs of pods whose learner has a session that is not dead. None: the registrar is silent."""
    if registrar is None:
        return None
    live = frozenset(slot.uid for slot in registrar.slots if slot.state not in GONE)
    return with_hosts(live, pods)


def held_elsewhere(
    pods: Sequence[Pod], registrar: pb.StatusReply | None, now: float
) -> tuple[str, ...]:
    """Learners' pods that wait for a slot which a process of no pod here has, in words."""
    own = {pod.uid for pod in pods}
    slots = {slot.slot: slot for slot in registrar.slots} if registrar else {}
    found = []
    for pod in pods:
        slot = slots.get(pod.slot)
        young = pod.made_at is None or now - pod.made_at < HELD_SECONDS
        if slot is None or young or not pod.runs or not pod.is_head or pod.terminating:
            continue
        if slot.state not in GONE and slot.uid and slot.uid not in own:
            found.append(f"{pod.name} waits for {pod.slot}, which pod {slot.uid} has")
    return tuple(found)


def _is_dead(pod: Pod, slot: pb.SlotStatus | None, absent_seconds: float) -> bool:
    if slot is None:
        return absent_seconds >= ABSENT_SECONDS
    if slot.seconds_since_report > REPORT_SECONDS_MAX:
        return True
    if not pod.is_head:
        return slot.state != pb.SLOT_TRAINING
    return slot.state in GONE or slot.uid != pod.uid


def all_serve(replies: Sequence[pb.StatusReply | None]) -> bool:
    return bool(replies) and all(
        reply is not None and reply.state in ADMITTING_STATES for reply in replies
    )


def idle(
    pods: Iterable[Pod],
    replies: Sequence[pb.StatusReply | None],
    absent_seconds: Mapping[str, float],
) -> frozenset[str]:
    """Slots whose pods are known not to train, so that a restart of them loses nothing.

    None while a shard does not serve: it may be waiting for just these learners' state. A slot that
    the registrar does not show may be about to join, so it counts after ABSENT_SECONDS. One that is
    Stalled has trained, and may only make a pause.
    """
    if not all_serve(replies):
        return frozenset()
    shown = {slot.slot: slot for slot in replies[0].slots} if replies[0] is not None else {}
    heads: dict[str, str] = {}  # UIDs by slot; empty: the pod of host 0 is not there
    for pod in pods:
        if pod.is_head or pod.slot not in heads:
            heads[pod.slot] = pod.uid if pod.is_head else ""
    found = set()
    for name, uid in heads.items():
        slot = shown.get(name)
        if slot is None:
            absent = absent_seconds.get(name, 0.0) >= ABSENT_SECONDS
        else:
            absent = slot.state not in BUSY_STATES or slot.uid != uid
        if absent:
            found.add(name)
    return frozenset(found)


def to_retire(pod: Pod, registrar: pb.StatusReply | None) -> int | None:
    """Return the slot's generation of a pod about to be deleted; None: nothing needs to be sent.

    So it is where the slot has no owner, the pod is not its learner's head, or the registrar is
    away or does not show the slot: then incarnations alone keep the old process out.
    """
    slot = _slot(pod, registrar) if pod.is_head else None
    if slot is None or (slot.owner_generation and not slot.owner_uid):
        return None
    return slot.owner_generation


def to_name(
    pods: Iterable[Pod], registrar: pb.StatusReply | None, absent_seconds: Mapping[str, float]
) -> list[tuple[Pod, int | None]]:
    """Pods to name owner of their slot, with its generation; None: absent for ABSENT_SECONDS."""
    found: list[tuple[Pod, int | None]] = []
    if registrar is None or registrar.state not in ADMITTING_STATES:
        return found
    for pod in pods:
        if not pod.is_head or pod.terminating or pod.phase != "Running":
            continue
        slot = _slot(pod, registrar)
        if slot is None:
            if absent_seconds.get(pod.slot, 0.0) >= ABSENT_SECONDS:
                found.append((pod, None))
        elif slot.owner_generation and slot.owner_uid != pod.uid:
            found.append((pod, slot.owner_generation))
    return found


def _slot(pod: Pod, registrar: pb.StatusReply | None) -> pb.SlotStatus | None:
    if registrar is None:
        return None
    return next((slot for slot in registrar.slots if slot.slot == pod.slot), None)


def shard_addresses(job: Job, pods: Iterable[Pod], serves: Callable[[str], bool]) -> dict[int, str]:
    """host:port by shard, empty where it is not known.

    In the syncer's own region it is the address of the shard's pod; elsewhere
    `spec.syncer.endpoints`. Of two pods it is that of the one that is Ready. A pod that is
    terminating counts only where there is no other (one that has ended, such as an evicted one,
    keeps its address and has none that answers). `serves` says whether this install runs a region.
    """
    shards = range(job.spec.syncer.shards)
    if not serves(job.spec.syncer_region):
        endpoints = job.spec.syncer.endpoints
        return {n: endpoints[n] if endpoints else "" for n in shards}
    of_shards: dict[int, list[Pod]] = {number: [] for number in shards}
    for pod in sorted(pods, key=lambda pod: pod.name):
        if pod.role == SHARD_ROLE and pod.shard in of_shards and pod.address and not pod.ended:
            of_shards[pod.shard].append(pod)
    return {number: _endpoint(found) for number, found in of_shards.items()}


def _endpoint(pods: Sequence[Pod]) -> str:
    asked = min(pods, key=lambda pod: (pod.terminating, not pod.ready), default=None)
    return "" if asked is None else addresses.joined(asked.address, SHARD_PORT)


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
    before, live = before_of(seen, now), joined(seen.registrar, seen.pods)
    exited = phases.exited_for_good(job, seen.pods, live, seen.workloads)
    home, hold = settings.serves(job.spec.syncer_region), None
    if home:
        phase = phases.phase_at_home(
            job, before, seen.pods, seen.registrar, seen.remembered.final_seconds, exited
        )
    else:
        served = [region.name for region in job.spec.regions if settings.serves(region.name)]
        scene = phases.ElsewhereFacts(
            seen=seen, job=job, before=before, exited=exited, regions=served
        )
        phase = phases.phase_elsewhere(scene)
        if phase.kind is PhaseKind.RUNNING and served and not seen.unread:
            hold = phases.hold(scene)
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
        joined=live,
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
    """Decide what to do about lost nodes; nothing before all nodes have been listed."""
    if seen.nodes is None or phase.kind is PhaseKind.REJECTED:
        return Placement()
    judged = judge(
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
