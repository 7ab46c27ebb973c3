"""Where a job stands: rejected, suspended, running, finishing, complete or failed.

The phase is decided afresh in every pass from the manifest, the pods and the registrar's answer.
Only Complete and Failed are read back from the status, because they must outlive the pods.

    manifest not supported ───────────────────────────────> REJECTED (until it is edited)
    spec.suspend ─────────────────────────────────────────> SUSPENDED <──> RUNNING
    registrar says Complete, the evaluator still measures ─> FINISHING ──> COMPLETE
    registrar says Complete ──────────────────────────────> COMPLETE (for ever)
    no quorum left, store lost, deadline passed ──────────> FAILED (until it is retried: `before`)
    else ─────────────────────────────────────────────────> RUNNING

A permanent exit code (`atoll_protos.exits`) of a shard fails the job; those of learners fail it
once the remaining slots cannot make a quorum. A pod of an old template does not count, because the
edit that made it old may be the fix, and neither does one that has joined the syncer since.

A job's *home* is the cluster where the install serves the syncer's region. It alone decides for the
whole job, and sends its intent (run, suspend, fail) with each question to the shards, which pass it
on. Other clusters follow it (docs/clusters.md, What each cluster shows); while no shard says an
intent, the last one that was followed still holds: the status has it. Who was cut off while the job
ended, and has seen its own learners end with the final values, becomes Complete after
syncerLostSeconds. Learners of a manifest that differs in what must be equal would be refused by
every shard (rule 3), so they do not start (`OtherManifest`); hence no learner starts before a shard
has answered for the first time.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    some_of,
)
from atoll_operator.api.status.crash_reason import last_words as words_in
from atoll_operator.api.status.job_status import (
    GONE,
    Condition,
    FailureRecord,
    Status,
    without_step,
)
from atoll_operator.api.status.reasons import STORE_LOST
from atoll_operator.kube import names
from atoll_operator.kube.observed.objects import seconds_of
from atoll_operator.kube.observed.observation import (
    Observation,
    Pod,
    Workload,
    is_followed,
    workload_name,
)
from atoll_operator.kube.settings import Settings
from atoll_protos.exits import EXITS, FINISHED, ExitCode, is_permanent
from atoll_protos.job.run_file import first_difference
from atoll_protos.names import split_slot

EVALUATION_SECONDS_MAX = 120.0
MESSAGE_CHARACTERS = 1500  # of what failed, in the condition Failed

# Reasons of phases; those of exit codes stand in `atoll_protos.exits`.
NOT_SUPPORTED = "NotSupported"
EVALUATING = "Evaluating"
LEARNERS_FINISHED = "LearnersFinished"
TRAINED = "Trained"
DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What earlier passes have written: Complete stays, and Failed until it is retried."""

    complete: Condition | None = None  # the condition, when True
    failed: Condition | None = None  # the same; None when it is retried
    retried: bool = False  # Failed is lifted in this pass
    running_seconds: float | None = None  # since startTime
    finished: bool = False  # every learner has said that it has the final values

    @property
    def over(self) -> bool:
        return bool(self.complete or self.failed)


def before(status: Status, now: float, *, generation: int | None = None, retry: str = "") -> Before:
    """Read what earlier passes have written; `now` is in UNIX seconds.

    `generation` is that of the manifest, None when it could not be accepted: only a manifest that
    is in force can lift Failed. `retry` is the value of the annotation.
    """
    started, failed = status.start_time, status.true_condition("Failed")
    retried = failed is not None and _is_retried(status.failure, failed, generation, retry)
    timed = started is not None and not retried
    return Before(
        complete=status.true_condition("Complete"),
        failed=None if retried else failed,
        retried=retried,
        running_seconds=now - seconds_of(started) if started and timed else None,
        finished=(progressing := status.true_condition("Progressing")) is not None
        and progressing.reason == LEARNERS_FINISHED,
    )


def _is_retried(
    failure: FailureRecord | None, failed: Condition, generation: int | None, retry: str
) -> bool:
    if failure is None:  # somebody has edited the status
        failure = FailureRecord(generation=failed.observed_generation or generation or 0)
    edited = generation is not None and generation != failure.generation
    return edited or bool(retry and retry != failure.retry)


def export_url(job: Job) -> str:
    """URL of the final model, `pvc://CLAIM/PATH` on a volume; empty: it ends with the shards."""
    storage = job.spec.syncer.storage
    if job.spec.export_url:
        return job.spec.export_url
    if storage.has_claims:
        claim = names.shard_name(job.name, 0)
        return f"pvc://{claim}/{job.uid}/{names.EXPORT_FOLDER}"
    return f"{storage.folder_of(job.uid)}/{names.EXPORT_FOLDER}" if storage.url else ""


def phase_at_home(
    job: Job,
    before: Before,
    pods: Sequence[Pod],
    registrar: pb.StatusReply | None,
    final_seconds: float | None,
    exited: Sequence[Pod] = (),
) -> Phase:
    """Return the phase of a job whose syncer is here.

    `registrar` is shard 0's answer, None when there is no young one. `exited` are the pods that
    have ended for good (`exited_for_good`). `final_seconds` is the time since this operator first
    saw the registrar's Complete.
    """
    if (decided := _decided(job, before)) is not None:
        return decided
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        return _complete(job, registrar, pods, final_seconds or 0.0)
    failure = _failure(job, before, exited, registrar)
    if failure is not None:
        return failure
    if job.spec.suspend:
        return Phase(kind=PhaseKind.SUSPENDED, reason="Suspended", message="spec.suspend is true")
    if registrar is None and (before.finished or _all_finished(job, pods)):
        message = "the learners have ended; Complete follows when shard 0 can be asked"
        return Phase(kind=PhaseKind.FINISHING, reason=LEARNERS_FINISHED, message=message)
    return Phase(kind=PhaseKind.RUNNING, reason="Running", message="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Which roles of a job shall run: their replicas are as the manifest says, or else 0."""

    learners: bool
    shards: bool
    evaluator: bool


def running(
    phase: Phase, before: Before, *, keeps_shards: bool, holds_learners: bool = False
) -> Running:
    """Learners run only while the job does, and nothing holds them; shards outlive them.

    `keeps_shards` says whether those of a suspended job, or of one that is over, stay. When a job
    ends they stay until Complete or Failed is written, because until then the registrar is the only
    place that knows. The evaluator has one more measurement to make while the job finishes.
    """
    kind = phase.kind
    if kind.over and not before.over:
        return Running(learners=False, shards=True, evaluator=False)
    runs = kind in (PhaseKind.RUNNING, PhaseKind.FINISHING)
    return Running(
        learners=kind is PhaseKind.RUNNING and not holds_learners,
        shards=runs or keeps_shards,
        evaluator=runs,
    )


def _decided(job: Job, before: Before) -> Phase | None:
    """Return the phase of a job that is over, or that no cluster can run."""
    for kind, condition in (
        (PhaseKind.COMPLETE, before.complete),
        (PhaseKind.FAILED, before.failed),
    ):
        if condition is not None:
            return Phase(kind=kind, reason=condition.reason, message=condition.message)
    refused = parsing.on_a_cluster(job)
    if refused is not None:
        return Phase(kind=PhaseKind.REJECTED, reason=NOT_SUPPORTED, message=str(refused))
    return None


def _all_finished(job: Job, pods: Sequence[Pod]) -> bool:
    """Whether every learner here has ended with the final values, whatever the registrar knows."""
    heads = [pod for pod in pods if pod.is_head]
    return len({pod.slot for pod in heads}) >= job.spec.learners_needed and all(
        has_finished(pod) for pod in heads
    )


def has_finished(pod: Pod) -> bool:
    """Whether the learner of this head has ended with the final values."""
    return pod.exit_code == ExitCode.FINAL and FINISHED in pod.exit_message


def _complete(
    job: Job, registrar: pb.StatusReply, pods: Sequence[Pod], final_seconds: float
) -> Phase:
    place = export_url(job)
    kept = (
        f"the model is at {place}" if place else "no model was kept, for spec.export is not given"
    )
    message = f"trained to step {registrar.tick}; {kept}"
    if idle := without_step(job, registrar):
        message += f"; {some_of(idle)} made no step"
    evaluators = [pod for pod in pods if pod.role == names.EVALUATOR_ROLE]
    failed = any(is_permanent(pod.exit_code) for pod in evaluators)
    measured = job.spec.evaluator is None or registrar.evaluation.final
    waits = bool(evaluators) and not measured and not failed
    if waits and final_seconds < EVALUATION_SECONDS_MAX:
        return Phase(
            kind=PhaseKind.FINISHING, reason=EVALUATING, message="the last evaluation runs"
        )
    return Phase(kind=PhaseKind.COMPLETE, reason=TRAINED, message=message)


def _failure(
    job: Job, before: Before, exited: Sequence[Pod], registrar: pb.StatusReply | None
) -> Phase | None:
    fatal = [pod for pod in exited if pod.role == names.SHARD_ROLE] or _no_quorum(job, exited)
    if fatal:
        return _of_exits(job, fatal)
    if registrar is not None and registrar.state == pb.SHARD_FAILED:
        return _failed(job, STORE_LOST, registrar.reason)
    deadline = job.spec.active_deadline_seconds
    if deadline is not None and (before.running_seconds or 0) >= deadline and not job.spec.suspend:
        message = f"spec.activeDeadlineSeconds of {deadline} have passed"
        return _failed(job, DEADLINE_EXCEEDED, message)
    return None


def no_quorum_left(job: Job, exited: Sequence[Pod]) -> Phase | None:
    fatal = _no_quorum(job, exited)
    return _of_exits(job, fatal) if fatal else None


def _of_exits(job: Job, fatal: Sequence[Pod]) -> Phase:
    row = EXITS[fatal[0].exit_code or 0]
    return _failed(job, row.reason, "; ".join(last_words(pod) for pod in fatal))


def _failed(job: Job, reason: str, message: str) -> Phase:
    kept = job.spec.syncer.storage.outlives_pods
    start = "its last commits" if kept else "step 0, because Ephemeral storage keeps nothing"
    text = (
        f"{message[:MESSAGE_CHARACTERS]}; to try again from {start}: edit the job, or kubectl"
        f" annotate dtj {job.name} {names.Annotation.RETRY}=1 --overwrite (each time another value)"
    )
    return Phase(kind=PhaseKind.FAILED, reason=reason, message=text)


# ---------------------------------------------------------------- permanent exits


def exited_for_good(
    job: Job, pods: Sequence[Pod], joined: frozenset[str] | None, workloads: Mapping[str, Workload]
) -> tuple[Pod, ...]:
    """Pods whose last end was permanent and that have not come back since.

    A container that has started again may end in the same way in a moment, so it counts as long as
    its learner has no session. `joined` holds the UIDs of the pods of learners that have one; None:
    the registrar is silent, and only a container that does not run counts. The end of a shard's pod
    does not count while another one serves the shard.
    """
    learners = {region.name: region.learners for region in job.spec.regions}
    found = []
    for pod in pods:
        if pod.exit_code is None or not is_permanent(pod.exit_code):
            continue
        if pod.terminating or pod.ended or is_followed(pod, pods):
            continue
        live = workloads.get(workload_name(job.name, pod))
        old = live is not None and live.template != pod.template
        beyond = pod.role == names.LEARNER_ROLE and pod.ordinal >= learners.get(pod.region, 0)
        unknown = pod.runs and (joined is None or pod.role != names.LEARNER_ROLE)
        lives = unknown or pod.uid in (joined or ())
        if not (old or beyond or lives):
            found.append(pod)
    return tuple(found)


def last_words(pod: Pod) -> str:
    row = EXITS[pod.exit_code or 0]
    return f"{pod.name} ended with exit code {pod.exit_code}{said_by(pod)}; {row.remedy}"


def said_by(pod: Pod) -> str:
    """Why a pod's last start ended, in its own words behind a colon; empty if it said nothing."""
    said = str(words_in(pod.exit_message))
    return f": {said}" if said else ""


def _no_quorum(job: Job, exited: Iterable[Pod]) -> list[Pod]:
    """Return the learners that ended for good, if those left cannot make a quorum."""
    hosts: dict[str, list[Pod]] = {}
    for pod in exited:
        if pod.role == names.LEARNER_ROLE:
            hosts.setdefault(pod.slot, []).append(pod)
    own = job.spec.learner
    ended = [
        pods
        for pods in hosts.values()
        if any(pod.is_head for pod in pods) or own.hosts - len(pods) < own.hosts_needed
    ]
    left = job.spec.learners - len(ended)
    return [pod for pods in ended for pod in pods] if left < job.spec.learners_needed else []


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
        if any(not refusal.other_run for refusal in self.seen.refusals.values()):
            return False
        limit, seconds = self.job.spec.failure.syncer_lost_seconds, self.seen.remembered
        shards = range(self.job.spec.syncer.shards)
        silent = [seconds.silent_seconds.get(n, 0.0) for n in shards]
        return all(reply is None for reply in self.seen.replies) and min(silent) >= limit


def phase_elsewhere(scene: ElsewhereFacts) -> Phase:
    job, before, registrar = scene.job, scene.before, scene.seen.registrar
    if (decided := _decided(job, before)) is not None:
        return decided
    ended = _ended(scene)
    if ended is not None:
        return ended
    failure = no_quorum_left(job, scene.exited)
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
        return Phase(kind=PhaseKind.FINISHING, reason=LEARNERS_FINISHED, message=message)
    return Phase(kind=PhaseKind.RUNNING, reason="Running", message="")


def _ended(scene: ElsewhereFacts) -> Phase | None:
    """Return the phase of a job that is over, as far as this cluster can know."""
    job, registrar = scene.job, scene.seen.registrar
    there = f"in the cluster of {job.spec.syncer_region}"
    place = f"the model is at {job.spec.export_url} {there}" if job.spec.export_url else (
        f"status.exportURL {there} says where the model is"
    )  # fmt: skip
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        final_seconds = scene.seen.remembered.final_seconds or 0.0
        measured = job.spec.evaluator is None or registrar.evaluation.final
        if measured or final_seconds >= EVALUATION_SECONDS_MAX:
            message = f"trained to step {registrar.tick}; {place}"
            return Phase(kind=PhaseKind.COMPLETE, reason=TRAINED, message=message)
        return Phase(
            kind=PhaseKind.FINISHING, reason=EVALUATING, message="the last evaluation runs"
        )
    if registrar is not None:
        return None
    if _reason(scene.seen.status, "Progressing") == EVALUATING:  # it was Complete, and has gone
        return Phase(kind=PhaseKind.COMPLETE, reason=TRAINED, message=place)
    if scene.is_lost and (scene.before.finished or _own_finished(scene)):
        message = f"every learner here has the final values, and the syncer has gone; {place}"
        return Phase(kind=PhaseKind.COMPLETE, reason=TRAINED, message=message)
    return None


def _own_finished(scene: ElsewhereFacts) -> bool:
    learners = {entry.name: entry.learners for entry in scene.job.spec.regions}
    wanted = sum(learners[region] for region in scene.regions)
    own = [pod for pod in scene.seen.pods if pod.is_head and not pod.terminating]
    return 0 < wanted <= len({pod.slot for pod in own}) and all(map(has_finished, own))


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
        and not any(workload.replicas for workload in scene.seen.workloads.values())
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
    """Describe how the home's manifest, which counts, differs; it holds nobody up."""
    if registrar is None:
        return ()
    home = f"in the cluster of {job.spec.syncer_region}, where the syncer runs"
    found = []
    if job.spec.steps is not None and registrar.steps and registrar.steps != job.spec.steps:
        found.append(f"spec.steps is {job.spec.steps} here and {registrar.steps} {home}")
    here, there = {entry.name: entry.learners for entry in job.spec.regions}, registrar.learners
    for region in sorted({*here, *there}) if there else []:
        mine, theirs = here.get(region, 0), there.get(region, 0)
        if mine != theirs:
            found.append(f"spec.regions gives {region} {mine} learners here and {theirs} {home}")
    return tuple(found)


def mismatch(job: Job, replies: Sequence[pb.StatusReply | None]) -> str:
    """Find the first difference between this manifest and the home's that matters; empty: none."""
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
    return any(region.learners and not settings.serves(region.name) for region in job.spec.regions)


def away(
    job: Job, settings: Settings, missing: Sequence[str], registrar: pb.StatusReply | None
) -> tuple[str, ...]:
    """Where to look for missing learners of other clusters, and whom shard 0 has just refused.

    Whose certificate was refused nobody can know: it is not believed.
    """
    regions = sorted({split_slot(slot)[0] for slot in missing})
    others = [region for region in regions if not settings.serves(region)]
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
    return next(
        (condition.reason for condition in status.conditions or [] if condition.type == kind), ""
    )
