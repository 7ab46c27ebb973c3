"""One pass over one job: observe, decide, apply, say. Level-triggered; every step may be the last.

The order is part of the protocol: a slot's owner is retired at the registrar, the lost node is in
the template's exclusions and its controller has seen that, and only then the pod is deleted.
"""

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube import conditions, events, observe, phase, placement, rollout, sessions
from atoll_operator.kube import status as statuses
from atoll_operator.kube.api import KINDS, LEASES, Api, NotFoundError, jobs_path, path
from atoll_operator.kube.children import Family, Object, Owner, Wanted, key_of, syncer_region
from atoll_operator.kube.memory import Memory, Replacement
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import (
    LEARNER_ROLE,
    SHARD_PORT,
    SHARD_ROLE,
    Annotation,
    evaluator_name,
    learner_set,
    shard_name,
)
from atoll_operator.kube.observe import Pod, Workload
from atoll_operator.kube.phase import Kind, Phase
from atoll_operator.kube.placement import Placement
from atoll_operator.kube.queue import Key
from atoll_operator.kube.reflector import Nodes
from atoll_operator.kube.settings import Settings
from atoll_operator.kube.syncers import Syncers
from atoll_operator.spec import Job, StorageType, from_object
from atoll_protos.errors import SpecError
from atoll_protos.names import ExitCode, Label

POLL_SECONDS = 1.0  # while something runs
OBSERVE_SECONDS = 30.0  # a whole look at the API server, however quiet the watches are
WRITE_SECONDS = 10.0  # between two writes of mere progress
AGAIN_SECONDS = 0.3
MANAGED_BY = "atoll.dev/operator"

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Sight:
    """All that one pass knows."""

    raw: Object
    job: Job
    memory: Memory
    now: float
    wall: str
    pods: list[Pod]
    workloads: dict[str, Workload]
    replies: list[pb.StatusReply | None]
    phase: Phase = field(default_factory=lambda: Phase(kind=Kind.RUNNING, reason="", message=""))
    placement: Placement = field(default_factory=Placement)
    absent: Mapping[str, float] = field(default_factory=dict)

    @property
    def registrar(self) -> pb.StatusReply | None:
        """Shard 0's word, if it is young enough."""
        return self.replies[0] if self.replies else None

    @property
    def namespace(self) -> str:
        """Of the job."""
        return str(self.raw["metadata"]["namespace"])


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Passes over jobs, one at a time for each."""

    api: Api
    syncers: Syncers
    nodes: Nodes
    settings: Settings
    metrics: Metrics
    memories: dict[Key, Memory] = field(default_factory=dict)

    def touch(self, key: Key) -> None:
        """Something of this job has changed."""
        memory = self.memories.get(key)
        if memory is not None:
            memory.dirty = True

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until the next pass, None when an event must come first."""
        with self.metrics.pass_seconds.time():
            before = self.api.writes
            try:
                return await self._pass(key)
            finally:
                if self.api.writes != before and key in self.memories:
                    self.memories[key].dirty = True  # what was written is seen before it is judged

    async def _pass(self, key: Key) -> float | None:
        raw = await self._job(key)
        if raw is None:
            self.memories.pop(key, None)
            return None
        managed_by = raw["spec"].get("managedBy")
        if "deletionTimestamp" in raw["metadata"] or managed_by not in (None, MANAGED_BY):
            return None
        now, wall = time.monotonic(), rfc3339(time.time())
        try:
            job = from_object(raw)
        except SpecError as error:
            await self._write(raw, conditions.rejected("Invalid", str(error)), {}, now, wall)
            return None
        sight = await self._observe(key, raw, job, now, wall)
        self._decide(sight)
        await self._apply(sight)
        again = await self._replace(sight)
        await self._name_owners(sight)
        await self._restart(sight)
        await self._say(sight)
        return await self._pause(sight, again)

    # ------------------------------------------------------------ observe

    async def _job(self, key: Key) -> Object | None:
        memory, now = self.memories.get(key), time.monotonic()
        if memory and not memory.dirty and now - memory.observed_at < OBSERVE_SECONDS:
            return memory.job
        raw = await self.api.get(jobs_path(*key))
        if raw is None:
            return None
        uid = raw["metadata"]["uid"]
        if memory is None or memory.uid != uid:
            memory = self.memories[key] = Memory(uid=uid)
        memory.job, memory.dirty, memory.observed_at = raw, False, now
        memory.children = await self._children(*key)
        return raw

    async def _children(self, namespace: str, name: str) -> list[Object]:
        found = []
        for kind, (version, _) in KINDS.items():
            for each in await self.api.list(path(kind, namespace), f"{Label.JOB}={name}"):
                found.append({**each, "kind": kind, "apiVersion": version})
        return found

    async def _observe(self, key: Key, raw: Object, job: Job, now: float, wall: str) -> Sight:
        memory = self.memories[key]
        raw_pods = [each for each in memory.children if each["kind"] == "Pod"]
        pods = [observe.pod(each) for each in raw_pods]
        workloads = observe.by_name(
            [
                observe.workload(each)
                for each in memory.children
                if each["kind"] in ("StatefulSet", "Deployment")
            ]
        )
        shards = job.spec.syncer.shards
        addresses = self._addresses(job, pods)
        stale = set(memory.addresses.values()) - set(addresses.values())
        await self.syncers.forget([each for each in stale if each])
        memory.addresses = addresses
        if any(addresses.values()):
            replies = await self.syncers.status([addresses[n] for n in range(shards)])
            now = time.monotonic()
            memory.take(replies, now, wall)
        else:
            memory.heard_at.clear()
        return Sight(
            raw=raw,
            job=job,
            memory=memory,
            now=now,
            wall=wall,
            pods=pods,
            workloads=workloads,
            replies=memory.fresh(shards, now),
        )

    def _addresses(self, job: Job, pods: Sequence[Pod]) -> dict[int, str]:
        """By shard: as other clusters reach it, or its newest pod's own address."""
        shards = range(job.spec.syncer.shards)
        if not self.settings.serves(syncer_region(job)):
            endpoints = job.spec.syncer.endpoints
            return {n: endpoints[n] if endpoints else "" for n in shards}
        found = dict.fromkeys(shards, "")
        for pod in sorted(pods, key=lambda pod: not pod.terminating):
            if pod.role == SHARD_ROLE and pod.shard in found and pod.address:
                found[pod.shard] = f"{pod.address}:{SHARD_PORT}"
        return found

    # ------------------------------------------------------------ decide

    def _decide(self, sight: Sight) -> None:
        memory, job = sight.memory, sight.job
        final_seconds = None if memory.final_at is None else sight.now - memory.final_at
        before = _before(sight.raw)
        sight.phase = phase.decide(job, before, sight.pods, sight.registrar, final_seconds)
        sight.absent = memory.note_absent(sight.pods, sight.registrar, sight.now)
        if not self.nodes.ready or sight.phase.kind is Kind.REJECTED:
            return
        judged = sessions.judge(
            sight.pods, sight.registrar, sight.absent, memory.silent_seconds(sight.now)
        )
        nodes = self.nodes.look(sight.now)
        sight.placement = placement.decide(
            placement.Seen(
                pods=[_homed(pod, job) for pod in sight.pods],
                nodes=nodes,
                dead=judged.dead,
                unseen=judged.unseen,
                counts=_counts(sight),
                failure=job.spec.failure,
                region_nodes=self._region_nodes(job, nodes),
                released=Annotation.RELEASE_HOLD
                in (sight.raw["metadata"].get("annotations") or {}),
            )
        )

    def _region_nodes(
        self, job: Job, nodes: Mapping[str, observe.Node]
    ) -> dict[str, list[observe.Node]]:
        spans = self.settings.spans_regions
        return {
            region.name: [n for n in nodes.values() if not spans or n.region == region.name]
            for region in job.spec.regions
        }

    def _wanted(self, sight: Sight) -> Wanted:
        kind, job = sight.phase.kind, sight.job
        runs = kind in (Kind.RUNNING, Kind.FINISHING)
        learners_left = any(pod.role == LEARNER_ROLE for pod in sight.pods)
        keeps = job.spec.syncer.storage.type is StorageType.EPHEMERAL and _has_run(sight)
        shards = runs or (
            kind is Kind.SUSPENDED and _shards_exist(sight) and (learners_left or keeps)
        )
        excluded, replaced = self._exclusions(sight)
        return Wanted(
            learners=kind is Kind.RUNNING,
            shards=shards,
            evaluator=runs,
            excluded=excluded,
            replaced=replaced,
        )

    def _exclusions(self, sight: Sight) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Lost nodes by child: once something is replaced, and until they are well again.

        A shard's Deployment keeps what it has until its own pod is lost, for a change restarts it.
        """
        lost = {n for n, state in sight.placement.lost.items() if state is not placement.State.GONE}
        excluded: dict[str, tuple[str, ...]] = {}
        replaced: dict[str, str] = {}
        moved: dict[str, list[Pod]] = {}
        for each in sight.placement.replace:
            moved.setdefault(_child_name(sight.job, each.pod), []).append(each.pod)
        for name, live in sight.workloads.items():
            kept = set(live.excluded)
            if live.kind == "StatefulSet":
                kept &= lost
            if name in moved:
                kept |= lost
            excluded[name] = tuple(sorted(kept))
            counts = dict(live.replaced)
            for pod in moved.get(name, []):
                count, uid = counts.get(pod.ordinal, (0, ""))
                if uid != pod.uid:
                    counts[pod.ordinal] = (count + 1, pod.uid)
            replaced[name] = observe.replaced_text(counts)
        return excluded, replaced

    # ------------------------------------------------------------ apply

    async def _apply(self, sight: Sight) -> None:
        if sight.phase.kind is Kind.REJECTED:
            return
        if sight.phase.kind is Kind.SUSPENDED and not sight.workloads:
            return  # created suspended: not even an empty set
        metadata = sight.raw["metadata"]
        owner = Owner(namespace=sight.namespace, name=sight.job.name, uid=metadata["uid"])
        wanted = self._wanted(sight)
        if sight.phase.kind.over and not _written_over(sight.raw):
            wanted = Wanted(
                learners=False, shards=True, evaluator=False,
                excluded=wanted.excluded, replaced=wanted.replaced,
            )  # fmt: skip
        family = Family(job=sight.job, owner=owner, settings=self.settings, wanted=wanted)
        objects = family.objects()
        held = self._held_shards(sight, objects)
        live = {key_of(each): each for each in sight.memory.children}
        for each in objects:
            known = live.get(key_of(each))
            applied = (known or {}).get("metadata", {}).get("annotations", {})
            if (
                applied.get(Annotation.APPLIED)
                == each["metadata"]["annotations"][Annotation.APPLIED]
            ):
                continue
            if each["metadata"]["name"] in held:
                continue
            await self.api.apply(each)
            self.metrics.writes.labels(each["kind"]).inc()
            log.info(
                "applied", job=sight.job.name, kind=each["kind"], name=each["metadata"]["name"]
            )
        await self._prune(sight, {key_of(each) for each in objects})

    def _held_shards(self, sight: Sight, objects: Sequence[Object]) -> frozenset[str]:
        lost = {_child_name(sight.job, each.pod) for each in sight.placement.replace}
        shards = []
        for each in objects:
            if each["kind"] == "Deployment" and Label.SHARD in each["metadata"]["labels"]:
                annotations = each["spec"]["template"]["metadata"]["annotations"]
                live = sight.workloads.get(each["metadata"]["name"])
                shards.append((live, annotations[Annotation.TEMPLATE]))
        ready = sum(pod.role == SHARD_ROLE and pod.ready for pod in sight.pods)
        if sight.phase.kind is not Kind.RUNNING:
            return frozenset()
        return rollout.shards_to_hold(shards, ready) - lost

    async def _prune(self, sight: Sight, wanted: set[tuple[str, str]]) -> None:
        """What the job no longer asks for; never pods, claims, or files that pods still read."""
        uid = sight.raw["metadata"]["uid"]
        used = {
            volume["configMap"]["name"]
            for each in sight.memory.children
            if each["kind"] == "Pod"
            for volume in each["spec"].get("volumes", [])
            if "configMap" in volume
        }
        for each in sight.memory.children:
            kind, name = key_of(each)
            owners = each["metadata"].get("ownerReferences") or []
            if kind in ("Pod", "PersistentVolumeClaim") or (kind, name) in wanted or name in used:
                continue
            if any(owner["uid"] == uid for owner in owners):
                await self.api.delete(path(kind, sight.namespace, name), each["metadata"]["uid"])

    # ------------------------------------------------------------ pods

    async def _replace(self, sight: Sight) -> bool:
        """Delete pods of lost nodes; whether one waits for its controller."""
        waits = False
        for each in sight.placement.replace:
            pod = each.pod
            live = sight.workloads.get(_child_name(sight.job, pod))
            excluded = live is not None and live.observed and each.node in live.excluded
            gone = sight.placement.lost.get(each.node) is placement.State.GONE
            if not excluded and not gone:
                waits = True
                continue
            if not await self._still_silent(sight, each.node):
                continue
            if pod.role == LEARNER_ROLE and not await self._retire(sight, pod):
                waits = True
                continue
            if await self.api.delete(path("Pod", sight.namespace, pod.name), pod.uid, at_once=True):
                await self._replaced(sight, each)
        for pod in sight.pods:
            superseded = pod.exit_code == ExitCode.SUPERSEDED and not pod.terminating
            if placement.stranded(pod, sight.placement.lost) or superseded:
                await self.api.delete(path("Pod", sight.namespace, pod.name), pod.uid)
        return waits

    async def _still_silent(self, sight: Sight, node: str) -> bool:
        """The last look before a delete, past all caches."""
        if sight.placement.lost.get(node) is not placement.State.SILENT:
            return True
        lease = await self.api.get(f"{LEASES}/{node}")
        if lease is None:
            return True
        known = self.nodes.leases.leases.get(node)
        return known is not None and lease["spec"].get("renewTime") == known.renewed

    async def _retire(self, sight: Sight, pod: Pod) -> bool:
        """Nobody owns the slot from now on; with the registrar away its incarnations protect."""
        word = sessions.to_retire(pod, sight.registrar)
        address = sight.memory.addresses.get(0, "")
        if word is None or not address:
            return True
        said = await self.syncers.set_owner(address, pod.slot, "", word)
        self.metrics.owners.inc()
        return said == word + 1

    async def _replaced(self, sight: Sight, each: placement.Replace) -> None:
        pod = each.pod
        lease = self.nodes.leases.leases.get(each.node)
        lost_at = lease.changed_at if lease else sight.now
        sight.memory.replacements[pod.name if pod.role == LEARNER_ROLE else pod.role] = Replacement(
            role=pod.role, name=pod.name, old_uid=pod.uid, lost_at=lost_at
        )
        self.metrics.replacements.labels(pod.role).inc()
        self.metrics.deletion_seconds.labels(pod.role).observe(time.monotonic() - lost_at)
        log.warning(
            "replaced", job=sight.job.name, pod=pod.name, node=each.node, reason=each.reason
        )
        message = f"{pod.name} is made anew on another node: {each.reason}"
        await self._event(events.event(sight.raw, "NodeLost", message, sight.wall, warning=True))

    async def _name_owners(self, sight: Sight) -> None:
        """The registrar waits for our word on pods newer than its last one (rule 4)."""
        address = sight.memory.addresses.get(0, "")
        replaced = {each.pod.uid for each in sight.placement.replace}
        for pod, word in sessions.to_name(sight.pods, sight.registrar, sight.absent):
            live = await self.api.get(path("Pod", sight.namespace, pod.name))
            if live is None or live["metadata"]["uid"] != pod.uid or pod.uid in replaced:
                continue
            last = word
            if last is None:  # a word that is not the last changes nothing and is told the last
                sight.memory.absent_since[pod.slot] = sight.now  # and wait before the next try
                last = await self.syncers.set_owner(address, pod.slot, pod.uid, 0)
            if last is not None:
                await self.syncers.set_owner(address, pod.slot, pod.uid, last)
                self.metrics.owners.inc()
                log.info("named owner", job=sight.job.name, slot=pod.slot, pod=pod.uid)

    async def _restart(self, sight: Sight) -> None:
        """Pods of an old template, region by region."""
        if sight.phase.kind is not Kind.RUNNING or sight.registrar is None:
            return
        job = sight.job
        training = {s.slot for s in sight.registrar.slots if s.state == statuses.TRAINING}
        live = {
            r.name: sight.workloads.get(learner_set(job.name, r.name)) for r in job.spec.regions
        }
        wanted = {region: set_.template for region, set_ in live.items() if set_ and set_.observed}
        learners = [
            pod for pod in sight.pods
            if pod.role == LEARNER_ROLE and pod.region in wanted
            and pod.ordinal < next(r.learners for r in job.spec.regions if r.name == pod.region)
        ]  # fmt: skip
        chosen = rollout.next_to_restart(
            [r.name for r in job.spec.regions], learners, wanted, training, job.spec.sync.quorum
        )
        for pod in chosen:
            await self.api.delete(path("Pod", sight.namespace, pod.name), pod.uid)
            log.info("restarting for a new template", job=job.name, pod=pod.name)

    # ------------------------------------------------------------ say

    async def _say(self, sight: Sight) -> None:
        found = conditions.decide(self._facts(sight))
        old = sight.raw.get("status") or {}
        over = sight.phase.kind.over and _written_over(sight.raw)
        if over:
            body = {k: v for k, v in old.items() if k not in ("conditions", "observedGeneration")}
        else:
            body = statuses.body(
                statuses.View(
                    job=sight.job,
                    pods=sight.pods,
                    replies=sight.replies,
                    asked_at=sight.memory.asked_at or sight.wall,
                    replaced=_replaced_by_region(sight),
                    served=[r.name for r in sight.job.spec.regions if self.settings.serves(r.name)],
                    idle=sight.phase.kind is not Kind.RUNNING and not sight.pods,
                )
            )
            body |= _times(sight, old)
        if sight.phase.kind is Kind.COMPLETE and phase.export_url(sight.job):
            body["exportURL"] = phase.export_url(sight.job)
        self._measure(sight)
        await self._write(sight.raw, found, body, sight.now, sight.wall)

    def _facts(self, sight: Sight) -> conditions.Facts:
        job, registrar = sight.job, sight.registrar
        live = None
        if registrar is not None:
            live = sum(slot.state == statuses.TRAINING for slot in registrar.slots)
        shard_problems, losses = _problems(sight)
        steps = job.spec.steps or 0
        behind = [str(r.shard) for r in sight.replies if r is not None and r.steps != steps]
        moved = sight.memory.tick_at or sight.now
        return conditions.Facts(
            phase=sight.phase,
            shards=job.spec.syncer.shards,
            shard_states=tuple(reply.state if reply else None for reply in sight.replies),
            shard_problems=tuple(shard_problems),
            desired=job.spec.learners,
            live=live,
            quorum=job.spec.sync.quorum,
            losses=tuple(losses),
            held=tuple(each.message for each in sight.placement.held),
            drift=(f"spec.steps is not yet known to shard {', '.join(behind)}",) if behind else (),
            stalled_seconds=sight.now - moved,
            ephemeral=job.spec.syncer.storage.type is StorageType.EPHEMERAL,
            pods_left=sum(pod.role == LEARNER_ROLE for pod in sight.pods),
            export_trouble="; ".join(r.reason for r in sight.replies if r is not None and r.reason),
        )

    def _measure(self, sight: Sight) -> None:
        """Replacements that train or serve again."""
        for key, each in list(sight.memory.replacements.items()):
            if each.role == LEARNER_ROLE:
                new = [p for p in sight.pods if p.name == each.name and p.uid != each.old_uid]
                slots = sight.registrar.slots if sight.registrar else []
                done = any(
                    slot.uid == pod.uid and slot.state == statuses.TRAINING
                    for pod in new for slot in slots
                )  # fmt: skip
            else:
                new = [p for p in sight.pods if p.role == each.role and p.uid != each.old_uid]
                done = bool(new) and all(p.ready for p in new)
            if done:
                seconds = time.monotonic() - each.lost_at
                self.metrics.replacement_seconds.labels(each.role).observe(seconds)
                log.info("replacement works", pod=each.name, seconds=round(seconds, 1))
                del sight.memory.replacements[key]

    async def _write(
        self,
        raw: Object,
        found: Sequence[conditions.Condition],
        body: Mapping[str, Any],
        now: float,
        wall: str,
    ) -> None:
        """One write a pass, and none when nothing is new."""
        metadata, old = raw["metadata"], raw.get("status") or {}
        generation = metadata["generation"]
        known = old.get("conditions") or []
        merged = conditions.merged(known, found, generation, wall)
        new = {**body, "observedGeneration": generation, "conditions": merged}
        memory = self.memories.get((metadata["namespace"], metadata["name"]))
        if new == old:
            return
        urgent = known != merged or _lasting(new) != _lasting(old)
        if memory is not None and not urgent and now - memory.written_at < WRITE_SECONDS:
            return
        try:
            await self.api.apply_status(metadata["namespace"], metadata["name"], new)
        except NotFoundError:
            return
        if memory is not None:
            memory.written_at = now
        self.metrics.writes.labels("Status").inc()
        for each in conditions.transitions(known, found):
            await self._event(events.of_transition(raw, each, wall))

    async def _event(self, event: Mapping[str, Any]) -> None:
        await self.api.create_event(event["metadata"]["namespace"], event)
        self.metrics.writes.labels("Event").inc()

    async def _pause(self, sight: Sight, again: bool) -> float | None:
        kind = sight.phase.kind
        if again:
            return AGAIN_SECONDS
        if kind is Kind.REJECTED:
            return None
        if kind.over:
            return await self._expire(sight)
        if kind is Kind.SUSPENDED and not sight.pods:
            return OBSERVE_SECONDS * 10
        return POLL_SECONDS

    async def _expire(self, sight: Sight) -> float | None:
        """Delete a finished job after its time to live."""
        ttl = sight.job.spec.ttl_seconds_after_finished
        completed = (sight.raw.get("status") or {}).get("completionTime")
        if not completed or not _written_over(sight.raw):
            return POLL_SECONDS
        if any(not pod.terminating for pod in sight.pods):
            return POLL_SECONDS
        if ttl is None:
            return OBSERVE_SECONDS * 10
        left = ttl - (time.time() - seconds_of(completed))
        if left > 0:
            return left + 0.1
        metadata = sight.raw["metadata"]
        where = jobs_path(sight.namespace, metadata["name"])
        await self.api.delete(where, metadata["uid"])
        return None


# ---------------------------------------------------------------- small readings


def rfc3339(seconds: float) -> str:
    """In whole seconds, UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """The reverse of `rfc3339`."""
    return datetime.datetime.fromisoformat(text).timestamp()


def _condition(raw: Object, kind: str) -> Mapping[str, str] | None:
    for each in (raw.get("status") or {}).get("conditions") or []:
        if each["type"] == kind and each["status"] == conditions.TRUE:
            found: Mapping[str, str] = each
            return found
    return None


def _before(raw: Object) -> phase.Before:
    started = (raw.get("status") or {}).get("startTime")
    return phase.Before(
        complete=_condition(raw, "Complete"),
        failed=_condition(raw, "Failed"),
        running_seconds=time.time() - seconds_of(started) if started else None,
    )


def _written_over(raw: Object) -> bool:
    return bool(_condition(raw, "Complete") or _condition(raw, "Failed"))


def _times(sight: Sight, old: Mapping[str, Any]) -> dict[str, str]:
    """startTime as of the last resume, completionTime once."""
    found = {}
    if sight.phase.kind is not Kind.SUSPENDED:
        found["startTime"] = old.get("startTime", sight.wall)
    if sight.phase.kind.over:
        found["completionTime"] = old.get("completionTime", sight.wall)
    return found


def _has_run(sight: Sight) -> bool:
    return bool((sight.raw.get("status") or {}).get("run")) or any(
        reply is not None and reply.run for reply in sight.replies
    )


def _shards_exist(sight: Sight) -> bool:
    return any(
        live.kind == "Deployment" and live.replicas and "-syncer-" in name
        for name, live in sight.workloads.items()
    )


def _homed(pod: Pod, job: Job) -> Pod:
    """Shards and evaluators live in the syncer's region."""
    if pod.region:
        return pod
    return observe.replace_region(pod, syncer_region(job))


def _child_name(job: Job, pod: Pod) -> str:
    if pod.role == LEARNER_ROLE:
        return learner_set(job.name, pod.region)
    return shard_name(job.name, pod.shard) if pod.role == SHARD_ROLE else evaluator_name(job.name)


def _counts(sight: Sight) -> dict[str, int]:
    """Replacements so far, by pod name; one that is under way is not counted against itself."""
    found: dict[str, int] = {}
    for pod in sight.pods:
        live = sight.workloads.get(_child_name(sight.job, pod))
        if live is None or pod.role != LEARNER_ROLE:
            continue
        count, uid = live.replaced.get(pod.ordinal, (0, ""))
        found[pod.name] = count - 1 if uid == pod.uid else count
    return found


def _replaced_by_region(sight: Sight) -> dict[str, int]:
    found = {}
    for region in sight.job.spec.regions:
        live = sight.workloads.get(learner_set(sight.job.name, region.name))
        found[region.name] = sum(count for count, _ in live.replaced.values()) if live else 0
    return found


def _problems(sight: Sight) -> tuple[list[str], list[str]]:
    """What is wrong with shards' and with learners' pods, in words."""
    shards: list[str] = []
    learners: list[str] = []
    lost = sight.placement.lost
    for pod in sight.pods:
        said = ""
        if pod.node in lost:
            said = f"{pod.name} is on {pod.node}, which is {lost[pod.node]}"
        elif pod.unschedulable:
            said = f"{pod.name} waits for a node: {pod.unschedulable}"
        elif pod.waiting not in ("", "ContainerCreating", "PodInitializing"):
            code = "" if pod.exit_code is None else f", last exit code {pod.exit_code}"
            said = f"{pod.name} waits: {pod.waiting}{code}"
        if said:
            (shards if pod.role == SHARD_ROLE else learners).append(said)
    learners += [
        f"{name} has used its spec.failure.maxReplacementsPerSlot"
        for name in sight.placement.exhausted
    ]
    return sorted(shards), sorted(learners)


def _lasting(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without what moves all the time."""
    kept = {k: v for k, v in status.items() if k not in ("progress", "columns", "conditions")}
    columns = status.get("columns") or {}
    return {**kept, "columns": {k: v for k, v in columns.items() if k != "progress"}}
