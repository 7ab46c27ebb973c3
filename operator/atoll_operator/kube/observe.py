"""The first phase of a pass: reads the API server, the shards and the watches into an Observation.

Reading is cheap to repeat and expensive to do: a job and its children are listed again only after
an event of theirs, after a write of this operator (`Memory.dirty`), or when the last listing is
older than OBSERVE_SECONDS, so that a lost event delays a change but never loses it. Shards are
asked in every pass, because nothing tells the operator when their answer changes. Nodes and
Leases come from `edges.watches`, which follows them all the time.

The order matters. The job is read before its children, so that a child is never judged by a
manifest older than itself. `dirty` is cleared before the listing: an event that arrives during it
is not lost, at the price of one more listing. Addresses of shards come from the pods just read,
and the ages are taken when the shards have answered, which may be two seconds after the listing.

A job that another controller manages, or whose manifest is invalid, is not observed further.
"""

import time
from dataclasses import dataclass, replace

from atoll_operator.api.spec import Job
from atoll_operator.kube import observation
from atoll_operator.kube.edges.api import KINDS, Api, jobs_path, path
from atoll_operator.kube.edges.queue import Key
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.memory import LONG_AGO, Memory
from atoll_operator.kube.observation import Object, Observation, Pod, Remembered, rfc3339
from atoll_operator.kube.plan import accepted
from atoll_operator.kube.plan.planner import is_managed_here
from atoll_operator.kube.plan.pods import container_names
from atoll_operator.kube.plan.sessions import shard_addresses
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label

OBSERVE_SECONDS = 30.0  # between two listings, however quiet the watches are
READ_SECONDS_MAX = 12.0  # of age of what a status may still show when reading fails


@dataclass(slots=True, kw_only=True)
class Observer:
    """Makes one observation per pass."""

    api: Api
    syncers: Syncers
    nodes: Nodes
    settings: Settings

    async def observe(self, key: Key, memories: dict[Key, Memory]) -> Observation | None:
        """What is known of the job now, None when it does not exist; its memory is kept up.

        Raises ApiError and what the network raises.
        """
        memory = await self._read(key, memories)
        if memory is None:
            return None
        raw, at = memory.job, time.monotonic()
        if not is_managed_here(raw):
            return Observation(at=at, raw=raw)
        found = accepted.read(raw, memory.children)
        job = found.job
        if job is None:
            return Observation(at=at, raw=raw, reason=found.reason, error=found.error)
        containers = container_names(job)
        pods = [
            observation.pod(each, containers) for each in memory.children if each["kind"] == "Pod"
        ]
        remembered, at = await self._ask_shards(job, pods, memory)
        memory.read_at = at
        return Observation(
            at=at,
            raw=raw,
            job=job,
            accepted=found.spec,
            reason=found.reason,
            error=found.error,
            children=tuple(memory.children),
            pods=tuple(pods),
            workloads=observation.by_name(
                [
                    observation.workload(each)
                    for each in memory.children
                    if each["kind"] in ("StatefulSet", "Deployment")
                ]
            ),
            nodes=self.nodes.look(at) if self.nodes.ready else None,
            lease_ages=self.nodes.leases.ages(at),
            remembered=remembered,
        )

    def blind(self, memory: Memory | None, error: Exception) -> Observation | None:
        """What may be reported when observing has failed: the job, and that nothing else is known.

        None: the job itself was never read, is not run here, or what was last seen of it is young
        enough to stand.
        """
        at = time.monotonic()
        if memory is None or not memory.job or at - memory.read_at < READ_SECONDS_MAX:
            return None
        if not is_managed_here(memory.job):
            return None
        found = accepted.read(memory.job, memory.children)
        job = found.job
        if job is None:
            return Observation(at=at, raw=memory.job, reason=found.reason, error=found.error)
        remembered = replace(
            memory.read(0, [], at), replies=(None,) * job.spec.syncer.shards, registrar_address=""
        )
        text = f"{type(error).__name__}: {error}"
        return Observation(
            at=at,
            raw=memory.job,
            job=job,
            reason=found.reason,
            error=found.error,
            unread=text,
            remembered=remembered,
        )

    async def _read(self, key: Key, memories: dict[Key, Memory]) -> Memory | None:
        """The job and its children, from the API server or as they were read a moment ago."""
        memory, now = memories.get(key), time.monotonic()
        if memory and not memory.dirty and now - memory.observed_at < OBSERVE_SECONDS:
            return memory
        raw = await self.api.get(jobs_path(*key))
        if raw is None:
            return None
        uid = raw["metadata"]["uid"]
        if memory is None or memory.uid != uid:
            memory = memories[key] = Memory(uid=uid)
        # Clean before the children are listed, so that an event during the listing is kept; dated
        # after it, so that a listing that fails is done again.
        memory.dirty, memory.observed_at, memory.job = False, LONG_AGO, raw
        memory.children = await self._children(*key, raw)
        memory.observed_at = now
        return memory

    async def _children(self, namespace: str, name: str, job: Object) -> list[Object]:
        """The job's objects, without those that a former job of its name has left."""
        found = []
        for kind, (version, _) in KINDS.items():
            for each in await self.api.list(path(kind, namespace), f"{Label.JOB}={name}"):
                child = {**each, "kind": kind, "apiVersion": version}
                if observation.belongs(child, job):
                    found.append(child)
        return found

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
