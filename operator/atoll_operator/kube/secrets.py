"""Reads and writes the Secrets with a job's certificates, for `plan.certificates`.

Reading. No watch shows Secrets, since the right to list and watch them would show the operator
those of everybody. A job's are read one by one when it starts, when this process begins to look
after it, after a write, and then every READ_SECONDS_MAX, so one that somebody deletes or changes
is back within minutes; and after HURRY_SECONDS where a pod cannot start, since its certificate may
be what it waits for. What a person has brought is read every BROUGHT_SECONDS_MAX. A pass at rest
reads none. What a pass gets to know is a `Certificates`, in which there is no key.

Writing. A Secret is made by a create, which fails where another operator was faster, and changed
by a server-side apply with the UID and the version that were read, so that nothing is overwritten
that has not been looked at. The key of an authority is read for each write, and is in no variable
afterwards.

The operator's own certificates (`CertificateMemory.own`), with which it asks the shards, are made
where the authorities are read, one for each region that it serves: only the operator of a slot's
region may name the slot's owner.
"""

import base64
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from atoll_operator.api.spec import Job
from atoll_operator.certificates import (
    Authorities,
    issue,
    make_authorities,
    renewal,
    turned,
)
from atoll_operator.kube.edges.api import Api, ApiError, ConflictError, path
from atoll_operator.kube.memory import LONG_AGO, CertificateMemory, Memory
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.names import LEARNER_ROLE, Annotation, authority_name, credentials_name
from atoll_operator.kube.objects import key_of, written_at
from atoll_operator.kube.observation import Certificates, Object, SecretSeen, Stale
from atoll_operator.kube.plan import brought
from atoll_operator.kube.plan.actions import Plan
from atoll_operator.kube.plan.certificates import (
    CERTIFICATE,
    SECRET,
    Leaf,
    operators,
    order,
    wanted,
)
from atoll_operator.kube.plan.children import with_applied_hash
from atoll_operator.kube.plan.owner import Owner
from atoll_operator.kube.plan.ownership import obstacle
from atoll_operator.kube.settings import Settings
from atoll_protos import identity
from atoll_protos.credentials import AUTHORITY as CA
from atoll_protos.credentials import CERTIFICATE as CRT
from atoll_protos.credentials import KEY, Credentials, Needed
from atoll_protos.errors import SpecError

READ_SECONDS_MAX = 300.0  # between two readings of a job at rest
BROUGHT_SECONDS_MAX = 30.0  # where people bring them
READS_A_LIFE = 20.0  # of a certificate, at least
AGAIN_SECONDS = 10.0  # after a reading that has failed
HURRY_SECONDS = 10.0  # between two readings while a pod cannot start
NEVER = float("inf")
MISSING_SECONDS = 3.0  # while an issuer has not answered
TLS_TYPE = "kubernetes.io/tls"
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
        owner: Owner,
        memory: CertificateMemory,
        *,
        waits: bool,
        used: Collection[str] = (),
    ) -> None:
        """Read what is due; `waits`: a pod cannot start, or no shard takes what is there.

        Secrets that are `used` by the job's workloads stay, also those of a region that has left.

        An edit may ask for more of them. Where the syncer lives in another cluster that is what a
        person has brought.

        Raises what the network raises, and ApiError when the API server is unwell, as long as
        nothing has ever been read.
        """
        now = time.monotonic()
        home = self.settings.serves(job.spec.syncer_region)
        leaves = wanted(job, owner, self.settings.serves) if home else ()
        regions = [each.name for each in job.spec.regions if self.settings.serves(each.name)]
        names = [each.secret for each in leaves]
        names = names if home else [credentials_name(job.name, each) for each in regions]
        known = {} if memory.seen is None else memory.seen.leaves
        gone = memory.names.difference(names, used)
        revoked = memory.read_at > LONG_AGO and owner.generations != memory.generations
        hurry = waits or bool(gone) or not all(each in known for each in names)
        due_at = min(memory.next_at, memory.read_at + HURRY_SECONDS if hurry else NEVER)
        if now < due_at and not revoked:
            return
        try:
            if not home:
                await self._look_brought(job, owner, regions, memory)
            elif job.spec.syncer.tls.issuer_ref is None:
                await self._look(job, owner, leaves, memory)
            else:
                await self._look_issued(job, owner, leaves, memory)
            if memory.seen is not None and home:
                stale = await self._stale(job, owner, gone, memory)
                memory.seen = replace(memory.seen, stale=stale)
        except ApiError as error:
            memory.read_at, memory.next_at = now, now + AGAIN_SECONDS
            if error.may_pass and memory.seen is None:
                raise
            if not error.may_pass:
                said = f"the Secrets with the certificates cannot be read: {error.message}"
                memory.seen = Certificates(unread=said)
            return
        memory.names.update(names if home else ())
        memory.generations = owner.generations
        leaves_seen = memory.seen.leaves.values() if memory.seen else ()
        missing = any(each.order or each.reason for each in leaves_seen)
        issued = job.spec.syncer.tls.issuer_ref is not None or not home
        most = READ_SECONDS_MAX if home else BROUGHT_SECONDS_MAX
        pause = min(most, self.settings.certificate_seconds / READS_A_LIFE)
        memory.read_at = now
        memory.next_at = now + (min(pause, MISSING_SECONDS) if issued and missing else pause)

    async def _look_brought(
        self, job: Job, owner: Owner, regions: Sequence[str], memory: CertificateMemory
    ) -> None:
        own, seen, now = {}, {}, time.time()
        for region in regions:
            name = credentials_name(job.name, region)
            raw = await self._get(SECRET, owner, name)
            found = brought.judged(raw, name, job.name, region, now)
            seen[name] = SecretSeen(name=name, reason="it is not there")
            if raw is not None:
                seen[name] = _seen(name, raw, reason=found.fault, due_at=found.due_at)
            if found.operator is not None:
                own[region] = found.operator
        memory.own, memory.seen = own, Certificates(leaves=seen)

    async def _look(
        self, job: Job, owner: Owner, leaves: Sequence[Leaf], memory: CertificateMemory
    ) -> None:
        now = time.time()
        raw = await self._get(SECRET, owner, authority_name(job.name))
        seen, found = _of_authority(raw, owner, now)
        if found is not None:
            memory.believed = found.bundle
            memory.own = self._own(job, owner, found, memory.own, now)
        of_leaves = {}
        for leaf in leaves:
            raw = await self._get(SECRET, owner, leaf.secret)
            of_leaves[leaf.secret] = _of_leaf(leaf, raw, owner, found, now)
            memory.believed = memory.believed or _files(raw).get(CA, b"")
        memory.seen = Certificates(authority=seen, leaves=of_leaves)

    def _own(
        self,
        job: Job,
        owner: Owner,
        found: Authorities,
        kept: Mapping[str, Credentials],
        now: float,
    ) -> dict[str, Credentials]:
        """The operator's certificates, by region: those that it has, and new ones where due."""
        own = {}
        for leaf in operators(job, owner, self.settings.serves):
            who, region = leaf.identity, leaf.identity.region
            has = kept.get(region)
            if has is None or renewal(found, has, who, now).due:
                has = issue(found, who, now, self.settings.certificate_seconds)
            own[region] = has
        return own

    async def _look_issued(
        self, job: Job, owner: Owner, leaves: Sequence[Leaf], memory: CertificateMemory
    ) -> None:
        own, seen, now = {}, {}, time.time()
        mine = {each.secret for each in operators(job, owner, self.settings.serves)}
        for leaf in leaves:
            live = await self._get(CERTIFICATE, owner, leaf.secret)
            raw = await self._get(SECRET, owner, leaf.secret)
            asked = with_applied_hash(order(job, owner, leaf, self.settings.certificate_seconds))
            found = SecretSeen(name=leaf.secret, reason=_said_by(live))
            if raw is not None:
                credentials, who = _credentials(raw), leaf.identity
                needed = Needed(uid=owner.uid, region=who.region, roles=[who.role])
                fault = credentials.fault(now, needed)
                said = f"its Secret: {fault.field} {fault.problem}" if fault else ""
                found = _seen(leaf.secret, raw, reason=said)
                await self._adopt(raw, owner, leaf)
                if leaf.secret in mine and not fault:
                    own[who.region] = credentials
            seen[leaf.secret] = replace(
                found,
                obstacle=obstacle(live, asked) if live else "",
                order=_ordered(asked, live),
            )
        memory.own, memory.seen = own, Certificates(leaves=seen)

    async def _adopt(self, raw: Object, owner: Owner, leaf: Leaf) -> None:
        """Let a Secret of cert-manager be deleted with the job: it belongs to nobody else."""
        if raw["metadata"].get("ownerReferences"):
            return
        child = owner.child(SECRET, "v1", leaf.secret, owner.labels(leaf.identity.role))
        child["metadata"]["uid"] = raw["metadata"]["uid"]
        await self.api.apply(child)

    async def _stale(
        self, job: Job, owner: Owner, names: Iterable[str], memory: CertificateMemory
    ) -> tuple[Stale, ...]:
        """What the job has of these Secrets; objects of others are left alone."""
        kinds = (SECRET,) if job.spec.syncer.tls.issuer_ref is None else (CERTIFICATE, SECRET)
        found = []
        for name in sorted(names):
            there = [(kind, await self._get(kind, owner, name)) for kind in kinds]
            ours = [
                Stale(kind=kind, name=name, uid=raw["metadata"]["uid"])
                for kind, raw in there
                if raw is not None
                and not obstacle(raw, owner.child(kind, "", name, owner.labels(LEARNER_ROLE)))
            ]
            if not ours:
                memory.names.discard(name)
            found += ours
        return tuple(found)

    async def _get(self, kind: str, owner: Owner, name: str) -> Object | None:
        return await self.api.get(path(kind, owner.namespace, name))

    # ------------------------------------------------------------ writing

    async def make(self, plan: Plan, memory: Memory) -> bool:
        """Write what the plan asks for; whether the API server has taken all of it.

        Raises ApiError when it is overloaded or unwell.
        """
        work = plan.certificates
        if work is None or not work.acts:
            return True
        memory.certificates.next_at = time.monotonic()  # the next pass reads what is there then
        for each in work.objects:
            if not await self._write(plan, memory, each, "cert-manager makes the certificate"):
                return False
        for gone in work.stale:
            await self.api.delete(path(gone.kind, plan.namespace, gone.name), gone.uid)
            log.info("deleted", job=plan.job, kind=gone.kind, name=gone.name, reason="no region")
        if not work.authority and not work.leaves:
            return True
        owner = Owner(namespace=plan.namespace, name=plan.job, uid=memory.uid)
        found = await self._authorities(plan, memory, owner)
        if found is None:
            return False
        for making in work.leaves:
            who = making.leaf.identity
            made = issue(found, who, time.time(), self.settings.certificate_seconds)
            files = {CRT: made.certificate, KEY: made.key, CA: made.authority}
            child = _secret(owner, making.leaf.secret, who.role, files)
            if making.uid:
                child["metadata"] |= {"uid": making.uid, "resourceVersion": making.version}
            if not await self._write(plan, memory, child, making.reason):
                return False
        return True

    async def _authorities(self, plan: Plan, memory: Memory, owner: Owner) -> Authorities | None:
        """The job's authorities as they should be now; None when they could not be written."""
        name, now = authority_name(owner.name), time.time()
        raw = await self._get(SECRET, owner, name)
        if raw is None:
            found, said = make_authorities(owner_of(owner), now), "it is not there"
        elif obstacle(raw, _secret(owner, name, AUTHORITY_ROLE, {})):
            return None
        else:
            try:
                found, said = turned(Authorities.from_files(_files(raw)), owner_of(owner), now)
            except SpecError as error:
                found, said = make_authorities(owner_of(owner), now), str(error)
        if not said:
            return found
        believed = memory.certificates.believed
        if believed and found.successor is None and not found.former:
            found = replace(found, former=believed)  # what has been lost is in use
        child = _secret(owner, name, AUTHORITY_ROLE, found.to_files())
        if raw is not None:
            here = raw["metadata"]
            child["metadata"] |= {"uid": here["uid"], "resourceVersion": here["resourceVersion"]}
        return found if await self._write(plan, memory, child, said) else None

    async def _write(self, plan: Plan, memory: Memory, child: Object, reason: str) -> bool:
        """Write one object; False when it was refused, or is not what was read any more."""
        kind, name = key_of(child)
        try:
            if kind == SECRET and "uid" not in child["metadata"]:
                await self.api.create(child)
            else:
                await self.api.apply(child)
        except ConflictError:
            return False  # another operator was faster, or somebody has just changed it
        except ApiError as error:
            if error.may_pass:
                raise
            memory.refuse((kind, name), "", error.message, plan.at, error.status)
            log.warning("refused", job=plan.job, kind=kind, name=name, error=str(error))
            return False
        memory.refused.pop((kind, name), None)
        self.metrics.writes.labels(kind).inc()
        log.info("applied", job=plan.job, kind=kind, name=name, reason=reason)
        return True


def owner_of(owner: Owner) -> identity.Owner:
    """The job's object as identities name it."""
    return identity.Owner(namespace=owner.namespace, job=owner.name, uid=owner.uid)


def _secret(owner: Owner, name: str, role: str, files: Mapping[str, bytes]) -> Object:
    data = {key: base64.b64encode(value).decode() for key, value in files.items()}
    return owner.child(SECRET, "v1", name, owner.labels(role), type=TLS_TYPE, data=data)


def _files(raw: Object | None) -> dict[str, bytes]:
    """The entries of a Secret."""
    data = (raw or {}).get("data") or {}
    return {key: base64.b64decode(value) for key, value in data.items()}


def _of_authority(
    raw: Object | None, owner: Owner, now: float
) -> tuple[SecretSeen, Authorities | None]:
    """What a pass gets to know of the authorities, and these, if they can be used."""
    name = authority_name(owner.name)
    if raw is None:
        return SecretSeen(name=name), None
    said = obstacle(raw, _secret(owner, name, AUTHORITY_ROLE, {}))
    seen = _seen(name, raw, obstacle=said)
    if said:
        return seen, None
    try:
        found = Authorities.from_files(_files(raw))
    except SpecError as error:
        return replace(seen, reason=str(error)), None
    return replace(seen, reason=turned(found, owner_of(owner), now)[1]), found


def _of_leaf(
    leaf: Leaf, raw: Object | None, owner: Owner, found: Authorities | None, now: float
) -> SecretSeen:
    """What a pass gets to know of a leaf; without authorities none can stay as it is."""
    if raw is None:
        return SecretSeen(name=leaf.secret)
    child = _secret(owner, leaf.secret, leaf.identity.role, {})
    seen = _seen(leaf.secret, raw, obstacle=obstacle(raw, child))
    if found is None:
        return replace(seen, reason="its authority is made again")
    judged = renewal(found, _credentials(raw), leaf.identity, now)
    return replace(seen, reason=judged.reason if judged.due else "", due_at=judged.at)


def _seen(name: str, raw: Object, **more: Any) -> SecretSeen:
    metadata = raw["metadata"]
    return SecretSeen(
        name=name,
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        written_at=written_at(metadata),
        **more,
    )


def _credentials(raw: Object) -> Credentials:
    certificate, key, authority = (_files(raw).get(each, b"") for each in (CRT, KEY, CA))
    return Credentials(certificate, key, authority)


def _ordered(asked: Object, live: Object | None) -> Object | None:
    """The Certificate to apply; None where the live one was made from the same."""
    if live is None:
        return asked
    annotations = live["metadata"].get("annotations") or {}
    if annotations.get(Annotation.APPLIED) == asked["metadata"]["annotations"][Annotation.APPLIED]:
        return None
    return {**asked, "metadata": {**asked["metadata"], "uid": live["metadata"]["uid"]}}


def _said_by(live: Object | None) -> str:
    """Why cert-manager has not made a Secret, in its own words."""
    conditions = ((live or {}).get("status") or {}).get("conditions") or []
    said = [
        f"{each.get('reason', '')}: {each.get('message', '')}"
        for each in sorted(conditions, key=lambda each: each.get("type") != "Ready")
        if (each.get("type") == "Ready") == (each.get("status") == "False")
    ]
    return "; ".join(said) or "cert-manager has said nothing of it yet"
