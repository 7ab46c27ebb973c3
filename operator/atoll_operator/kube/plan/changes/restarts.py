"""Which pods of one job are deleted with their usual grace in this pass, and which wait.

None of a place, which is a learner's slot or a Deployment, is deleted twice for one cause within
SAME_CAUSE_SECONDS: what does not help the first time needs another answer. One that hangs is
restarted at most once a day, one in back-off once for each Secret. A template that has changed
again is another cause.
"""

from collections.abc import Sequence

from atoll_operator.api.status.condition_facts import PhaseKind
from atoll_operator.kube.names import SHARD_ROLE, Annotation, shard_name
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import (
    BUSY_STATES,
    DAY_SECONDS,
    OLD_TEMPLATE,
    Object,
    Observation,
    Pod,
    by_workload,
    place_of,
    workload_name,
)
from atoll_operator.kube.plan.actions import Deletion
from atoll_operator.kube.plan.certificates import issuing
from atoll_operator.kube.plan.changes import rollout
from atoll_operator.kube.plan.losses.exclusions import keeps_off, stranded
from atoll_operator.kube.plan.losses.suspects import BACK_OFF, hung
from atoll_operator.kube.plan.manifest.phase import said_by
from atoll_operator.kube.plan.shard_processes import ProcessState, is_wanted, state_of
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.status import events
from atoll_protos.exits import ExitCode
from atoll_protos.names import SECOND, Label

SAME_CAUSE_SECONDS = 60.0  # no pod of one place is deleted twice for one cause within them
SHOWN_SECONDS = 120.0  # within which a kubelet shows a pod's next container a Secret that changed
SUPERSEDED = "a shard refused it for good: another pod has its slot"
RENEWED = "it is in back-off after an end with other credentials than there are now"
STRANDED = "it waits for a node, and excludes one that its template allows again"
CRASHING = "it has crashed {} times on {} while other learners train"
BROKEN = "a GPU of {} is broken"
HUNG = "it has made no step for very long while other learners train"


def deletions(case: Situation) -> tuple[Deletion, ...]:
    """Pods that cannot go on as they are; their controllers make them again."""
    seen, name = case.seen, case.job.name
    found = []
    for pod in seen.pods:
        live = seen.workloads.get(workload_name(name, pod))
        if stranded(pod, live):
            found.append(_of_pod(case, pod, STRANDED))
        elif _is_superseded(case, pod):
            found.append(_of_pod(case, pod, SUPERSEDED))
        elif (renewed := _with_new_credentials(case, pod)) is not None:
            found.append(renewed)
    for pod in case.placement.suspected:
        if keeps_off(pod.node, seen.workloads.get(workload_name(name, pod))):
            cause = f"it crashes on {pod.node}"
            found.append(_of_pod(case, pod, _why_suspected(case, pod), cause, told=True))
    if case.phase.kind is PhaseKind.RUNNING:
        for pod in hung(seen.pods, seen.registrar, seen.remembered.stalled_seconds):
            each = _of_pod(case, pod, HUNG, told=pod.is_head)
            if each.key is None or not is_done(case, each.key, DAY_SECONDS):
                found.append(each)
    return _not_again(case, found)


def _why_suspected(case: Situation, pod: Pod) -> str:
    if pod.exit_code == ExitCode.BAD_DEVICE:
        return BROKEN.format(pod.node) + said_by(pod)
    crashes = case.seen.remembered.crashes.get(pod.uid, pod.restarts)
    return CRASHING.format(crashes, pod.node)


def _is_superseded(case: Situation, pod: Pod) -> bool:
    """Whether a learner was ended for good; a shard's process that was waits for its next turn."""
    if pod.exit_code != ExitCode.SUPERSEDED or pod.role == SHARD_ROLE or pod.terminating:
        return False
    return not (pod.runs and (case.joined is None or pod.uid in case.joined))


def _with_new_credentials(case: Situation, pod: Pod) -> Deletion | None:
    """Of a pod in back-off that has not seen its new Secret: the kubelet may wait for 5 minutes."""
    if pod.terminating or (pod.waiting, pod.exit_code) != (BACK_OFF, ExitCode.TRY_AGAIN):
        return None
    if case.seen.certificates is None or pod.began_at is None:
        return None
    region = pod.region or case.job.spec.syncer_region
    name = issuing.secret_of(case.job, pod.role, region, home=case.home)
    secret = case.seen.certificates.of(name)
    if secret.reason or pod.began_at > secret.written_at + SHOWN_SECONDS:
        return None
    key = (place_of(case.job.name, pod), f"{RENEWED} {secret.version}")
    return None if is_done(case, key, DAY_SECONDS) else _of_pod(case, pod, RENEWED, key[1])


def of_templates(case: Situation) -> tuple[Deletion, ...]:
    if case.phase.kind is not PhaseKind.RUNNING:
        return ()
    roll = rollout.rollout_of(case)
    found = [
        _of_pod(case, pod, OLD_TEMPLATE, f"{OLD_TEMPLATE} {roll.wanted[pod.slot]}")
        for pod in rollout.next_to_restart(roll)
    ]
    return _not_again(case, found)


def _of_pod(
    case: Situation, pod: Pod, reason: str, cause: str = "", *, told: bool = False
) -> Deletion:
    key = (place_of(case.job.name, pod), cause or reason)
    event = None
    if told:
        message = f"{pod.name} is made again: {reason}"
        event = events.warning(
            case.seen.raw, events.LEARNER_RESTARTED, pod.name, message, rfc3339(case.now)
        )
    return Deletion(kind="Pod", name=pod.name, uid=pod.uid, reason=reason, key=key, event=event)


def _not_again(case: Situation, found: Sequence[Deletion]) -> tuple[Deletion, ...]:
    return tuple(each for each in found if each.key is None or not is_done(case, each.key))


def is_done(case: Situation, key: tuple[str, str], seconds: float = SAME_CAUSE_SECONDS) -> bool:
    return case.seen.remembered.deleted_seconds.get(key, seconds) < seconds


def held_shards(case: Situation, objects: Sequence[Object]) -> frozenset[str]:
    """Names of shards' children whose change must wait; never of a shard on a lost node.

    A shard that loses its standby, as the job asks, keeps its other process until that has ended.
    """
    seen = case.seen
    kind, restorable = case.phase.kind, _is_restorable(case)
    if kind is PhaseKind.SUSPENDED and restorable:
        return frozenset()  # they are scaled to nothing
    if kind not in (PhaseKind.RUNNING, PhaseKind.SUSPENDED, PhaseKind.FINISHING):
        return frozenset()
    lost = {workload_name(case.job.name, each.pod) for each in case.placement.replace}
    processes = _processes(seen, objects)
    leaving = {
        pod.shard for pod in seen.pods if pod.role == SHARD_ROLE and not is_wanted(pod, case.job)
    }
    held = rollout.shards_to_hold(processes, restorable=restorable)
    held |= {
        each.name
        for each in processes
        if each.shard in leaving and each.state is not ProcessState.DOWN
    }
    return held - lost


def held_standbys(case: Situation) -> frozenset[str]:
    """Deployments that a running job no longer asks for, and whose shard has nobody else yet."""
    seen, job = case.seen, case.job
    if case.phase.kind is not PhaseKind.RUNNING:
        return frozenset()
    pods = by_workload(job.name, seen.pods)
    others = (shard_name(job.name, number) for number in range(job.spec.syncer.shards))
    down = (x for x in others if state_of(pods.get(x, ()), seen.pods) is ProcessState.DOWN)
    return frozenset(f"{name}-{SECOND}" for name in down)


def _processes(seen: Observation, objects: Sequence[Object]) -> list[rollout.ShardProcess]:
    assert seen.job is not None
    pods, found = by_workload(seen.job.name, seen.pods), []
    for each in objects:
        name, labels = each["metadata"]["name"], each["metadata"]["labels"]
        if each["kind"] != "Deployment" or Label.SHARD not in labels:
            continue
        live = seen.workloads.get(name)
        wanted = each["spec"]["template"]["metadata"]["annotations"][Annotation.TEMPLATE]
        found.append(
            rollout.ShardProcess(
                name=name,
                shard=int(labels[Label.SHARD]),
                state=state_of(pods.get(name, ()), seen.pods),
                changed=live is not None and live.hash != wanted,
            )
        )
    return found


def _is_restorable(case: Situation) -> bool:
    """Whether a restarted shard gets its state back; while finishing only shards know the end."""
    seen = case.seen
    if case.phase.kind is PhaseKind.FINISHING:
        return False
    if case.job.spec.syncer.storage.outlives_pods or not has_run(seen):
        return True
    if seen.registrar is None:
        return any(pod.is_head and pod.ready for pod in seen.pods)
    return any(slot.state in BUSY_STATES for slot in seen.registrar.slots)


def has_run(seen: Observation) -> bool:
    """Whether the job has begun to train: there is something to lose."""
    held = (reply is not None and bool(reply.run) for reply in seen.replies)
    return bool(seen.status.run) or any(held)
