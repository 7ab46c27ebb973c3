"""A job whose regions lie in several clusters: what its other clusters do, and when they wait.

The same manifest is applied in each cluster, and each install serves its own regions. The shards
run where the install serves the syncer's region: there is the job's *home*. Only the home decides
for the whole job; every other cluster has its own regions' learners and nothing else, asks the
shards at `spec.syncer.endpoints` once a second, and follows:

    what happens at home         what the other clusters do
    Complete              Complete, too. The home keeps its shards for LINGER_SECONDS, so that all
                          can see it. Who was cut off in that time and has seen its own learners
                          end with the final values, becomes Complete after syncerLostSeconds
    suspended             Suspended, learners to 0, until the home resumes. The home keeps its
                          shards until those learners have left, at most LEAVE_SECONDS
    Failed                learners to 0 (`Degraded`: HomeFailed), until the home tries again
    deleted, or cut off   the learners train on alone; learners to 0 after syncerLostSeconds
                          (SyncerLost), until the syncer answers

The home's operator says its word (run, suspend, fail) with each of its questions to the shards,
which tell it to whoever asks. A shard that was started again does not know it for a moment; then,
and while no shard answers, the last word that was followed still holds: it stands in the status.

What happens in another cluster concerns its own regions alone. Suspended, deleted, or failed
because its learners have ended for good: its slots are left to be joined again, and the others
train on. It judges no deadline (`activeDeadlineSeconds`), which is the home's, and counts its own
`ttlSecondsAfterFinished`.

Learners of a manifest that differs from the home's in what must be equal would be refused by every
shard (rule 3 of docs/protocol.md). They are not started (`SpecDrift`); the other regions train on.
So that this is known, and credentials of a former run are told, no learner starts before a shard
has answered for the first time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import support
from atoll_operator.api.facts import (
    HOME_FAILED,
    OTHER_MANIFEST,
    SUSPENDED_ELSEWHERE,
    SYNCER_LOST,
    SYNCER_SILENT,
    Hold,
    Kind,
    Phase,
)
from atoll_operator.api.runfile import field_of, run_file
from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status
from atoll_operator.kube.objects import seconds_of
from atoll_operator.kube.observation import Pod
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.settings import Settings
from atoll_protos.names import split_slot
from atoll_protos.run import first_difference

LINGER_SECONDS = 120.0  # for which the shards of a job that is over stay, to tell other clusters
LEAVE_SECONDS = 30.0  # for which those of a suspended job wait for the learners of other clusters
REFUSED_SECONDS = 120.0  # for which a refused peer is told; one that is refused dials again
GONE = frozenset({pb.SLOT_LOST, pb.SLOT_LEFT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a cluster without the syncer knows of a job."""

    job: Job
    before: Before
    status: Status  # as earlier passes have written it
    generation: int
    pods: Sequence[Pod]
    exited: Sequence[Pod]
    regions: Sequence[str]  # of the job, that are served here
    replies: Sequence[pb.StatusReply | None]
    silent_seconds: Mapping[int, float]  # by shard
    refused: bool = False  # a shard of this run is there, and does not take this cluster
    final_seconds: float | None
    runs: bool = False  # learners of this cluster have been started

    @property
    def registrar(self) -> pb.StatusReply | None:
        """Shard 0's answer."""
        return self.replies[0] if self.replies else None

    @property
    def word(self) -> pb.Intent:
        """What the home does with the job; unspecified: nobody can say it at present."""
        return self.registrar.intent if self.registrar else pb.INTENT_UNSPECIFIED

    @property
    def is_lost(self) -> bool:
        """Whether no shard has answered for syncerLostSeconds.

        A shard that refuses this cluster's credentials is there, and so is the run: its learners
        train with the sessions that they have.
        """
        if self.refused:
            return False
        limit = self.job.spec.failure.syncer_lost_seconds
        silent = [self.silent_seconds.get(n, 0.0) for n in range(self.job.spec.syncer.shards)]
        return all(reply is None for reply in self.replies) and min(silent) >= limit


def decide(scene: Scene) -> Phase:
    """The phase of a job in a cluster that does not serve the syncer's region."""
    job, before, registrar = scene.job, scene.before, scene.registrar
    refused = support.on_a_cluster(job)
    if before.complete is not None:
        return phases.kept(Kind.COMPLETE, before.complete)
    if before.failed is not None:
        return phases.kept(Kind.FAILED, before.failed)
    if refused is not None:
        return Phase(kind=Kind.REJECTED, reason=phases.NOT_SUPPORTED, message=str(refused))
    ended = _ended(scene)
    if ended is not None:
        return ended
    failure = phases.no_quorum_left(job, scene.exited)
    if failure is not None:
        return failure
    if job.spec.suspend:
        message = "spec.suspend is true in this cluster: the other regions train on"
        return Phase(kind=Kind.SUSPENDED, reason="Suspended", message=message)
    before_reason = _reason(scene.status, "Suspended")
    unsaid = scene.word == pb.INTENT_UNSPECIFIED and before_reason == SUSPENDED_ELSEWHERE
    if scene.word == pb.INTENT_SUSPEND or unsaid:
        message = (
            f"it is suspended in the cluster of {job.spec.syncer_region}, where the syncer runs"
        )
        return Phase(kind=Kind.SUSPENDED, reason=SUSPENDED_ELSEWHERE, message=message)
    if registrar is None and (before.finished or _own_finished(scene)):
        message = "the learners of this cluster have ended; Complete follows when shard 0 answers"
        return Phase(kind=Kind.FINISHING, reason=phases.LEARNERS_FINISHED, message=message)
    return Phase(kind=Kind.RUNNING, reason="Running", message="")


def _ended(scene: Scene) -> Phase | None:
    """That the job is over, as far as this cluster can know it."""
    job, registrar = scene.job, scene.registrar
    there = f"in the cluster of {job.spec.syncer_region}"
    place = f"the model is at {job.spec.export_url} {there}" if job.spec.export_url else (
        f"status.exportURL {there} says where the model is"
    )  # fmt: skip
    if registrar is not None and registrar.state == pb.SHARD_COMPLETE:
        if _is_measured(job, registrar) or (scene.final_seconds or 0.0) >= (
            phases.EVALUATION_SECONDS_MAX
        ):
            message = f"trained to step {registrar.tick}; {place}"
            return Phase(kind=Kind.COMPLETE, reason=phases.TRAINED, message=message)
        return Phase(
            kind=Kind.FINISHING, reason=phases.EVALUATING, message="the last evaluation runs"
        )
    if registrar is not None:
        return None
    if _reason(scene.status, "Progressing") == phases.EVALUATING:  # it was Complete, and has gone
        return Phase(kind=Kind.COMPLETE, reason=phases.TRAINED, message=place)
    if scene.is_lost and (scene.before.finished or _own_finished(scene)):
        message = f"every learner here has the final values, and the syncer has gone; {place}"
        return Phase(kind=Kind.COMPLETE, reason=phases.TRAINED, message=message)
    return None


def _is_measured(job: Job, registrar: pb.StatusReply) -> bool:
    """Whether the evaluator, if there is one, has measured the final values."""
    if job.spec.evaluator is None:
        return True
    return registrar.HasField("evaluation") and registrar.evaluation.tick >= registrar.tick


def _own_finished(scene: Scene) -> bool:
    """Whether every learner of this cluster's regions has ended with the final values."""
    learners = {each.name: each.learners for each in scene.job.spec.regions}
    wanted = sum(learners[region] for region in scene.regions)
    own = [pod for pod in scene.pods if pod.is_head and not pod.terminating]
    return 0 < wanted <= len({pod.slot for pod in own}) and all(map(phases.has_finished, own))


def hold(scene: Scene) -> Hold | None:
    """Why the learners of this cluster wait although the job runs; None: they run."""
    home = scene.job.spec.syncer_region
    known = _reason(scene.status, "Degraded")
    unsaid = scene.word == pb.INTENT_UNSPECIFIED
    if scene.word == pb.INTENT_FAIL or (unsaid and known == HOME_FAILED):
        why = scene.registrar.why if scene.registrar else ""
        text = f"the job has failed in the cluster of {home}, where the syncer runs; see it there"
        return Hold(reason=HOME_FAILED, message=f"{text}: {why}" if why else text)
    differs = mismatch(scene.job, scene.replies)
    if differs:
        return Hold(reason=OTHER_MANIFEST, message=differs)
    drift = next((c for c in scene.status.conditions or [] if c.type == "SpecDrift"), None)
    known_drift = drift is not None and drift.observed_generation == scene.generation
    if drift and known_drift and scene.registrar is None and drift.reason == OTHER_MANIFEST:
        return Hold(reason=OTHER_MANIFEST, message=drift.message)
    silent = all(reply is None for reply in scene.replies)
    if silent and not scene.runs and not scene.status.run:
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
    """What the home's manifest has in another way, though it holds nobody up; in words.

    The home's values count for the whole job. A registrar of an earlier version does not say how
    many learners the home expects.
    """
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
    """The first difference between this manifest and the home's that matters; empty: none.

    A shard of an earlier version does not say what its run file holds.
    """
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
    """Whether learners of this job run where another install serves them."""
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
        f"{', '.join(others)}: served by another cluster, see `kubectl atoll status {job.name}`"
        " there"
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
    registrar: pb.StatusReply | None, settings: Settings, halted_seconds: float
) -> bool:
    """Whether a suspended job's shards wait for the last work of other clusters' learners."""
    if registrar is None or halted_seconds >= LEAVE_SECONDS:
        return False
    return any(
        slot.state not in GONE and not settings.serves(split_slot(slot.slot)[0])
        for slot in registrar.slots
    )


def intent(phase: Phase) -> pb.StatusRequest:
    """What the home says to its shards with each question."""
    words = {Kind.SUSPENDED: pb.INTENT_SUSPEND, Kind.FAILED: pb.INTENT_FAIL}
    why = f"{phase.reason}: {phase.message}" if phase.kind is Kind.FAILED else ""
    return pb.StatusRequest(intent=words.get(phase.kind, pb.INTENT_RUN), why=why)


def _reason(status: Status, kind: str) -> str:
    return next((each.reason for each in status.conditions or [] if each.type == kind), "")
