"""The third phase of a pass: does what the plan says, in an order that is part of the protocol.

1. *Children are applied*, first those that pods refer to. The API server tries each workload with a
   new template, and one of its pods, in a dry run (`refusal`); what it refuses is not written, and
   of a new job nothing is. Then certificates are made, which pods mount (`secrets`); where one is
   refused the pass ends. The StatefulSet of a pod on a lost node gets its exclusion here; the pod
   itself is deleted in a later pass, when its controller has observed the exclusion.
2. *Children that are no longer asked for are deleted*, after what replaces them is there.
3. *Pods on lost nodes are replaced* (`Applier.replace`). The delete comes only after the registrar
   has taken the change, because from then on two processes of one slot may run, and only it
   keeps the older one out.
4. *Pods that cannot go on are deleted*: stranded ones, and those that a shard refused for good.
5. *Owners are named* (`Applier.name_owner`), after a fresh look at the pod.
6. *Pods of an old template are restarted*, as many as the quorum can spare.
7. *Learners' pods are marked* as in training or not, by which they are Ready (`status.marks`).
8. *A finished job is deleted* when its time to live is over.

A child that the API server refuses stops no other child: the status has the server's message, and
it is tried again after 1 to 60 s, or at once when the job is edited. What is refused may replace a
child of step 2, so nothing is deleted there while a StatefulSet is refused, and nothing of the kind
of another child that is, unless a quota is used up. Where another's object has the name of a child
(`applied.obstacle`), the child is refused in the same way. Any other step may fail and end the
pass, because every step is idempotent.

    replace     Lease still silent? ── no ──> leave the pod alone, its node is back
                     │ yes
                SetOwner(slot, "", generation) taken? ── no ──> wait, try again in the next pass
                     │ yes, or nothing to retire
                delete with grace 0 and a UID precondition ── another pod or none ──> done by others
                     │ deleted
                remember it for the metrics, write the Event NodeLost

    name_owner  pod still has this UID at the API server? ── no ──> the next pass sees the new pod
                     │ yes
                SetOwner(slot, UID, generation)

Both read the API server once more, past every cache, because the steps cannot be taken back: a pod
whose node has just returned must not be killed, and a slot must not be given to a pod that has
itself been replaced (rule 4 of docs/protocol.md).
"""

import copy
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from atoll_operator.kube.edges.api import (
    LEASES,
    TOO_MANY_REQUESTS,
    Api,
    ApiError,
    ConflictError,
    ObjectNotFoundError,
    path,
)
from atoll_operator.kube.edges.polls import Syncers
from atoll_operator.kube.effects.report import Recorder
from atoll_operator.kube.effects.secrets import Secrets
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import TRAINING_GATE, Annotation, account_name
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.observed.objects import key_of, rfc3339
from atoll_operator.kube.observed.observation import WORKLOADS, Object, Replacement
from atoll_operator.kube.plan.actions import Deletion, Mark, Plan, PodReplacement, SlotOwner
from atoll_operator.kube.plan.applied import alike, drift, obstacle
from atoll_protos.names import Label

NO_OWNER = ""
UNKNOWN_GENERATION = 0  # refused unless it is the last one; the refusal has the last one

log = structlog.get_logger()


REFUSED, UNAVAILABLE = 422, 503  # HTTP: the object is wrong, or nobody can say
QUOTA: Final = "exceeded quota"
NO_MISTAKE: Final = (QUOTA, "does not support dry run", 'cannot create resource "pods"')
NO_ACCOUNT: Final = "error looking up service account"
OF_CONTROLLER: Final = ("controller", "owner", "naked")  # in a message in small letters
OF_ACCOUNT: Final = ("serviceaccount", "service account")  # in a message in small letters
NOBODYS_UID: Final = "00000000-0000-0000-0000-000000000000"  # of a workload that is to be made


async def refusal(api: Api, workload: Object) -> ApiError | None:
    """Why the API server would refuse the workload or its pods, or a claim; None: it would not.

    A StatefulSet is taken whatever its pods ask for: what a priority class, Pod Security, a
    LimitRange or a webhook allows is looked at only when its controller makes a pod, and by then
    the old pods are gone. So a pod is tried too; of a new job the shards' claims by themselves.

    What is no mistake in the template is left to the controller: a quota that is used up, a webhook
    that knows no dry runs, an operator that may try no pods. An answer that says nothing of the
    pod, such as that a webhook is away, blames no template, but is waited for.

    None, too, where another object has the workload's name: what becomes of it is decided when it
    is applied. Raises ApiError when the API server has too much to do to judge anything.
    """
    metadata = workload["metadata"]
    where = path(workload["kind"], metadata["namespace"], metadata["name"])
    if "uid" not in metadata and await api.get(where) is not None:
        return None
    try:
        await api.dry_run(workload)
    except ConflictError:
        return None
    except ApiError as error:
        if not _is_no_mistake(error):
            return error
    if workload["kind"] not in WORKLOADS:
        return None
    wrong = await _refusal_of_pod(api, workload)
    if wrong is None:
        return None
    status = UNAVAILABLE if wrong.may_pass else REFUSED
    return ApiError(status, f"its pods would be refused: {wrong.message}")


async def _refusal_of_pod(api: Api, workload: Object) -> ApiError | None:
    """Try a pod with its role's service account, or the namespace's own while that is not there.

    The operator makes it in a job's first pass, and without one of the two every pod is refused.
    What a policy says of the namespace's own says nothing of the job's pods.
    """
    pod = pod_of(workload)
    metadata = workload["metadata"]
    job, role = metadata["labels"][Label.JOB], metadata["labels"][Label.ROLE]
    own = account_name(job, role)
    if pod["spec"].get("serviceAccountName") != own:
        return await _try(api, pod)
    known = api.cache.children((metadata["namespace"], job))
    if any(
        child["kind"] == "ServiceAccount" and child["metadata"]["name"] == own for child in known
    ):
        wrong = await _try(api, pod)
        if wrong is None or NO_ACCOUNT not in wrong.message:
            return wrong
    del pod["spec"]["serviceAccountName"]
    wrong = await _try(api, pod)
    return None if wrong is None or _says(wrong, OF_ACCOUNT) else wrong


async def _try(api: Api, pod: Object) -> ApiError | None:
    """Try a pod, which names a controller that is not there.

    Kueue, which looks at pods of all namespaces and queues, looks for it and refuses the pod. Such
    a pod is tried once more without a controller, and what is then said of that alone blames none.
    """
    try:
        await api.dry_run_pod(pod)
    except ApiError as error:
        if not _lacks_controller(pod, error):
            return None if _is_no_mistake(error) else error
    else:
        return None
    free = {name: each for name, each in pod["metadata"].items() if name != "ownerReferences"}
    wrong = await _try(api, {**pod, "metadata": free})
    return None if wrong is None or _says(wrong, OF_CONTROLLER) else wrong


def _lacks_controller(pod: Object, error: ApiError) -> bool:
    """Whether a webhook has looked for the controller that the pod names."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(f'"{owner["name"]}" not found' in error.message for owner in owners)


def _says(error: ApiError, words: Sequence[str]) -> bool:
    return any(word in error.message.lower() for word in words)


def _is_no_mistake(error: ApiError) -> bool:
    if error.status == TOO_MANY_REQUESTS:
        raise error
    return any(text in error.message for text in NO_MISTAKE)


def pod_of(workload: Object) -> Object:
    """Make a pod as its controller would, naming it: a policy may refuse pods without one."""
    metadata, template = workload["metadata"], copy.deepcopy(workload["spec"]["template"])
    owner = {
        "apiVersion": workload["apiVersion"],
        "kind": "ReplicaSet" if workload["kind"] == "Deployment" else workload["kind"],
        "name": metadata["name"],
        "uid": metadata.get("uid") or NOBODYS_UID,
        "controller": True,
    }
    own = {
        "generateName": f"{metadata['name']}-",
        "namespace": metadata["namespace"],
        "ownerReferences": [owner],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **own},
        "spec": template["spec"],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOutcome:
    """What the plan could not know."""

    waits: bool = False  # the registrar has not taken a change, or what was seen is outdated
    made: bool = True  # every certificate of the plan is there
    refused: bool = False  # a child was refused, and the plan's status does not say so yet


@dataclass(slots=True, kw_only=True)
class Applier:
    """Carries out one plan per pass."""

    api: Api
    metrics: Metrics
    syncers: Syncers
    recorder: Recorder
    secrets: Secrets

    async def apply(self, plan: Plan, memory: JobMemory) -> ApplyOutcome:
        """Raise ApiError and what the network raises; then the rest is left to the next pass."""
        for gone in memory.refused.keys() - {
            (refusal.kind, refusal.name) for refusal in plan.refused
        }:
            del memory.refused[gone]  # the job no longer asks for it
        memory.stormed_at |= dict.fromkeys(plan.storms, plan.at)
        outcome = await self._apply_children(plan, memory)
        if not outcome.made:
            return outcome
        await self._delete(plan, _without_successor(plan.children.prune, memory), memory)
        waits = outcome.waits
        for replacement in plan.replace:
            waits |= not await self.replace(plan, replacement, memory)
        await self._delete(plan, plan.delete, memory)
        for owner in plan.owners:
            await self.name_owner(plan, owner, memory)
        await self._delete(plan, plan.restart, memory)
        for mark in plan.marks:
            await self.mark(plan, mark)
        if plan.expire is not None and not waits:
            await self.delete(plan, plan.expire, memory)
        return ApplyOutcome(waits=waits, refused=outcome.refused)

    async def _apply_children(self, plan: Plan, memory: JobMemory) -> ApplyOutcome:
        """Whether a child was refused that the status does not name yet, or has been replaced."""
        news, waits, reverts = (
            False,
            False,
            {revert.key: revert for revert in plan.children.reverts},
        )
        wrong = await self._check(plan, memory)
        news |= any(wrong.values())
        goes = plan.children.partly or not wrong
        if goes and not await self.secrets.make(plan, memory):
            return ApplyOutcome(refused=True, made=False)
        for child in plan.children.apply if goes else ():
            kind, name = key_of(child)
            if (kind, name) in wrong:
                continue
            applied = child["metadata"]["annotations"][Annotation.APPLIED]
            try:
                answer = await self._take(child)
            except ApiError as error:
                if _is_outdated(child, error) and (kind, name) not in memory.conflicts:
                    memory.conflicts.add((kind, name))  # the next pass sees what is there now
                    waits = True
                    continue
                if error.status == TOO_MANY_REQUESTS:
                    raise  # it does not refuse this child: all wait for as long as it says
                news |= _refuse(plan, memory, child, error)
                continue
            memory.refused.pop((kind, name), None)
            memory.conflicts.discard((kind, name))
            marks = frozenset(difference.mark for difference in drift(child, answer))
            memory.settle((kind, name), applied, marks)
            self.metrics.writes.labels(kind).inc()
            log.info("applied", job=plan.job, kind=kind, name=name)
            revert = reverts.get((kind, name))
            if revert is not None:
                log.warning("reverted", job=plan.job, kind=kind, name=name, fields=revert.text)
                memory.reverted_at[kind, name] = plan.at
                await self.recorder.tell(revert.event)
        return ApplyOutcome(waits=waits, refused=news)

    async def _check(self, plan: Plan, memory: JobMemory) -> dict[tuple[str, str], bool]:
        """Return the workloads that the API server would refuse, with whether that is news."""
        wrong: dict[tuple[str, str], bool] = {}
        for group in alike(plan.children.check):
            error = await refusal(self.api, group[0])
            for child in group:
                kind, name = key_of(child)
                if error is not None:
                    wrong[kind, name] = _refuse(plan, memory, child, error)
                elif not plan.children.apply:  # else what comes of it is known when it is applied
                    memory.refused.pop((kind, name), None)
        return wrong

    async def _take(self, child: Object) -> Object:
        """Apply one child; raises ApiError, also where another's object has its name."""
        metadata = child["metadata"]
        if "uid" not in metadata:
            found = await self.api.get(path(child["kind"], metadata["namespace"], metadata["name"]))
            if found is not None:
                said = obstacle(found, child)
                if said:
                    raise ConflictError(409, said)
                child = {**child, "metadata": {**metadata, "uid": found["metadata"]["uid"]}}
        return await self.api.apply(child)

    async def _delete(self, plan: Plan, deletions: Iterable[Deletion], memory: JobMemory) -> None:
        for deletion in deletions:
            if deletion.key is not None:
                memory.deleted_at[deletion.key] = plan.at
            if await self.delete(plan, deletion, memory):
                log.info(
                    "deleted",
                    job=plan.job,
                    kind=deletion.kind,
                    name=deletion.name,
                    reason=deletion.reason,
                )
                if deletion.event is not None:
                    await self.recorder.tell(deletion.event)

    async def replace(self, plan: Plan, each: PodReplacement, memory: JobMemory) -> bool:
        """Delete a pod of a lost node; False when the registrar has to be asked again."""
        pod = each.pod
        if each.silent_renewal is not None:  # other signs need no last look
            lease = await self.api.get(f"{LEASES}/{pod.node}")
            if lease is not None and lease["spec"].get("renewTime") != each.silent_renewal:
                return True
        former = each.retire_generation
        if former is not None:
            answer = await self._set_owner(plan, pod.slot, NO_OWNER, former, memory)
            if answer != former + 1:
                return False
        memory.deleted_at[each.key] = plan.at
        gone = Deletion(kind="Pod", name=pod.name, uid=pod.uid, reason=each.reason)
        if await self.delete(plan, gone, memory, at_once=True):
            await self._note(plan, each, memory)
        return True

    async def delete(
        self, plan: Plan, each: Deletion, memory: JobMemory, *, at_once: bool = False
    ) -> bool:
        """Delete an object; False: it was gone or may not go. Raises ApiErrors that may pass."""
        where = path(each.kind, plan.namespace, each.name)
        try:
            found = await self.api.delete(where, each.uid, at_once=at_once)
        except ApiError as error:
            text = f"{each.kind} {each.name} is not deleted: {error.message}"
            memory.undeleted[each.uid] = (text, plan.at)
            log.warning("not deleted", job=plan.job, name=each.name, error=str(error))
            if error.may_pass:
                raise
            return False
        memory.undeleted.pop(each.uid, None)
        return found

    async def _note(self, plan: Plan, each: PodReplacement, memory: JobMemory) -> None:
        """Tell of a deleted pod before anything can fail, and once though a finalizer holds it."""
        pod, lost_at = each.pod, plan.at - each.silent_seconds
        noted = memory.replacements.get(each.key[0])
        if noted is not None and noted.old_uid == pod.uid:
            return
        memory.replacements[each.key[0]] = Replacement(
            role=pod.role, name=pod.name, old_uid=pod.uid, shard=pod.shard, lost_at=lost_at
        )
        self.metrics.replacements.labels(pod.role).inc()
        self.metrics.deletion_seconds.labels(pod.role).observe(time.monotonic() - lost_at)
        log.warning("replaced", job=plan.job, pod=pod.name, node=pod.node, reason=each.reason)
        await self.recorder.tell(each.event)

    async def mark(self, plan: Plan, mark: Mark) -> None:
        condition = {
            "type": TRAINING_GATE,
            "status": "True" if mark.trains else "False",
            "reason": "Training" if mark.trains else "NotTraining",
            "lastTransitionTime": rfc3339(time.time()),
        }
        try:
            await self.api.mark(plan.namespace, mark.pod, mark.uid, condition)
        except (ObjectNotFoundError, ConflictError):
            return  # it is gone, or another one has its name: the next pass sees it
        except ApiError as error:
            if error.may_pass:
                raise
            log.warning("not marked", job=plan.job, pod=mark.pod, error=str(error))
            return
        log.info("marked", job=plan.job, pod=mark.pod, training=mark.trains)

    async def name_owner(self, plan: Plan, owner: SlotOwner, memory: JobMemory) -> None:
        live = await self.api.get(path("Pod", plan.namespace, owner.pod))
        if live is None or live["metadata"]["uid"] != owner.uid:
            return
        slot, generation = owner.slot, owner.generation
        if generation is None:
            memory.absent_since[slot] = plan.at  # wait again before the next try
            generation = await self._set_owner(plan, slot, owner.uid, UNKNOWN_GENERATION, memory)
        if generation is not None:
            await self._set_owner(plan, slot, owner.uid, generation, memory)
            log.info("named owner", job=plan.job, slot=slot, pod=owner.uid)

    async def _set_owner(
        self, plan: Plan, slot: str, uid: str, generation: int, memory: JobMemory
    ) -> int | None:
        self.metrics.owners.inc()
        own = memory.certificates.of_slot(slot)
        return await self.syncers.set_owner(plan.registrar_address, slot, uid, generation, own)


def _refuse(plan: Plan, memory: JobMemory, child: Object, error: ApiError) -> bool:
    key, applied = key_of(child), child["metadata"]["annotations"][Annotation.APPLIED]
    log.warning("refused", job=plan.job, kind=key[0], name=key[1], error=str(error))
    return memory.refuse(key, applied, error.message, plan.at, error.status)


def _without_successor(prune: Iterable[Deletion], memory: JobMemory) -> tuple[Deletion, ...]:
    """Of the children that are no longer asked for those that no refused one may replace."""
    waits = {kind for (kind, _), each in memory.refused.items() if QUOTA not in each.message}
    return tuple(deletion for deletion in prune if not waits & {"StatefulSet", deletion.kind})


def _is_outdated(child: Object, error: ApiError) -> bool:
    return isinstance(error, ConflictError) and "uid" in child["metadata"]
