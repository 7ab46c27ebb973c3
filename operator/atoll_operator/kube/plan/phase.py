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
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job import parsing
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.conditions import Phase, PhaseKind, some_of
from atoll_operator.api.status.crash_reason import last_words as words_in
from atoll_operator.api.status.job_status import Condition, FailureRecord, Status, without_step
from atoll_operator.api.status.reasons import STORE_LOST
from atoll_operator.kube import names
from atoll_operator.kube.observed.objects import seconds_of
from atoll_operator.kube.observed.observation import Pod, Workload, is_followed, workload_name
from atoll_protos.exits import EXITS, FINISHED, ExitCode, is_permanent

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
    """The phase of a job whose syncer is here.

    `registrar` is shard 0's answer, None when there is no young one. `exited` are the pods that
    have ended for good (`exited_for_good`). `final_seconds` is the time since this operator first
    saw the registrar's Complete.
    """
    refused = parsing.on_a_cluster(job)
    if before.complete is not None:
        return kept(PhaseKind.COMPLETE, before.complete)
    if before.failed is not None:
        return kept(PhaseKind.FAILED, before.failed)
    if refused is not None:
        return Phase(kind=PhaseKind.REJECTED, reason=NOT_SUPPORTED, message=str(refused))
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


def kept(kind: PhaseKind, condition: Condition) -> Phase:
    return Phase(kind=kind, reason=condition.reason, message=condition.message)


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
    """The learners that have ended for good, if those that are left cannot make a quorum."""
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
