"""Replacing a pod on a lost node: sequences in which one answer decides the next call.

    replace     Lease still silent? ── no ──> leave the pod alone, its node is back
                     │ yes
                SetOwner(slot, "", word) taken? ── no ──> wait, try again in the next pass
                     │ yes, or nothing to retire
                delete with grace 0 and a UID precondition ── another pod or none ──> done by others
                     │ deleted
                remember it for the metrics, write the Event NodeLost

    name_owner  pod still has this UID at the API server? ── no ──> the next pass sees the new pod
                     │ yes
                SetOwner(slot, UID, word)

Both read the API server once more, past every cache, because the steps cannot be taken back: a pod
whose node has just returned must not be killed, and a slot must not be given to a pod that has
itself been replaced (rule 4 of docs/protocol.md).
"""

import time
from dataclasses import dataclass

import structlog

from atoll_operator.kube.edges.api import (
    LEASES,
    Api,
    ApiError,
    ConflictError,
    ObjectNotFoundError,
    path,
)
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.effects.recorder import Recorder
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import TRAINING_GATE
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import Replacement
from atoll_operator.kube.plan.actions import Deletion, OwnerWord, Plan, PodReplacement
from atoll_operator.kube.plan.status.readiness import Mark

NO_OWNER = ""
UNKNOWN_WORD = 0  # refused unless it is the last word; the refusal answers the last word

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Repair:
    """Walks through the two sequences above."""

    api: Api
    syncers: Syncers
    metrics: Metrics
    recorder: Recorder

    async def replace(self, plan: Plan, each: PodReplacement, memory: JobMemory) -> bool:
        """Delete a pod of a lost node; False when the registrar has to be asked again."""
        pod = each.pod
        if not await self._still_silent(each):
            return True
        word = each.retire_word
        if word is not None and not await self._retire(plan, word, each, memory):
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

    async def _still_silent(self, each: PodReplacement) -> bool:
        """Whether a silent Lease is unchanged at the API server; other signs need no last look."""
        if each.silent_renewal is None:
            return True
        lease = await self.api.get(f"{LEASES}/{each.pod.node}")
        return lease is None or lease["spec"].get("renewTime") == each.silent_renewal

    async def _retire(self, plan: Plan, word: int, each: PodReplacement, memory: JobMemory) -> bool:
        slot, own = each.pod.slot, memory.certificates.of_slot(each.pod.slot)
        answer = await self.syncers.set_owner(plan.registrar_address, slot, NO_OWNER, word, own)
        self.metrics.owners.inc()
        return answer == word + 1

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

    async def name_owner(self, plan: Plan, owner: OwnerWord, memory: JobMemory) -> None:
        live = await self.api.get(path("Pod", plan.namespace, owner.pod))
        if live is None or live["metadata"]["uid"] != owner.uid:
            return
        address, word = plan.registrar_address, owner.word
        own = memory.certificates.of_slot(owner.slot)
        if word is None:
            memory.absent_since[owner.slot] = plan.at  # wait again before the next try
            word = await self.syncers.set_owner(address, owner.slot, owner.uid, UNKNOWN_WORD, own)
        if word is not None:
            await self.syncers.set_owner(address, owner.slot, owner.uid, word, own)
            self.metrics.owners.inc()
            log.info("named owner", job=plan.job, slot=owner.slot, pod=owner.uid)
