"""The first phase of a pass: what the watches and the shards show becomes an Observation.

Objects come from the cache (`cache`), so a pass asks the API server nothing, and what a pass has
written it sees in the next one. While one of the watches that fill the cache is broken, nothing is
judged (NotSeenError), and what cannot be seen any more is said to be Unknown when it is
READ_SECONDS_MAX old (`blind`). Shards are asked each second beside the passes (`edges.polls`), and
their newest answers are taken with their age; answers from before the last effects of a pass are
not judged, and newer ones bring the next pass (NotAskedError). Nodes and Leases come from
`edges.watches`; while they cannot be watched a pass goes on without them, and no node counts as
lost.

A job that another controller manages, or whose manifest is invalid, is not observed further.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status
from atoll_operator.api.syncer import TlsMode
from atoll_operator.kube import objects, observation
from atoll_operator.kube.cache import Cache, Key
from atoll_operator.kube.edges.polls import Polls
from atoll_operator.kube.edges.watches import Nodes
from atoll_operator.kube.memory import CertificateMemory, Memory
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observation import Certificates, Object, Observation, Pod, Workload
from atoll_operator.kube.plan import accepted, elsewhere, rendering, restore
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.accepted import Reading
from atoll_operator.kube.plan.certificates import leaf_names, needed
from atoll_operator.kube.plan.owner import Owner
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.planner import is_managed_here
from atoll_operator.kube.plan.pods import container_names
from atoll_operator.kube.plan.restore import Former
from atoll_operator.kube.plan.sessions import shard_addresses
from atoll_operator.kube.secrets import Secrets
from atoll_operator.kube.settings import Settings
from atoll_protos.exits import ExitCode

READ_SECONDS_MAX = 12.0  # of age of what a status may still show when a watch is broken


class NotSeenError(Exception):
    """A watch is broken or has not listed yet: what the cache holds may be long past."""


class NotAskedError(Exception):
    """The shards' newest answers are older than the last effects; newer ones are on their way."""


@dataclass(slots=True, kw_only=True)
class Observer:
    """Makes one observation per pass."""

    cache: Cache
    polls: Polls
    nodes: Nodes
    secrets: Secrets
    settings: Settings

    async def observe(self, key: Key, memories: dict[Key, Memory]) -> Observation | None:
        """What is known of the job now, None when it does not exist; its memory is kept up.

        Raises NotSeenError and NotAskedError.
        """
        raw, at = self.cache.job(key), time.monotonic()
        if raw is not None and (key not in memories or memories[key].uid != raw["metadata"]["uid"]):
            memories[key] = Memory(uid=raw["metadata"]["uid"])
        problem = self.cache.problem(key[0])
        if problem and not (raw is None and key[0] in self.cache.left_out):
            raise NotSeenError(problem)
        if raw is None:
            await self.polls.forget(key)
            return None
        memory = memories[key]
        if not is_managed_here(raw):
            await self.polls.forget(key)
            return Observation(at=at, raw=raw)
        children = self._children(key, raw)
        found = self._read(key, raw, children, memory)
        job = found.job
        if job is None:
            return Observation(at=at, raw=raw, reason=found.reason, error=found.error)
        containers = container_names(job)
        pods = [self._pod(each, containers) for each in children if each["kind"] == "Pod"]
        status = Status.read(raw.get("status"))
        before = _before(raw, status, found)
        memory.addresses = shard_addresses(job, pods, self.settings.serves)
        if before.over and not elsewhere.lingers(status, time.time()):
            memory.addresses = dict.fromkeys(memory.addresses, "")  # all is known
        workloads = [each for each in children if each["kind"] in observation.WORKLOADS]
        tls = rendering.speaks_tls(workloads)
        certificates = await self._certificates(raw, job, before, workloads, pods, memory, tls)
        speaks = _speaks_tls(job, tls)
        if not await self.polls.follow(key, memory, memory.addresses, tls=speaks):
            raise NotAskedError
        of_workload = observation.by_workload(job.name, pods)
        return Observation(
            at=at,
            raw=raw,
            job=job,
            accepted=found.spec,
            reason=found.reason,
            error=found.error,
            children=tuple(children),
            pods=tuple(pods),
            certificates=certificates,
            refusals=self.polls.refusals(key),
            tls=tls,
            workloads=observation.by_name(
                [self._workload(each, of_workload) for each in workloads]
            ),
            nodes=self.nodes.look(at) if self.nodes.usable(at) else None,
            lease_ages=self.nodes.leases.ages({pod.node for pod in pods}, at),
            remembered=memory.read(job.spec.syncer.shards, pods, at, job.spec.slots),
        )

    async def _certificates(
        self,
        raw: Object,
        job: Job,
        before: Before,
        workloads: Sequence[Object],
        pods: Sequence[Pod],
        memory: Memory,
        tls: bool | None,
    ) -> Certificates | None:
        """What is known of the job's certificates, if it needs any."""
        runs = any(each["spec"].get("replicas") for each in workloads)
        home = self.settings.serves(job.spec.syncer_region)
        if home:
            needs = needed(job, before, runs=runs, tls=tls)
        else:  # also to ask the shards
            needs = _speaks_tls(job, tls) and any(memory.addresses.values())
        if not needs:
            memory.certificates = CertificateMemory()
            return None
        owner = Owner.of(raw, job.name)
        waits = any(objects.cannot_start(pod, time.time()) for pod in pods)
        waits |= any(pod.exit_code == ExitCode.TRY_AGAIN and not pod.runs for pod in pods)
        waits |= not home and bool(self.polls.refusals((owner.namespace, owner.name)))
        if home:
            memory.certificates.names |= leaf_names(job, Status.read(raw.get("status")))
        used = objects.mounted_secrets(workloads)
        await self.secrets.look(job, owner, memory.certificates, waits=waits, used=used)
        return memory.certificates.seen

    def _pod(self, raw: Object, containers: Mapping[str, str]) -> Pod:
        found = objects.pod(raw, containers)
        failure = self.cache.failures.get(found.uid)
        return replace(found, held_up=objects.held_up(found, failure, time.time()))

    def _workload(self, raw: Object, pods: Mapping[str, Sequence[Pod]]) -> Workload:
        name, uid = raw["metadata"]["name"], raw["metadata"]["uid"]
        return objects.workload(raw, self.cache.failures.get(uid), pods.get(name, ()))

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
        found = self._read(key, raw, self._children(key, raw), memory)
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

    def _read(
        self, key: Key, raw: Object, children: Sequence[Object], memory: Memory
    ) -> accepted.Reading:
        """The manifest to act on."""
        former, serves = self._former(key, raw), self.settings.serves
        spans = self.settings.spans_regions
        return accepted.read(raw, children, former, serves, memory.run_name, spans_regions=spans)

    def _former(self, key: Key, raw: Object) -> Former:
        """What is there of the job whose state this one takes up."""
        namespace, name = key
        other = restore.named(raw)
        children = self.cache.children((namespace, other)) if other else []
        return Former(
            job=self.cache.job((namespace, other)) if other != name else None,
            claims=[each for each in children if each["kind"] == "PersistentVolumeClaim"],
            heirs=[
                each
                for each in (self.cache.jobs(namespace) if other else ())
                if restore.named(each) == other
                and each["metadata"]["uid"] != raw["metadata"]["uid"]
            ],
        )

    def _children(self, key: Key, job: Object) -> list[Object]:
        """The job's objects and pods, without those that a former job of its name has left."""
        return [each for each in self.cache.children(key) if objects.belongs(each, job)]


def _before(raw: Object, status: Status, found: Reading) -> Before:
    """What earlier passes have written of the job."""
    metadata = raw["metadata"]
    return phases.before(
        status,
        time.time(),
        generation=None if found.error else metadata["generation"],
        retry=str((metadata.get("annotations") or {}).get(Annotation.RETRY, "")),
    )


def _speaks_tls(job: Job, tls: bool | None) -> bool:
    """Whether the job's processes talk over TLS; where none has been started, as it asks."""
    return job.spec.syncer.tls.mode is TlsMode.REQUIRED if tls is None else tls
