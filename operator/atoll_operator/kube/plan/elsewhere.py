"""A job whose regions lie in several clusters: what its other clusters do, and when they wait.

The job's *home* is where the install serves the syncer's region. It alone decides for the whole
job, and sends its intent (run, suspend, fail) with each question to the shards, which pass it on.
The others follow it (docs/clusters.md, What each cluster shows); while no shard says an intent, the
last one that was followed still holds: the status has it. Who was cut off while the job ended, and
has seen its own learners end with the final values, becomes Complete after syncerLostSeconds.

Learners of a manifest that differs in what must be equal would be refused by every shard (rule 3),
so they are not started (`OtherManifest`); hence no learner starts before a shard has answered for
the first time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job import parsing
from atoll_operator.api.job.process_inputs import field_of, run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import (
    HOME_FAILED,
    OTHER_MANIFEST,
    SUSPENDED_ELSEWHERE,
    SYNCER_LOST,
    SYNCER_SILENT,
    Hold,
    Phase,
    PhaseKind,
)
from atoll_operator.api.status.job_status import GONE, Status
from atoll_operator.kube.observed.objects import seconds_of
from atoll_operator.kube.observed.observation import Observation, Pod
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.settings import Settings
from atoll_protos.job.run_file import first_difference
from atoll_protos.names import split_slot

LINGER_SECONDS = 120.0  # for which the shards of a job that is over stay, to tell other clusters
LEAVE_SECONDS = 30.0  # for which those of a suspended job wait for the learners of other clusters
REFUSED_SECONDS = 120.0  # for which a refused peer is told; one that is refused dials again


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewhereFacts:
    """What a cluster without the syncer knows of a job."""

    seen: Observation
    job: Job
    before: Before
    exited: Sequence[Pod]
    regions: Sequence[str]  # of the job, that are served here

    @property
    def word(self) -> pb.Intent:
        """What the home does with the job; unspecified: nobody can say it at present."""
        return self.seen.registrar.intent if self.seen.registrar else pb.INTENT_UNSPECIFIED

    @property
    def is_lost(self) -> bool:
        """Whether no shard of the run has answered for syncerLostSeconds, not even by refusal."""
        if any(not each.other_run for each in self.seen.refusals.values()):
            return False
        limit, seconds = self.job.spec.failure.syncer_lost_seconds, self.seen.remembered
        shards = range(self.job.spec.syncer.shards)
        silent = [seconds.silent_seconds.get(n, 0.0) for n in shards]
        return all(reply is None for reply in self.seen.replies) and min(silent) >= limit


def phase_elsewhere(scene: ElsewhereFacts) -> Phase:
    job, before, registrar = scene.job, scene.before, scene.seen.registrar
    refused = parsing.on_a_cluster(job)
    if before.complete is not None:
        return phases.kept(PhaseKind.COMPLETE, before.complete)
    if before.failed is not None:
        return phases.kept(PhaseKind.FAILED, before.failed)
    if refused is not None:
        return Phase(kind=PhaseKind.REJECTED, reason=phases.NOT_SUPPORTED, message=str(refused))
    ended = _ended(scene)
    if ended is not None:
        return ended
    failure = phases.no_quorum_left(job, scene.exited)
    if failure is not None:
        return failure
    if job.spec.suspend:
        message = "spec.suspend is true in this cluster: the other regions train on"
        return Phase(kind=PhaseKind.SUSPENDED, reason="Suspended", message=message)
    before_reason = _reason(scene.seen.status, "Suspended")
    unsaid = scene.word == pb.INTENT_UNSPECIFIED and before_reason == SUSPENDED_ELSEWHERE
    if scene.word == pb.INTENT_SUSPEND or unsaid:
        message = (
            f"it is suspended in the cluster of {job.spec.syncer_region}, where the syncer runs"
        )
        return Phase(kind=PhaseKind.SUSPENDED, reason=SUSPENDED_ELSEWHERE, message=message)
    if registrar is None and (before.finished or _own_finished(scene)):
        message = "the learners of this cluster have ended; Complete follows when shard 0 answers"
        return Phase(kind=PhaseKind.FINISHING, reason=phases.LEARNERS_FINISHED, message=message)
    return Phase(kind=PhaseKind.RUNNING, reason="Running", message="")


def _ended(scene: ElsewhereFacts) -> Phase | None:
    """That the job is over, as far as this cluster can know it."""
    job, registrar = scene.job, scene.seen.registrar
    there = f"in the cluster of {job.spec.syncer_region}"
    place = f"the model is at {job.spec.export_url} {there}" if job.spec.export_url else (
        f"status.exportURL {there} says where the model is"
    )  # fmt: skip
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        final_seconds = scene.seen.remembered.final_seconds or 0.0
        measured = job.spec.evaluator is None or registrar.evaluation.final
        if measured or final_seconds >= phases.EVALUATION_SECONDS_MAX:
            message = f"trained to step {registrar.tick}; {place}"
            return Phase(kind=PhaseKind.COMPLETE, reason=phases.TRAINED, message=message)
        return Phase(
            kind=PhaseKind.FINISHING, reason=phases.EVALUATING, message="the last evaluation runs"
        )
    if registrar is not None:
        return None
    if (
        _reason(scene.seen.status, "Progressing") == phases.EVALUATING
    ):  # it was Complete, and has gone
        return Phase(kind=PhaseKind.COMPLETE, reason=phases.TRAINED, message=place)
    if scene.is_lost and (scene.before.finished or _own_finished(scene)):
        message = f"every learner here has the final values, and the syncer has gone; {place}"
        return Phase(kind=PhaseKind.COMPLETE, reason=phases.TRAINED, message=message)
    return None


def _own_finished(scene: ElsewhereFacts) -> bool:
    learners = {each.name: each.learners for each in scene.job.spec.regions}
    wanted = sum(learners[region] for region in scene.regions)
    own = [pod for pod in scene.seen.pods if pod.is_head and not pod.terminating]
    return 0 < wanted <= len({pod.slot for pod in own}) and all(map(phases.has_finished, own))


def hold(scene: ElsewhereFacts) -> Hold | None:
    """Why the learners of this cluster wait although the job runs; None: they run."""
    home = scene.job.spec.syncer_region
    known = _reason(scene.seen.status, "Degraded")
    unsaid = scene.word == pb.INTENT_UNSPECIFIED
    if scene.word == pb.INTENT_FAIL or (unsaid and known == HOME_FAILED):
        why = scene.seen.registrar.why if scene.seen.registrar else ""
        text = f"the job has failed in the cluster of {home}, where the syncer runs; see it there"
        return Hold(reason=HOME_FAILED, message=f"{text}: {why}" if why else text)
    differs = mismatch(scene.job, scene.seen.replies)
    if differs:
        return Hold(reason=OTHER_MANIFEST, message=differs)
    degraded = scene.seen.status.true_condition("Degraded")
    generation = scene.seen.raw["metadata"]["generation"]
    if (
        known == OTHER_MANIFEST
        and degraded is not None
        and degraded.observed_generation == generation
        and scene.seen.registrar is None
    ):
        return Hold(reason=OTHER_MANIFEST, message=degraded.message)
    silent = all(reply is None for reply in scene.seen.replies)
    if (
        silent
        and not any(each.replicas for each in scene.seen.workloads.values())
        and not scene.seen.status.run
    ):
        text = "the learners of this cluster start once a shard has answered"
        return Hold(reason=SYNCER_SILENT, message=text)
    if scene.is_lost or (silent and known == SYNCER_LOST):
        where = ", ".join(scene.job.spec.syncer.endpoints)
        seconds = scene.job.spec.failure.syncer_lost_seconds
        return Hold(
            reason=SYNCER_LOST,
            message=(
                f"no shard has answered for {seconds} s or longer (now asked: {where}), so the"
                " learners of this cluster are scaled to 0; they come back when one answers. If the"
                f" job is gone in the cluster of {home}, delete it here, too"
            ),
        )
    return None


def differences(job: Job, registrar: pb.StatusReply | None) -> tuple[str, ...]:
    """What the home's manifest, which counts, has in another way, in words; it holds nobody up."""
    if registrar is None:
        return ()
    home = f"in the cluster of {job.spec.syncer_region}, where the syncer runs"
    found = []
    if job.spec.steps is not None and registrar.steps and registrar.steps != job.spec.steps:
        found.append(f"spec.steps is {job.spec.steps} here and {registrar.steps} {home}")
    here, there = {each.name: each.learners for each in job.spec.regions}, registrar.learners
    for region in sorted({*here, *there}) if there else []:
        mine, theirs = here.get(region, 0), there.get(region, 0)
        if mine != theirs:
            found.append(f"spec.regions gives {region} {mine} learners here and {theirs} {home}")
    return tuple(found)


def mismatch(job: Job, replies: Sequence[pb.StatusReply | None]) -> str:
    """The first difference between this manifest and the home's that matters; empty: none."""
    for number, reply in enumerate(replies):
        if reply is None:
            continue
        if reply.shard != number:
            return (
                f"spec.syncer.endpoints[{number}], {job.spec.syncer.endpoints[number]}, leads to"
                f" shard {reply.shard}: give the endpoints in the order of"
                " status.syncer.endpoints"
            )
        if not reply.must_equal:
            continue
        try:
            found = first_difference(run_file(job), reply.must_equal)
        except ValueError as error:
            return f"shard {number} says what must be equal in words not known here: {error}"
        if found is not None:
            field = field_of(found.field)
            home = job.spec.syncer_region
            return (
                f"{field} is {found.mine!r} here and {found.theirs!r} in the cluster of {home},"
                " where the syncer runs; this cluster's learners do not start. Delete the job"
                " here and apply the manifest of that cluster"
            )
    return ""


# ---------------------------------------------------------------- at home


def has_other_clusters(job: Job, settings: Settings) -> bool:
    return any(each.learners and not settings.serves(each.name) for each in job.spec.regions)


def away(
    job: Job, settings: Settings, missing: Sequence[str], registrar: pb.StatusReply | None
) -> tuple[str, ...]:
    """Where to look for missing learners of other clusters, and whom shard 0 has just refused.

    Whose certificate was refused nobody can know: it is not believed.
    """
    regions = sorted({split_slot(slot)[0] for slot in missing})
    others = [each for each in regions if not settings.serves(each)]
    if not others:
        return ()
    found = [
        f"{', '.join(others)}: served by another cluster, see `kubectl get dtj {job.name}`"
        " there, or by machines, see what `atoll join` says"
    ]
    refused = registrar.refused_peer if registrar else ""
    if registrar and refused and registrar.seconds_since_refused_peer < REFUSED_SECONDS:
        found.append(f"shard 0 has refused somebody in the last minutes: {refused}")
    return tuple(found)


def lingers(status: Status, now: float) -> bool:
    """Whether the shards of a job that is over still have to tell so; `now` in UNIX seconds."""
    ended = status.completion_time
    return bool(ended) and now - seconds_of(ended or "") < LINGER_SECONDS


def awaits_others(
    job: Job, settings: Settings, registrar: pb.StatusReply | None, halted_seconds: float
) -> bool:
    """Whether a suspended job's shards wait for the last work of other clusters' learners.

    A shard that has not answered in time (None) may still have some.
    """
    if halted_seconds >= LEAVE_SECONDS or not has_other_clusters(job, settings):
        return False
    return registrar is None or any(
        slot.state not in GONE and not settings.serves(split_slot(slot.slot)[0])
        for slot in registrar.slots
    )


def intent(phase: Phase) -> pb.StatusRequest:
    words = {PhaseKind.SUSPENDED: pb.INTENT_SUSPEND, PhaseKind.FAILED: pb.INTENT_FAIL}
    why = f"{phase.reason}: {phase.message}" if phase.kind is PhaseKind.FAILED else ""
    return pb.StatusRequest(intent=words.get(phase.kind, pb.INTENT_RUN), why=why)


def _reason(status: Status, kind: str) -> str:
    return next((each.reason for each in status.conditions or [] if each.type == kind), "")
