"""The third phase of a pass: does what the plan says, in an order that is part of the protocol.

1. *Children are applied*, first those that pods refer to. The API server tries each workload with a
   new template, and one of its pods, in a dry run (`trial`); what it refuses is not written, and of
   a new job nothing is. Then certificates are made, which pods mount (`secrets`); where one is
   refused the pass ends. The StatefulSet of a pod on a lost node gets its exclusion here; the pod
   itself is deleted in a later pass, when its controller has observed the exclusion.
2. *Children that are no longer asked for are deleted*, after what replaces them is there.
3. *Pods on lost nodes are replaced* (`repair.replace`). The delete comes only after the registrar
   has taken the word, because from then on two processes of one slot may run, and only the word
   keeps the older one out.
4. *Pods that cannot go on are deleted*: stranded ones, and those that a shard refused for good.
5. *Owners are named* (`repair.name_owner`), after a fresh look at the pod.
6. *Pods of an old template are restarted*, as many as the quorum can spare.
7. *Learners' pods are marked* as in training or not, by which they are Ready (`status.readiness`).
8. *A finished job is deleted* when its time to live is over.

A child that the API server refuses stops no other child: the status has the server's message, and
it is tried again after 1 to 60 s, or at once when the job is edited. What is refused may replace a
child of step 2, so nothing is deleted there while a StatefulSet is refused, and nothing of the kind
of another child that is, unless a quota is used up. Where another's object has the name of a child
(`ownership`), the child is refused in the same way.

Any other step may fail and end the pass, because every step is idempotent.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from atoll_operator.kube.edges.api import TOO_MANY_REQUESTS, Api, ApiError, ConflictError, path
from atoll_operator.kube.effects.repair import Repair
from atoll_operator.kube.effects.secrets import Secrets
from atoll_operator.kube.effects.trial import QUOTA, refusal
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed.memory import JobMemory
from atoll_operator.kube.observed.objects import key_of
from atoll_operator.kube.observed.observation import Object
from atoll_operator.kube.plan.actions import Deletion, Plan
from atoll_operator.kube.plan.changes.applied import alike
from atoll_operator.kube.plan.changes.drift import drift
from atoll_operator.kube.plan.changes.ownership import obstacle

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOutcome:
    """What the plan could not know."""

    waits: bool = False  # the registrar has not taken a word, or what was seen is outdated
    made: bool = True  # every certificate of the plan is there
    refused: bool = False  # a child was refused, and the plan's status does not say so yet


@dataclass(slots=True, kw_only=True)
class Applier:
    """Carries out one plan per pass."""

    api: Api
    metrics: Metrics
    repair: Repair
    secrets: Secrets

    async def apply(self, plan: Plan, memory: JobMemory) -> ApplyOutcome:
        """Raises ApiError and what the network raises; then the rest is left to the next pass."""
        for gone in memory.refused.keys() - {(each.kind, each.name) for each in plan.refused}:
            del memory.refused[gone]  # the job no longer asks for it
        memory.stormed_at |= dict.fromkeys(plan.storms, plan.at)
        outcome = await self._apply_children(plan, memory)
        if not outcome.made:
            return outcome
        await self._delete(plan, _without_successor(plan.children.prune, memory), memory)
        waits = outcome.waits
        for replacement in plan.replace:
            waits |= not await self.repair.replace(plan, replacement, memory)
        await self._delete(plan, plan.delete, memory)
        for owner in plan.owners:
            await self.repair.name_owner(plan, owner, memory)
        await self._delete(plan, plan.restart, memory)
        for mark in plan.marks:
            await self.repair.mark(plan, mark)
        if plan.expire is not None and not waits:
            await self.repair.delete(plan, plan.expire, memory)
        return ApplyOutcome(waits=waits, refused=outcome.refused)

    async def _apply_children(self, plan: Plan, memory: JobMemory) -> ApplyOutcome:
        """Whether a child was refused that the status does not name yet, or has been replaced."""
        news, waits, reverts = False, False, {each.key: each for each in plan.children.reverts}
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
            marks = frozenset(each.mark for each in drift(child, answer))
            memory.settle((kind, name), applied, marks)
            self.metrics.writes.labels(kind).inc()
            log.info("applied", job=plan.job, kind=kind, name=name)
            revert = reverts.get((kind, name))
            if revert is not None:
                log.warning("reverted", job=plan.job, kind=kind, name=name, fields=revert.text)
                if memory.revert((kind, name), plan.at):
                    await self.repair.recorder.tell(revert.event)
        return ApplyOutcome(waits=waits, refused=news)

    async def _check(self, plan: Plan, memory: JobMemory) -> dict[tuple[str, str], bool]:
        """The workloads that the API server would refuse, with whether that is news."""
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
        for each in deletions:
            if each.key is not None:
                memory.deleted_at[each.key] = plan.at
            if await self.repair.delete(plan, each, memory):
                log.info(
                    "deleted", job=plan.job, kind=each.kind, name=each.name, reason=each.reason
                )
                if each.event is not None:
                    await self.repair.recorder.tell(each.event)


def _refuse(plan: Plan, memory: JobMemory, child: Object, error: ApiError) -> bool:
    key, applied = key_of(child), child["metadata"]["annotations"][Annotation.APPLIED]
    log.warning("refused", job=plan.job, kind=key[0], name=key[1], error=str(error))
    return memory.refuse(key, applied, error.message, plan.at, error.status)


def _without_successor(prune: Iterable[Deletion], memory: JobMemory) -> tuple[Deletion, ...]:
    """Of the children that are no longer asked for those that no refused one may replace."""
    waits = {kind for (kind, _), each in memory.refused.items() if QUOTA not in each.message}
    return tuple(each for each in prune if not waits & {"StatefulSet", each.kind})


def _is_outdated(child: Object, error: ApiError) -> bool:
    return isinstance(error, ConflictError) and "uid" in child["metadata"]
