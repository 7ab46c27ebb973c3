"""The first phase of a pass: what the watches and the shards show becomes an Observation.

`look` takes what the watches show, `plan.inquiry` decides which manifest is in force and what else
has to be looked at, and `ask` looks at that. A pass asks the API server nothing (`cache`). While a
watch that fills the cache is broken nothing is judged (NotSeenError), and what cannot be seen any
more becomes Unknown when it is READ_SECONDS_MAX old (`blind`). Answers of shards from before the
last effects are not judged either (NotAskedError, `edges.polls`). While nodes and Leases cannot be
watched a pass continues without them, and no node counts as lost.
"""

import time
from dataclasses import dataclass, replace

from atoll_operator.kube.edges.polls import Polls
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.effects.secrets import Secrets
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.cache import Cache, Key
from atoll_operator.kube.observed.memory import CertificateMemory, JobMemory
from atoll_operator.kube.observed.observation import (
    Certificates,
    Former,
    Object,
    Observation,
    Shown,
)
from atoll_operator.kube.plan.inquiry import Inquiry

READ_SECONDS_MAX = 12.0  # of age of what a status may still show when a watch is broken


class NotSeenError(Exception):
    """A watch is broken or has not listed yet: what the cache holds may be long past."""


class NotAskedError(Exception):
    """The shards' newest answers are older than the last effects; newer ones are on their way."""


@dataclass(slots=True, kw_only=True)
class ClusterObserver:
    """Looks at one job, once per pass."""

    cache: Cache
    polls: Polls
    nodes: Nodes
    secrets: Secrets

    async def look(self, key: Key, memories: dict[Key, JobMemory]) -> Shown | None:
        """None when the job does not exist; its memory is kept up. Raises NotSeenError."""
        raw, at = self.cache.job(key), time.monotonic()
        if raw is not None and (key not in memories or memories[key].uid != raw["metadata"]["uid"]):
            memories[key] = JobMemory(uid=raw["metadata"]["uid"])
        problem = self.cache.problem(key[0])
        if problem and not (raw is None and key[0] in self.cache.left_out):
            raise NotSeenError(problem)
        if raw is None:
            await self.polls.forget(key)
            return None
        return self._shown(key, raw, memories[key], at)

    def blind(self, key: Key, memory: JobMemory | None, problem: str) -> Shown | None:
        """The job, with `problem` for all else; None: it was never seen, or seen a moment ago."""
        raw, at = self.cache.job(key), time.monotonic()
        if memory is None or raw is None or at - memory.read_at < READ_SECONDS_MAX:
            return None
        return replace(self._shown(key, raw, memory, at), unread=problem)

    async def ask(self, key: Key, inquiry: Inquiry, memory: JobMemory) -> Observation:
        """Look at the Secrets and the shards that are asked for. Raises NotAskedError."""
        seen = inquiry.seen
        if seen.job is None:
            if not seen.error:  # it is run elsewhere
                await self.polls.forget(key)
            return seen
        job, at = seen.job, seen.at
        if seen.unread:
            known = memory.read(0, [], at)
            replies = (None,) * job.spec.syncer.shards
            return replace(seen, remembered=replace(known, replies=replies, registrar_address=""))
        memory.addresses = dict(inquiry.addresses)
        certificates = await self._certificates(inquiry, memory)
        if not await self.polls.follow(key, memory, memory.addresses, tls=inquiry.speaks_tls):
            raise NotAskedError
        return replace(
            seen,
            certificates=certificates,
            refusals=self.polls.refusals(key),
            nodes=self.nodes.look(at) if self.nodes.usable(at) else None,
            lease_ages=self.nodes.leases.ages({pod.node for pod in seen.pods}, at),
            remembered=memory.read(job.spec.syncer.shards, seen.pods, at, job.spec.slots),
        )

    async def _certificates(self, inquiry: Inquiry, memory: JobMemory) -> Certificates | None:
        asked = inquiry.secrets
        if asked is None or inquiry.seen.job is None:
            memory.certificates = CertificateMemory()
            return None
        memory.certificates.names |= asked.names
        await self.secrets.look(
            inquiry.seen.job, asked.owner, memory.certificates, waits=asked.waits, used=asked.used
        )
        return memory.certificates.seen

    def _shown(self, key: Key, raw: Object, memory: JobMemory, at: float) -> Shown:
        children = [each for each in self.cache.children(key) if objects.belongs(each, raw)]
        return Shown(
            at=at,
            raw=raw,
            children=tuple(children),  # without those that a former job of its name has left
            former=self._former(key, raw),
            failures=self.cache.failures,
            run_name=memory.run_name,
            refused=bool(self.polls.refusals(key)),
        )

    def _former(self, key: Key, raw: Object) -> Former:
        namespace, name = key
        other = objects.restored_job(raw)
        if not other:
            return Former()
        return Former(
            job=self.cache.job((namespace, other)) if other != name else None,
            claims=[
                each
                for each in self.cache.children((namespace, other))
                if each["kind"] == "PersistentVolumeClaim"
            ],
            heirs=[
                each
                for each in self.cache.jobs(namespace)
                if objects.restored_job(each) == other
                and each["metadata"]["uid"] != raw["metadata"]["uid"]
            ],
        )
