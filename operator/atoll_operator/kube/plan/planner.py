"""The plan of one pass: from an observation to everything that is to be done and said.

`plan` is the one entry of this package. It reads nothing but its arguments, changes none of them,
and returns a frozen value, so the same observation always gives the same plan. Its parts:

    phase      what the job is doing        ┐
    placement  which pods lost their nodes  ├─> children to apply, pods to delete, owners to name,
    running    which roles shall run        ┘   status to write, seconds until the next pass

The plan says *what*, in the order in which `apply` does it. Where the answer to one effect decides
the next (an owner's word that may be refused, a pod that may be gone), the plan carries all that
the sequence needs and `repair` walks through it.

Why one plan for everything. The parts depend on each other: a pod that is being replaced must not
be named owner, a shard that moves must not be held back by a rollout, a job that is over must
report before it is deleted. Decided in one place from one observation, these rules are plain
conditions; spread over the calls that they guard, each would see another moment.

What is not decided here: whether a call succeeds, and the last look at a Lease or a pod before a
delete (`repair`). Nor is anything remembered here: the plan says what is to be remembered (storms)
and `apply` notes it.

To add a decision: a function of values in one of the modules of this package, its inputs as fields
of `Observation`, its result as a field of `Plan`, a line in `apply` that does it, and a test in
tests/unit/kube/test_planner.py.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import status as statuses
from atoll_operator.api.spec import KIND
from atoll_operator.kube.names import LEARNER_ROLE, MANAGED_BY
from atoll_operator.kube.objects import rfc3339
from atoll_operator.kube.observation import Object, Observation, place_of, with_hosts, workload_name
from atoll_operator.kube.plan import (
    changes,
    elsewhere,
    events,
    pauses,
    readiness,
    restarts,
    sessions,
    status,
)
from atoll_operator.kube.plan.accepted import RESTORE_REFUSED
from atoll_operator.kube.plan.actions import (
    Deletion,
    OwnerWord,
    Plan,
    PodReplacement,
)
from atoll_operator.kube.plan.exclusions import is_excluded
from atoll_operator.kube.plan.nodes import NodeState
from atoll_operator.kube.plan.situation import Situation, situation_of
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
        found = status.of_rejected(seen, now) if seen.error else None
        name = seen.raw["metadata"]["name"]
        pause = pauses.RESTORE_SECONDS if seen.reason == RESTORE_REFUSED else None
        return Plan(
            at=seen.at, namespace=seen.namespace, job=name, status=found, pause_seconds=pause
        )
    case = situation_of(seen, seen.job, settings, now)
    job, placement = case.job, case.placement
    children = changes.of_children(case)
    replace, waits = _replacements(case)
    refused = (*case.certificates.refused, *children.refused)
    said = status.of_job(case, refused)
    delete, owners, restart = restarts.deletions(case), _owners(case), restarts.of_templates(case)
    marks = readiness.marks(seen.pods, seen.replies, seen.remembered.idle_seconds)
    doings = pauses.Doings(
        children=children,
        refused=bool(refused),
        waits=waits,
        acts=bool(replace or delete or owners or restart or marks),
        writes=said is not None,
    )
    pause = pauses.pause(case, doings)
    expire = None
    if pause is None and case.phase.kind.over:
        if said is None:
            expire = Deletion(kind=KIND, name=job.name, uid=seen.uid, reason=EXPIRED)
        else:
            pause = pauses.POLL_SECONDS  # the last status is written before the job is deleted
    return Plan(
        at=seen.at,
        namespace=seen.namespace,
        job=job.name,
        registrar_address=seen.remembered.registrar_address,
        intent=elsewhere.intent(case.phase) if case.home else pb.StatusRequest(),
        storms=placement.storms,
        held=bool(placement.held),
        check=children.check,
        partly=children.partly,
        apply=children.apply,
        reverts=children.reverts,
        certificates=children.certificates,
        refused=frozenset((each.kind, each.name) for each in refused),
        prune=children.prune,
        replace=replace,
        delete=delete,
        owners=owners,
        restart=restart,
        expire=expire,
        marks=marks,
        training=with_hosts(
            frozenset(slot.uid for slot in statuses.training(seen.replies) or ()), seen.pods
        ),
        pods=seen.pods,
        status=said,
        pause_seconds=pause,
    )


def is_managed_here(raw: Object) -> bool:
    """Whether this operator runs the job: it is not being deleted and has no other manager."""
    managed_by = raw["spec"].get("managedBy")
    return "deletionTimestamp" not in raw["metadata"] and managed_by in (None, MANAGED_BY)


# ---------------------------------------------------------------- lost nodes


def _replacements(case: Situation) -> tuple[tuple[PodReplacement, ...], bool]:
    """Pods that may be deleted now, and whether another waits for its controller.

    Of each: a silent Lease must still be unchanged when the pod is deleted, but a Node that is
    NotReady or gone needs no last look; a learner's slot must have no owner, as far as the
    registrar can be reached, but shards and evaluators have no slots. What is left of a learner
    that the job no longer asks for is made nowhere again, so nothing has to exclude the node.
    """
    seen, job, placement = case.seen, case.job, case.placement
    found, waits = [], False
    for each in placement.replace:
        pod, state = each.pod, placement.lost.get(each.node)
        live = seen.workloads.get(workload_name(job.name, pod))
        left = live is None and pod.role == LEARNER_ROLE and pod.slot not in job.spec.slots
        again = not left and (live is None or live.replicas > 0)
        if not (left or is_excluded(each, live, placement.lost)):
            waits = True
            continue
        key = (place_of(job.name, pod), f"{each.node} is lost")
        if restarts.is_done(case, key):
            waits = True
            continue
        node = (seen.nodes or {}).get(each.node)
        retire = None
        if pod.role == LEARNER_ROLE and seen.remembered.registrar_address:
            retire = sessions.to_retire(pod, seen.registrar)
        found.append(
            PodReplacement(
                pod=pod,
                node=each.node,
                reason=each.reason,
                silent_renewal=node.renewed if node and state is NodeState.SILENT else None,
                retire_word=retire,
                silent_seconds=seen.lease_ages.get(each.node, 0.0),
                key=key,
                event=events.of_replacement(
                    seen.raw, pod.name, each.reason, rfc3339(case.now), again=again
                ),
            )
        )
    return tuple(found), waits


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
