"""One pass over one job: observe, decide, apply, say. Level-triggered; every step may be the last.

The order is part of the protocol: a slot's owner is retired at the registrar, the lost node is in
the template's exclusions and its controller has seen that, and only then the pod is deleted.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from atoll_operator.api import conditions
from atoll_operator.api.conditions import Kind
from atoll_operator.api.manifest import from_object
from atoll_operator.api.spec import Job, StorageType
from atoll_operator.kube import observe, readings
from atoll_operator.kube.edges.api import KINDS, Api, jobs_path, path
from atoll_operator.kube.edges.queue import Key
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_PORT, SHARD_ROLE, Annotation
from atoll_operator.kube.observe import Pod
from atoll_operator.kube.plan import nodes as placement
from atoll_operator.kube.plan import phase, rollout, sessions
from atoll_operator.kube.plan.children import Family, Object, Owner, Wanted, key_of, syncer_region
from atoll_operator.kube.readings import Sight
from atoll_operator.kube.repair import Repair
from atoll_operator.kube.settings import Settings
from atoll_operator.kube.speaker import Speaker
from atoll_protos.errors import SpecError
from atoll_protos.names import Label

POLL_SECONDS = 1.0  # while something runs
OBSERVE_SECONDS = 30.0  # a whole look at the API server, however quiet the watches are
AGAIN_SECONDS = 0.3
MANAGED_BY = "atoll.dev/operator"

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Passes over jobs, one at a time for each."""

    api: Api
    syncers: Syncers
    nodes: Nodes
    settings: Settings
    metrics: Metrics
    repair: Repair
    speaker: Speaker
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
        memory = self.memories[key]
        now, wall = time.monotonic(), readings.rfc3339(time.time())
        try:
            job = from_object(raw)
        except SpecError as error:
            found = conditions.rejected("Invalid", str(error))
            await self.speaker.write(raw, memory, found, {}, now=now, wall=wall)
            return None
        sight = await self._observe(key, raw, job, now, wall)
        self._decide(sight)
        await self._apply(sight)
        again = await self.repair.replace(sight)
        await self.repair.name_owners(sight)
        await self.repair.restart(sight)
        self.repair.measure(sight)
        await self.speaker.say(sight)
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
        before = readings.before(sight.raw, time.time())
        sight.phase = phase.decide(job, before, sight.pods, sight.registrar, final_seconds)
        sight.absent = memory.note_absent(sight.pods, sight.registrar, sight.now)
        if not self.nodes.ready or sight.phase.kind is Kind.REJECTED:
            return
        judged = sessions.judge(
            sight.pods, sight.registrar, sight.absent, memory.silent_seconds(sight.now)
        )
        known = self.nodes.look(sight.now)
        sight.placement = placement.decide(
            placement.Seen(
                pods=[readings.homed(pod, job) for pod in sight.pods],
                nodes=known,
                dead=judged.dead,
                unseen=judged.unseen,
                counts=readings.counts(sight),
                failure=job.spec.failure,
                region_nodes=self._region_nodes(job, known),
                released=Annotation.RELEASE_HOLD
                in (sight.raw["metadata"].get("annotations") or {}),
                settling=memory.settling(job.spec.failure.node_loss_seconds, sight.now),
            )
        )
        memory.stormed_at |= dict.fromkeys(sight.placement.storms, sight.now)

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
        keeps = job.spec.syncer.storage.type is StorageType.EPHEMERAL and readings.has_run(sight)
        shards = runs or (
            kind is Kind.SUSPENDED and readings.shards_exist(sight) and (learners_left or keeps)
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
            moved.setdefault(readings.child_name(sight.job, each.pod), []).append(each.pod)
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
        if sight.phase.kind.over and not readings.written_over(sight.raw):
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
        lost = {readings.child_name(sight.job, each.pod) for each in sight.placement.replace}
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
        if not completed or not readings.written_over(sight.raw):
            return POLL_SECONDS
        if any(not pod.terminating for pod in sight.pods):
            return POLL_SECONDS
        if ttl is None:
            return OBSERVE_SECONDS * 10
        left = ttl - (time.time() - readings.seconds_of(completed))
        if left > 0:
            return left + 0.1
        metadata = sight.raw["metadata"]
        where = jobs_path(sight.namespace, metadata["name"])
        await self.api.delete(where, metadata["uid"])
        return None
