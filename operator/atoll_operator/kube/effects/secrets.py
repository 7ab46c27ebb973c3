"""Reads and writes the Secrets with a job's certificates, for `plan.certificates.issuing`.

No watch shows Secrets, since the right to list them would show the operator those of everybody. A
job's are read one by one: when it starts, after a write, and then every READ_SECONDS_MAX; after
HURRY_SECONDS where a pod cannot start; what a person has brought every BROUGHT_SECONDS_MAX. A pass
gets to know a `Certificates`, in which there is no key.

A Secret is made by a create, which fails where another operator was faster, and changed by a
server-side apply with the UID and the version that were read. The key of an authority is read for
each write, and is in no variable afterwards. The operator's own certificates
(`CertificateMemory.own`) are made where the authorities are read, one for each region that it
serves.
"""

import base64
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from atoll_operator.api.job.spec import Job
from atoll_operator.authority.job_authority import (
    Authorities,
    expires_soon,
    issue,
    make_authorities,
    renewal,
    turned,
)
from atoll_operator.kube.edges.api import Api, ApiError, ConflictError, path
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import LEARNER_ROLE, JobOwner, authority_name, credentials_name
from atoll_operator.kube.observed.memory import CertificateMemory, JobMemory
from atoll_operator.kube.observed.objects import written_at
from atoll_operator.kube.observed.observation import Certificates, Object, SecretSeen, Stale
from atoll_operator.kube.plan import certificates
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.applied import obstacle
from atoll_operator.kube.plan.certificates import (
    SECRET,
    TLS_TYPE,
    Leaf,
    authority_of,
    credentials_of,
    files_of,
    operators,
    wanted,
)
from atoll_operator.kube.settings import Settings
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import AUTHORITY as CA
from atoll_protos.network.credentials import CERTIFICATE as CRT
from atoll_protos.network.credentials import KEY, JobIdentity

READ_SECONDS_MAX = 300.0  # between two readings of a job at rest
BROUGHT_SECONDS_MAX = 30.0  # where people bring them
READS_A_LIFE = 20.0  # of a certificate, at least
AGAIN_SECONDS = 10.0  # after a reading that has failed
HURRY_SECONDS = 10.0  # between two readings while a pod cannot start
NEVER = float("inf")
MISSING_SECONDS = 3.0  # while what others make is not there
AUTHORITY_ROLE = "authority"  # in the labels of its Secret

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Secrets:
    """Reads, makes and renews the Secrets with the certificates of all jobs."""

    api: Api
    metrics: Metrics
    settings: Settings

    # ------------------------------------------------------------ reading

    async def look(
        self,
        job: Job,
        owner: JobOwner,
        memory: CertificateMemory,
        *,
        waits: bool,
        used: Collection[str] = (),
    ) -> None:
        """Read what is due; `waits`: a pod cannot start, or no shard takes what is there.

        Secrets that are `used` by the job's workloads stay, also those of a region that has left.
        Where the syncer lives elsewhere they are what a person has brought. Until something has
        been read, raises what the network raises, and ApiError when the API server is unwell.
        """
        now = time.monotonic()
        home = self.settings.serves(job.spec.syncer_region)
        leaves = wanted(job, owner, self.settings.serves) if home else ()
        regions = [region.name for region in job.spec.regions if self.settings.serves(region.name)]
        names = [leaf.secret for leaf in leaves]
        names = names if home else [credentials_name(job.name, region) for region in regions]
        known = {} if memory.seen is None else memory.seen.secrets
        gone = memory.names.difference(names, used)
        revoked = owner.generations != memory.generations
        hurry = waits or bool(gone) or not all(name in known for name in names)
        due_at = min(memory.next_at, memory.read_at + HURRY_SECONDS if hurry else NEVER)
        if now < due_at and not revoked:
            return
        memory.read_at, memory.generations = now, owner.generations
        others = bool(job.spec.syncer.tls.ca_secret) or not home  # make what is read first
        try:
            if home:
                seen = await self._look(job, owner, leaves, memory)
                stale = await self._stale(owner, gone, memory)
            else:
                seen, stale = await self._look_brought(job, owner, regions, memory), ()
            memory.seen = Certificates(
                secrets={secret.name: secret for secret in seen}, stale=stale
            )
        except ApiError as error:
            memory.next_at = now + AGAIN_SECONDS
            if error.may_pass and memory.seen is None:
                raise
            if not error.may_pass:
                said = f"the Secrets with the certificates cannot be read: {error.message}"
                memory.seen = Certificates(unread=said)
            return
        memory.names.update(names if home else ())
        missing = any(secret.reason for secret in (seen[:1] if home else seen))
        most = READ_SECONDS_MAX if home else BROUGHT_SECONDS_MAX
        pause = min(most, self.settings.certificate_seconds / READS_A_LIFE)
        memory.next_at = now + (min(pause, MISSING_SECONDS) if others and missing else pause)

    async def _look_brought(
        self, job: Job, owner: JobOwner, regions: Sequence[str], memory: CertificateMemory
    ) -> list[SecretSeen]:
        own, seen, now = {}, [], time.time()
        for region in regions:
            name = credentials_name(job.name, region)
            raw = await self._get(owner, name)
            found = certificates.judged(raw, job.name, region, now)
            seen.append(_seen(name, raw, reason=found.fault, due_at=found.due_at))
            if found.operator is not None:
                own[region] = found.operator
        memory.own = own
        return seen

    async def _look(
        self, job: Job, owner: JobOwner, leaves: Sequence[Leaf], memory: CertificateMemory
    ) -> list[SecretSeen]:
        now, name, ca_secret = time.time(), authority_of(job), job.spec.syncer.tls.ca_secret
        there = {leaf.secret: await self._get(owner, leaf.secret) for leaf in leaves}
        mounted = (files_of(raw or {}).get(CA) for raw in there.values())
        memory.believed = memory.believed or next(filter(None, mounted), b"")
        raw = await self._get(owner, name)
        if ca_secret:
            barred, (found, reason) = "", _from_issuer(raw, memory.believed, now)
            soon = found is not None and expires_soon(found, now)
            seen = [_seen(name, raw, reason=reason, due_at=now if soon else NEVER)]
        else:
            barred = _obstacle(raw, owner, name, AUTHORITY_ROLE)
            found, _, reason = _authorities(raw, owner, now)
            found = None if barred else found
            seen = [_seen(name, raw, obstacle=barred, reason=reason)]
        if found is not None:
            memory.believed = found.bundle
            kept, memory.own = memory.own, {}  # by region: those that it has, new ones where due
            for who in operators(job, owner, self.settings.serves):
                has = kept.get(who.region)
                if has is None or renewal(found, has, who, now):
                    has = issue(found, who, now, self.settings.certificate_seconds)
                memory.own[who.region] = has
        for leaf in leaves:
            raw = there[leaf.secret]
            barred = _obstacle(raw, owner, leaf.secret, leaf.identity.role)
            reason = "" if ca_secret else "its authority is made again"
            if found is not None:
                reason = renewal(found, credentials_of(raw or {}), leaf.identity, now)
            seen.append(_seen(leaf.secret, raw, obstacle=barred, reason=reason))
        return seen

    async def _stale(
        self, owner: JobOwner, names: Iterable[str], memory: CertificateMemory
    ) -> tuple[Stale, ...]:
        """Return what is to be deleted; objects of others are left alone."""
        found = []
        for name in sorted(names):
            raw = await self._get(owner, name)
            if raw is None or _obstacle(raw, owner, name, LEARNER_ROLE):
                memory.names.discard(name)
            else:
                found.append(Stale(name=name, uid=raw["metadata"]["uid"]))
        return tuple(found)

    async def _get(self, owner: JobOwner, name: str) -> Object | None:
        return await self.api.get(path(SECRET, owner.namespace, name))

    # ------------------------------------------------------------ writing

    async def make(self, plan: Plan, memory: JobMemory) -> bool:
        """Whether the API server takes all. Raises ApiError when it is overloaded or unwell."""
        work = plan.children.certificates
        if not work.acts:
            return True
        memory.certificates.next_at = time.monotonic()  # the next pass reads what is there then
        for gone in work.stale:
            await self.api.delete(path(SECRET, plan.namespace, gone.name), gone.uid)
            log.info("deleted", job=plan.job, kind=SECRET, name=gone.name, reason="no region")
        if not work.authority and not work.leaves:
            return True
        owner = JobOwner(namespace=plan.namespace, name=plan.job, uid=memory.uid)
        found = await self._authorities(plan, memory, owner)
        if found is None:
            return False
        seen = memory.certificates.seen or Certificates()
        for leaf in work.leaves:
            who, there = leaf.identity, seen.of(leaf.secret)
            made = issue(found, who, time.time(), self.settings.certificate_seconds)
            files = {CRT: made.certificate, KEY: made.key, CA: made.authority}
            child = _secret(owner, leaf.secret, who.role, files)
            if there.uid:
                child["metadata"] |= {"uid": there.uid, "resourceVersion": there.version}
            if not await self._write(plan, memory, child, there.reason):
                return False
        return True

    async def _authorities(
        self, plan: Plan, memory: JobMemory, owner: JobOwner
    ) -> Authorities | None:
        """Return the job's authorities as they should be; None when there are none to sign with."""
        now, ca_secret = time.time(), plan.children.certificates.ca_secret
        if ca_secret:
            raw = await self._get(owner, ca_secret)
            return _from_issuer(raw, memory.certificates.believed, now)[0]
        name = authority_name(owner.name)
        raw = await self._get(owner, name)
        if _obstacle(raw, owner, name, AUTHORITY_ROLE):
            return None
        _, wanted, said = _authorities(raw, owner, now)
        if not said:
            return wanted
        believed = memory.certificates.believed
        if believed and wanted.successor is None and not wanted.former:
            wanted = replace(wanted, former=believed)  # what has been lost is in use
        child = _secret(owner, name, AUTHORITY_ROLE, wanted.to_files())
        if raw is not None:
            here = raw["metadata"]
            child["metadata"] |= {"uid": here["uid"], "resourceVersion": here["resourceVersion"]}
        return wanted if await self._write(plan, memory, child, said) else None

    async def _write(self, plan: Plan, memory: JobMemory, child: Object, reason: str) -> bool:
        """Write one Secret; False when it was refused, or is not what was read any more."""
        name = child["metadata"]["name"]
        try:
            await (self.api.apply if "uid" in child["metadata"] else self.api.create)(child)
        except ConflictError:
            return False  # another operator was faster, or somebody has just changed it
        except ApiError as error:
            if error.may_pass:
                raise
            memory.refuse((SECRET, name), "", error.message, plan.at, error.status)
            log.warning("refused", job=plan.job, kind=SECRET, name=name, error=str(error))
            return False
        memory.refused.pop((SECRET, name), None)
        self.metrics.writes.labels(SECRET).inc()
        log.info("applied", job=plan.job, kind=SECRET, name=name, reason=reason)
        return True


def _secret(owner: JobOwner, name: str, role: str, files: Mapping[str, bytes]) -> Object:
    data = {key: base64.b64encode(value).decode() for key, value in files.items()}
    return owner.child(SECRET, "v1", name, owner.labels(role), type=TLS_TYPE, data=data)


def _authorities(
    raw: Object | None, owner: JobOwner, now: float
) -> tuple[Authorities | None, Authorities, str]:
    """Those of a job that its Secret has, if it can be used, and those that it should have, why."""
    who = JobIdentity(namespace=owner.namespace, job=owner.name, uid=owner.uid)
    if raw is None:
        return None, make_authorities(who, now), "it is not there"
    try:
        found = Authorities.from_files(files_of(raw))
    except SpecError as error:
        return None, make_authorities(who, now), str(error)
    return found, *turned(found, who, now)


def _from_issuer(raw: Object | None, believed: bytes, now: float) -> tuple[Authorities | None, str]:
    """Return the authority that a Secret of others has, or why it cannot be used."""
    if raw is None:
        return None, "it is not there"
    try:
        return Authorities.from_issuer(files_of(raw), believed, now), ""
    except SpecError as error:
        return None, str(error)


def _obstacle(raw: Object | None, owner: JobOwner, name: str, role: str) -> str:
    return obstacle(raw, _secret(owner, name, role, {})) if raw is not None else ""


def _seen(name: str, raw: Object | None, **more: Any) -> SecretSeen:
    if raw is None:
        return Certificates().of(name)
    metadata = raw["metadata"]
    return SecretSeen(
        name=name,
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        written_at=written_at(metadata),
        **more,
    )
