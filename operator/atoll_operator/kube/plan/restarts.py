"""Which pods of one job are deleted with their usual grace in this pass, and which wait.

The causes: a pod waits and excludes a node for no reason, a shard has refused it for good, it is in
back-off with credentials that were replaced since, it crashes again and again where it is or hangs
(`suspects`), or its template is old (`rollout` decides the pace). Pods on lost nodes are not among
them (`planner`). None of a place, which is a learner's slot or a Deployment, is deleted twice for
one cause within SAME_CAUSE_SECONDS: what does not help the first time needs another answer, and a
pod that must wait for capacity must be left alone. One that hangs is restarted at most once a day,
one in back-off once for each Secret. A template that has changed again is another cause.
"""

from collections.abc import Sequence

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import status as statuses
from atoll_operator.api.facts import Kind
from atoll_operator.api.syncer import StorageType
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE, Annotation
from atoll_operator.kube.objects import rfc3339
from atoll_operator.kube.observation import (
    BUSY_STATES,
    DAY_SECONDS,
    Object,
    Observation,
    Pod,
    place_of,
    workload_name,
)
from atoll_operator.kube.plan import budgets, certificates, events, rollout, sessions
from atoll_operator.kube.plan.actions import Deletion
from atoll_operator.kube.plan.exclusions import keeps_off, stranded
from atoll_operator.kube.plan.rollout import OLD_TEMPLATE
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.suspects import BACK_OFF, hung
from atoll_protos.exits import ExitCode
from atoll_protos.names import Label

SAME_CAUSE_SECONDS = 60.0  # no pod of one place is deleted twice for one cause within them
SHOWN_SECONDS = 120.0  # within which a kubelet shows a pod's next container a Secret that changed
SUPERSEDED = "a shard refused it for good: another pod has its slot"
RENEWED = "it is in back-off after an end with other credentials than there are now"
STRANDED = "it waits for a node, and excludes one that its template allows again"
CRASHING = "it has crashed {} times on {} while other learners train"
HUNG = "it has made no step for very long while other learners train"


def deletions(case: Situation) -> tuple[Deletion, ...]:
    """Pods that cannot go on as they are; their controllers make them again."""
    seen, name = case.seen, case.job.name
    found = []
    for pod in seen.pods:
        live = seen.workloads.get(workload_name(name, pod))
        if stranded(pod, live):
            found.append(_of_pod(case, pod, STRANDED))
        elif pod.exit_code == ExitCode.SUPERSEDED and not (
            pod.terminating or _is_back(pod, case.joined)
        ):
            found.append(_of_pod(case, pod, SUPERSEDED))
        elif (renewed := _with_new_credentials(case, pod)) is not None:
            found.append(renewed)
    for pod in case.placement.suspected:
        if keeps_off(pod.node, seen.workloads.get(workload_name(name, pod))):
            crashes = seen.remembered.crashes.get(pod.uid, pod.restarts)
            reason = CRASHING.format(crashes, pod.node)
            found.append(_of_pod(case, pod, reason, f"it crashes on {pod.node}", told=True))
    if case.phase.kind is Kind.RUNNING:
        for pod in hung(seen.pods, seen.registrar, seen.remembered.stalled_seconds):
            each = _of_pod(case, pod, HUNG, told=pod.is_head)
            if each.key is None or not is_done(case, each.key, DAY_SECONDS):
                found.append(each)
    return _not_again(case, found)


def _is_back(pod: Pod, joined: frozenset[str] | None) -> bool:
    """Whether a container that has ended has started again, and has a session or may have one."""
    return pod.runs and (joined is None or pod.uid in joined)


def _with_new_credentials(case: Situation, pod: Pod) -> Deletion | None:
    """The deletion of a pod in back-off that has not seen what its Secret holds now.

    The kubelet would start its container after up to 5 minutes; a pod that is made again begins at
    once.
    """
    if pod.terminating or (pod.waiting, pod.exit_code) != (BACK_OFF, ExitCode.TRY_AGAIN):
        return None
    if case.seen.certificates is None or pod.began_at is None:
        return None
    region = pod.region or case.job.spec.syncer_region
    name = certificates.secret_of(case.job, pod.role, region, home=case.home)
    secret = case.seen.certificates.leaves.get(name)
    if secret is None or secret.reason or pod.began_at > secret.written_at + SHOWN_SECONDS:
        return None
    key = (place_of(case.job.name, pod), f"{RENEWED} {secret.version}")
    return None if is_done(case, key, DAY_SECONDS) else _of_pod(case, pod, RENEWED, key[1])


def of_templates(case: Situation) -> tuple[Deletion, ...]:
    """Learners' pods of an old template that may go now (`rollout`).

    Left out are StatefulSets that their controller has not observed (it would make the pod from the
    old template again), learners with a pod on a lost node (it is replaced, not restarted) and
    those beyond the wanted number (they are about to be scaled away). A host that is given up
    (`_is_given_up`) holds back none of the others: an edit may be what lets them go on without it.
    """
    seen, job = case.seen, case.job
    if case.phase.kind is not Kind.RUNNING:
        return ()
    own = [pod for pod in seen.pods if pod.role == LEARNER_ROLE and not _is_given_up(case, pod)]
    learners = {region.name: region.learners for region in job.spec.regions}
    live = {pod.slot: seen.workloads.get(workload_name(job.name, pod)) for pod in own}
    templates = {slot: set_.template for slot, set_ in live.items() if set_ and set_.observed}
    lost = {pod.slot for pod in own if pod.node in case.placement.lost}
    deleted = seen.remembered.deleted_seconds
    chosen = rollout.next_to_restart(
        rollout.Roll(
            regions=list(learners),
            pods=[
                pod
                for pod in own
                if pod.slot in templates
                and pod.slot not in lost
                and pod.ordinal < learners.get(pod.region, 0)
            ],
            wanted=templates,
            training=rollout.counted(
                statuses.training(seen.replies) or [], own, case.settings.serves
            ),
            stalled=rollout.counted(_stalled(seen), own, case.settings.serves),
            idle=sessions.idle(own, seen.replies, seen.remembered.absent_seconds),
            serving=sessions.all_serve(seen.replies),
            quorum=job.spec.quorum,
            share=budgets.share(job, case.settings.serves),
            desired=job.spec.learners,
            hosts_min=job.spec.learner.hosts_needed,
            restarted_seconds={
                place: seconds
                for (place, cause), seconds in deleted.items()
                if cause.startswith(OLD_TEMPLATE)
            },
            now=case.now,
        )
    )
    found = [
        _of_pod(case, pod, OLD_TEMPLATE, f"{OLD_TEMPLATE} {templates[pod.slot]}") for pod in chosen
    ]
    return _not_again(case, found)


def _is_given_up(case: Situation, pod: Pod) -> bool:
    """Whether a host other than host 0 is deleted, and is still there for its lost node alone.

    It may stay for as long as the node is away, where its learner has no replacements left, or
    where a finalizer (Kueue's) holds it. In a storm its process may well train on.
    """
    deleted = pod.terminating and not pod.is_head and pod.node in case.placement.lost
    return deleted and pod.region not in {each.region for each in case.placement.held}


def _of_pod(
    case: Situation, pod: Pod, reason: str, cause: str = "", *, told: bool = False
) -> Deletion:
    """The deletion of a pod; `told`: in an Event as well."""
    key = (place_of(case.job.name, pod), cause or reason)
    event = None
    if told:
        event = events.of_restart(case.seen.raw, pod.name, reason, rfc3339(case.now))
    return Deletion(kind="Pod", name=pod.name, uid=pod.uid, reason=reason, key=key, event=event)


def _not_again(case: Situation, found: Sequence[Deletion]) -> tuple[Deletion, ...]:
    """Without pods whose place has lost one for the same cause a moment ago."""
    return tuple(each for each in found if each.key is None or not is_done(case, each.key))


def is_done(case: Situation, key: tuple[str, str], seconds: float = SAME_CAUSE_SECONDS) -> bool:
    """Whether a pod of this place was deleted for this cause a moment ago."""
    return case.seen.remembered.deleted_seconds.get(key, seconds) < seconds


def held_shards(case: Situation, objects: Sequence[Object]) -> frozenset[str]:
    """Names of shards' children whose change must wait; never of a shard on a lost node."""
    seen = case.seen
    kind, restorable = case.phase.kind, _is_restorable(case)
    if kind is Kind.SUSPENDED and restorable:
        return frozenset()  # they are scaled to nothing
    if kind not in (Kind.RUNNING, Kind.SUSPENDED, Kind.FINISHING):
        return frozenset()
    lost = {workload_name(case.job.name, each.pod) for each in case.placement.replace}
    ready = {
        workload_name(case.job.name, pod)
        for pod in seen.pods
        if pod.role == SHARD_ROLE and pod.ready and not pod.terminating
    }
    shards = []
    for each in objects:
        if each["kind"] == "Deployment" and Label.SHARD in each["metadata"]["labels"]:
            annotations = each["spec"]["template"]["metadata"]["annotations"]
            name = each["metadata"]["name"]
            shards.append(
                (seen.workloads.get(name), annotations[Annotation.TEMPLATE], name in ready)
            )
    return rollout.shards_to_hold(shards, restorable=restorable) - lost


def _is_restorable(case: Situation) -> bool:
    """Whether a shard that restarts now gets its state again: from its volume, or from learners.

    While the last evaluation runs the shards alone know that the job is complete.
    """
    seen = case.seen
    if case.phase.kind is Kind.FINISHING:
        return False
    if case.job.spec.syncer.storage.type is not StorageType.EPHEMERAL or not has_run(seen):
        return True
    if seen.registrar is None:
        return any(pod.is_head and pod.ready for pod in seen.pods)
    return any(slot.state in BUSY_STATES for slot in seen.registrar.slots)


def _stalled(seen: Observation) -> list[pb.SlotStatus]:
    slots = seen.registrar.slots if seen.registrar is not None else []
    return [slot for slot in slots if slot.state == pb.SLOT_STALLED]


def has_run(seen: Observation) -> bool:
    """Whether the job has begun to train: there is something to lose."""
    held = (reply is not None and bool(reply.run) for reply in seen.replies)
    return bool(seen.status.run) or any(held)
