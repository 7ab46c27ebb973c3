"""The plan of one pass: from an observation to everything that is to be done and said.

`plan` reads nothing but its arguments and changes none of them, so the same observation always
gives the same plan. Everything is decided in one place from one observation, because the parts
depend on each other: a pod that is being replaced must not be named owner, and a shard that moves
must not be held back by a rollout.

To add a decision: a function of values in one of the modules of this package, its inputs as fields
of `Observation`, its result as a field of `Plan`, a line in `apply` that does it, and a test in
tests/unit/kube/test_planner.py.
"""

from dataclasses import replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import KIND, Job
from atoll_operator.api.status import seen_status
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import (
    Observation,
    Pod,
    place_of,
    with_hosts,
    workload_name,
)
from atoll_operator.kube.plan import pauses, shard_processes
from atoll_operator.kube.plan.actions import Deletion, OwnerWord, Plan, PodReplacement
from atoll_operator.kube.plan.changes import applied, restarts
from atoll_operator.kube.plan.losses import sessions
from atoll_operator.kube.plan.losses.exclusions import is_excluded
from atoll_operator.kube.plan.losses.nodes import NodeState
from atoll_operator.kube.plan.manifest import elsewhere
from atoll_operator.kube.plan.manifest.accepted import RESTORE_REFUSED
from atoll_operator.kube.plan.situation import Situation, situation_of
from atoll_operator.kube.plan.status import events, readiness, status
from atoll_operator.kube.settings import Settings

EXPIRED = "spec.ttlSecondsAfterFinished have passed"


def plan(seen: Observation, settings: Settings, now: float) -> Plan:
    """Decide everything about one job in one pass.

    `now` is wall time in UNIX seconds; it dates statuses and Events, and measures deadlines, which
    outlive this process. All shorter times are ages in the observation.
    """
    if seen.job is not None and seen.unread:
        return Plan(
            at=seen.at,
            namespace=seen.namespace,
            job=seen.job.name,
            status=status.of_unread(situation_of(seen, seen.job, settings, now)),
        )
    if seen.job is None:
        said = status.of_rejected(seen, now) if seen.error else None
        name = seen.raw["metadata"]["name"]
        restored = pauses.RESTORE_SECONDS if seen.reason == RESTORE_REFUSED else None
        pause = pauses.sooner(restored, pauses.until_written(seen, said))
        return Plan(
            at=seen.at, namespace=seen.namespace, job=name, status=said, pause_seconds=pause
        )
    case = situation_of(seen, seen.job, settings, now)
    job, placement = case.job, case.placement
    children = applied.of_children(case)
    replaced, waits = _replacements(case)
    refused = (*case.certificates.refused, *children.refused)
    found = Plan(
        at=seen.at,
        namespace=seen.namespace,
        job=job.name,
        registrar_address=seen.remembered.registrar_address,
        intent=elsewhere.intent(case.phase) if case.home else pb.StatusRequest(),
        storms=placement.storms,
        children=children,
        refused=refused,
        replace=replaced,
        delete=restarts.deletions(case),
        owners=_owners(case),
        restart=restarts.of_templates(case),
        marks=readiness.marks(seen.pods, seen.replies, seen.remembered.idle_seconds),
        training=with_hosts(
            frozenset(slot.uid for slot in seen_status.training(seen.replies) or ()), seen.pods
        ),
        pods=seen.pods,
        status=status.of_job(case, refused),
    )
    pause = pauses.pause(case, found, waits=waits)
    if pause is None and case.phase.kind.over:
        if found.status is None:
            gone = Deletion(kind=KIND, name=job.name, uid=seen.uid, reason=EXPIRED)
            return replace(found, expire=gone)
        pause = pauses.POLL_SECONDS  # the last status is written before the job is deleted
    return replace(found, pause_seconds=pause)


# ---------------------------------------------------------------- lost nodes


def _replacements(case: Situation) -> tuple[tuple[PodReplacement, ...], bool]:
    """Pods that may be deleted now, and whether another waits for its controller.

    A silent Lease must still be unchanged when the pod is deleted, but a Node that is NotReady or
    gone needs no last look; a learner's slot must have no owner, as far as the registrar can be
    reached. What is left of a learner, or of a shard's second process, that the job no longer asks
    for is made nowhere again, so nothing has to exclude the node.
    """
    seen, job, placement = case.seen, case.job, case.placement
    found, waits = [], False
    for each in placement.replace:
        pod, state = each.pod, placement.lost.get(each.pod.node)
        live = seen.workloads.get(workload_name(job.name, pod))
        left = live is None and not _is_wanted(pod, job)
        again = not left and (live is None or live.replicas > 0)
        place = "made again on another node" if again else "removed"
        if not (left or is_excluded(each, live, placement.lost)):
            waits = True
            continue
        key = (place_of(job.name, pod), f"{pod.node} is lost")
        if restarts.is_done(case, key):
            waits = True
            continue
        node = (seen.nodes or {}).get(pod.node)
        retire = None
        if pod.role == LEARNER_ROLE and seen.remembered.registrar_address:
            retire = sessions.to_retire(pod, seen.registrar)
        found.append(
            PodReplacement(
                pod=pod,
                reason=each.reason,
                silent_renewal=node.renewed if node and state is NodeState.SILENT else None,
                retire_word=retire,
                silent_seconds=seen.lease_ages.get(pod.node, 0.0),
                key=key,
                event=events.warning(
                    seen.raw,
                    events.NODE_LOST,
                    pod.name,
                    f"{pod.name} is {place}: {each.reason}",
                    rfc3339(case.now),
                ),
            )
        )
    return tuple(found), waits


def _is_wanted(pod: Pod, job: Job) -> bool:
    if pod.role == LEARNER_ROLE:
        return pod.slot in job.spec.slots
    return pod.role != SHARD_ROLE or shard_processes.is_wanted(pod, job)


def _owners(case: Situation) -> tuple[OwnerWord, ...]:
    """Successors that wait to be named owner of their slot; not pods about to be replaced."""
    seen = case.seen
    replaced = {each.pod.uid for each in case.placement.replace}
    waiting = sessions.to_name(seen.pods, seen.registrar, seen.remembered.absent_seconds)
    return tuple(
        OwnerWord(pod=pod.name, slot=pod.slot, uid=pod.uid, word=word)
        for pod, word in waiting
        if pod.uid not in replaced
    )
