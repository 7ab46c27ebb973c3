"""The third phase of a pass: does what the plan says, in an order that is part of the protocol.

The order, and why it is so:

1. *Children are applied*, first those that pods refer to. The API server tries
   each workload with a new template, and one of its pods, in a dry run (`trial`); what it refuses
   is not written, and of a new job nothing is. Then certificates are made, which pods mount
   (`secrets`); where one is refused the pass ends. The StatefulSet of a pod on a lost node gets its
   exclusion here; the pod itself is deleted in a later pass, when its controller has observed the
   exclusion.
2. *Children that are no longer asked for are deleted*, after what replaces them is there.
3. *Pods on lost nodes are replaced* (`repair.replace`): last look at the Lease, retire the slot's
   owner, delete. The delete comes only after the registrar has taken the word, because from the
   delete on two processes of one slot may run, and only the word keeps the older one out.
4. *Pods that cannot go on are deleted*: stranded ones, and those that a shard refused for good.
5. *Owners are named* (`repair.name_owner`), after a fresh look at the pod.
6. *Pods of an old template are restarted*, as many as the quorum can spare.
7. *Learners' pods are marked* as in training or not, by which they are Ready (`plan.readiness`).
8. *A finished job is deleted* when its time to live is over. The plan asks for it only in a pass
   that has no status to write.

A child that the API server refuses (a quota, an admission rule, a mistake in a template) stops no
other child: it is noted with the server's message, the status says it, and it is tried again after
1 to 60 s, or at once when the job is edited. What is refused may replace a child of step 2, so
nothing is deleted there while a StatefulSet is refused, and nothing of the kind of another child
that is. Where a quota is used up it is deleted all the same, since that may make room. Where
another's object has the name of a child (`plan.ownership`), the child is refused in the same way,
and nothing is written.

Any other step may fail and end the pass; its status is written all the same, and the next pass
observes and plans again. That is safe because every step is idempotent: server-side apply states
the whole object, a delete carries the UID, and an owner's word carries the number of the word
before it.

Nothing here decides. The only branches are answers that the plan cannot know in advance.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from atoll_operator.kube.edges.api import (
    TOO_MANY_REQUESTS,
    Api,
    ApiError,
    ConflictError,
    path,
)
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.objects import key_of
from atoll_operator.kube.observation import Object
from atoll_operator.kube.plan.actions import Deletion, Plan
from atoll_operator.kube.plan.changes import alike
from atoll_operator.kube.plan.drift import differences
from atoll_operator.kube.plan.ownership import obstacle
from atoll_operator.kube.repair import Repair
from atoll_operator.kube.secrets import Secrets
from atoll_operator.kube.trial import QUOTA, refusal

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
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

    async def apply(self, plan: Plan, memory: Memory) -> Outcome:
        """Raises ApiError and what the network raises; then the rest is left to the next pass."""
        memory.held = plan.held
        for gone in memory.refused.keys() - plan.refused:
            del memory.refused[gone]  # the job no longer asks for it
        memory.stormed_at |= dict.fromkeys(plan.storms, plan.at)
        outcome = await self._apply_children(plan, memory)
        if not outcome.made:
            return outcome
        await self._delete(plan, _without_successor(plan.prune, memory), memory)
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
        return Outcome(waits=waits, refused=outcome.refused)

    async def _apply_children(self, plan: Plan, memory: Memory) -> Outcome:
        """Whether a child was refused that the status does not name yet, or has been replaced."""
        news, waits, reverts = False, False, {each.key: each for each in plan.reverts}
        wrong = await self._check(plan, memory)
        news |= any(wrong.values())
        goes = plan.partly or not wrong
        if goes and not await self.secrets.make(plan, memory):
            return Outcome(refused=True, made=False)
        for child in plan.apply if goes else ():
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
                news |= memory.refuse((kind, name), applied, error.message, plan.at, error.status)
                log.warning("refused", job=plan.job, kind=kind, name=name, error=str(error))
                continue
            memory.refused.pop((kind, name), None)
            memory.conflicts.discard((kind, name))
            marks = frozenset(each.mark for each in differences(child, answer))
            memory.settle((kind, name), applied, marks)
            self.metrics.writes.labels(kind).inc()
            log.info("applied", job=plan.job, kind=kind, name=name)
            revert = reverts.get((kind, name))
            if revert is not None:
                log.warning("reverted", job=plan.job, kind=kind, name=name, fields=revert.text)
                if memory.revert((kind, name), plan.at):
                    await self.repair.recorder.tell(revert.event)
        return Outcome(waits=waits, refused=news)

    async def _check(self, plan: Plan, memory: Memory) -> dict[tuple[str, str], bool]:
        """The workloads that the API server would refuse, with whether that is news."""
        wrong: dict[tuple[str, str], bool] = {}
        for group in alike(plan.check):
            error = await refusal(self.api, group[0])
            for child in group:
                kind, name = key_of(child)
                if error is not None:
                    applied = child["metadata"]["annotations"][Annotation.APPLIED]
                    wrong[kind, name] = memory.refuse(
                        (kind, name), applied, error.message, plan.at, error.status
                    )
                    log.warning("refused", job=plan.job, kind=kind, name=name, error=str(error))
                elif not plan.apply:  # else what comes of it is known when it is applied
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

    async def _delete(self, plan: Plan, deletions: Iterable[Deletion], memory: Memory) -> None:
        for each in deletions:
            if each.key is not None:
                memory.deleted_at[each.key] = plan.at
            if await self.repair.delete(plan, each, memory):
                log.info(
                    "deleted", job=plan.job, kind=each.kind, name=each.name, reason=each.reason
                )
                if each.event is not None:
                    await self.repair.recorder.tell(each.event)


def _without_successor(prune: Iterable[Deletion], memory: Memory) -> tuple[Deletion, ...]:
    """Of the children that are no longer asked for those that no refused one may replace."""
    waits = {kind for (kind, _), each in memory.refused.items() if QUOTA not in each.message}
    return tuple(each for each in prune if not waits & {"StatefulSet", each.kind})


def _is_outdated(child: Object, error: ApiError) -> bool:
    """Whether a child was not written because another object has taken its place."""
    return isinstance(error, ConflictError) and "uid" in child["metadata"]
