"""The first phase of a pass: what the watches and the shards show becomes an Observation.

Objects come from the cache (`cache`), so a pass asks the API server nothing, and what a pass has
written it sees in the next one. While one of the watches that fill the cache is broken, nothing is
judged (NotSeenError), and what cannot be seen any more is said to be Unknown when it is
READ_SECONDS_MAX old (`blind`). Shards are asked in every pass, because nothing tells
the operator when their answer changes. Nodes and Leases come from `edges.watches` too; while they
cannot be watched a pass goes on without them, and no node counts as lost.

Addresses of shards come from the pods that the cache shows, and the ages are taken when the shards
have answered, which may be two seconds later.

A job that another controller manages, or whose manifest is invalid, is not observed further.
"""

import time
from dataclasses import dataclass, replace

from atoll_operator.api.spec import Job
from atoll_operator.kube import observation
from atoll_operator.kube.cache import Cache, Key
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.observation import Object, Observation, Pod, Remembered, rfc3339
from atoll_operator.kube.plan import accepted
from atoll_operator.kube.plan.planner import is_managed_here
from atoll_operator.kube.plan.pods import container_names
from atoll_operator.kube.plan.sessions import shard_addresses
from atoll_operator.kube.settings import Settings

READ_SECONDS_MAX = 12.0  # of age of what a status may still show when a watch is broken


class NotSeenError(Exception):
    """A watch is broken or has not listed yet: what the cache holds may be long past."""


@dataclass(slots=True, kw_only=True)
class Observer:
    """Makes one observation per pass."""

    cache: Cache
    syncers: Syncers
    nodes: Nodes
    settings: Settings

    async def observe(self, key: Key, memories: dict[Key, Memory]) -> Observation | None:
        """What is known of the job now, None when it does not exist; its memory is kept up.

        Raises NotSeenError.
        """
        raw, at = self.cache.job(key), time.monotonic()
        if raw is not None and (key not in memories or memories[key].uid != raw["metadata"]["uid"]):
            memories[key] = Memory(uid=raw["metadata"]["uid"])
        problem = self.cache.problem()
        if problem:
            raise NotSeenError(problem)
        if raw is None:
            return None
        memory = memories[key]
        if not is_managed_here(raw):
            return Observation(at=at, raw=raw)
        children = self._children(key, raw)
        found = accepted.read(raw, children)
        job = found.job
        if job is None:
            return Observation(at=at, raw=raw, reason=found.reason, error=found.error)
        containers = container_names(job)
        pods = [observation.pod(each, containers) for each in children if each["kind"] == "Pod"]
        remembered, at = await self._ask_shards(job, pods, memory)
        memory.read_at = at
        return Observation(
            at=at,
            raw=raw,
            job=job,
            accepted=found.spec,
            reason=found.reason,
            error=found.error,
            children=tuple(children),
            pods=tuple(pods),
            workloads=observation.by_name(
                [
                    observation.workload(each)
                    for each in children
                    if each["kind"] in ("StatefulSet", "Deployment")
                ]
            ),
            nodes=self.nodes.look(at) if self.nodes.usable(at) else None,
            lease_ages=self.nodes.leases.ages(at),
            remembered=remembered,
        )

    def blind(self, key: Key, memory: Memory | None, problem: str) -> Observation | None:
        """What may be reported when observing has failed: the job, and that nothing else is known.

        None: the job itself was never seen, is not run here, or what was last seen of it is young
        enough to stand.
        """
        raw, at = self.cache.job(key), time.monotonic()
        if memory is None or raw is None or at - memory.read_at < READ_SECONDS_MAX:
            return None
        if not is_managed_here(raw):
            return None
        found = accepted.read(raw, self._children(key, raw))
        job = found.job
        if job is None:
            return Observation(at=at, raw=raw, reason=found.reason, error=found.error)
        remembered = replace(
            memory.read(0, [], at), replies=(None,) * job.spec.syncer.shards, registrar_address=""
        )
        return Observation(
            at=at,
            raw=raw,
            job=job,
            reason=found.reason,
            error=found.error,
            unread=problem,
            remembered=remembered,
        )

    def _children(self, key: Key, job: Object) -> list[Object]:
        """The job's objects and pods, without those that a former job of its name has left."""
        return [each for each in self.cache.children(key) if observation.belongs(each, job)]

    async def _ask_shards(
        self, job: Job, pods: list[Pod], memory: Memory
    ) -> tuple[Remembered, float]:
        """Every shard's Status; what is remembered with it, and when the answers were there."""
        shards, asked_at = job.spec.syncer.shards, rfc3339(time.time())
        addresses = shard_addresses(job, pods, self.settings.serves)
        stale = set(memory.addresses.values()) - set(addresses.values())
        await self.syncers.forget([each for each in stale if each])
        memory.addresses = addresses
        if any(addresses.values()):
            replies = await self.syncers.status([addresses[n] for n in range(shards)])
            now = time.monotonic()
            memory.take(replies, now, asked_at)
        else:
            now = time.monotonic()
            memory.answered_at.clear()  # shards that do not exist are not silent
        return memory.read(shards, pods, now), now
