"""The certificates of a job that talks over TLS: which there are, and what is to be made now.

    JOB-ca                   the job's authorities, for the operator alone; no pod mounts it
    JOB-tls-shard            of all shards
    JOB-tls-evaluator        of the evaluator, if there is one
    JOB-tls-learner-REGION   of all learners of a region that this install serves
    JOB-tls-operator-REGION  of the operator, where an issuer of cert-manager signs

Each is a Secret that the job owns. Pods of a role mount theirs, and the kubelet shows them a new
one within some minutes, so a renewal restarts nobody. `atoll_operator.certificates` says when a
certificate is due, and how one authority follows another without a moment in which two processes
do not believe each other. The operator's own certificates need no Secret: it makes them when it
begins to ask a job's shards, and keeps them in memory.

With `spec.syncer.tls.issuerRef` there is no authority of ours. For each leaf there is an object
Certificate of the same name, by which cert-manager makes and renews the Secret; the operator reads
what comes of it.

What is there is read by `kube.secrets`, seldom, and reaches this module without any key: names,
UIDs, and why a Secret is to be made again. That this takes place in the syncer's cluster alone is
due to the authority's key, which never leaves it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status
from atoll_operator.api.syncer import TlsMode
from atoll_operator.kube.names import (
    EVALUATOR_ROLE,
    LEARNER_ROLE,
    SHARD_ROLE,
    authority_name,
    credentials_name,
    leaf_name,
)
from atoll_operator.kube.observation import Certificates, Object, Refusal, SecretSeen, Stale
from atoll_operator.kube.plan import brought
from atoll_operator.kube.plan.owner import Owner
from atoll_operator.kube.plan.phase import Before
from atoll_protos.identity import Identity, Role

SECRET = "Secret"
CERTIFICATE = "Certificate"
ISSUED_API = "cert-manager.io/v1"
HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A certificate that there has to be: the Secret that holds it, and whose it is."""

    secret: str
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A leaf that is to be made now, and why."""

    leaf: Leaf
    reason: str
    uid: str = ""  # of the object that is there; empty: there is none
    version: str = ""  # its resourceVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one pass does about a job's certificates, and what it says about them."""

    authority: str = ""  # why the Secret of the authorities is to be written; empty: it is not
    leaves: tuple[Making, ...] = ()  # Secrets of ours, or objects Certificate
    objects: tuple[Object, ...] = ()  # Certificates to apply
    missing: tuple[str, ...] = ()  # what is not there and not made in this pass, in words
    why: str = "CertificatesMissing"  # reason of the condition Accepted, when something is missing
    expiring: tuple[str, ...] = ()  # what should be brought again, in words
    refused: tuple[Refusal, ...] = ()  # writes that the API server did not take
    stale: tuple[Stale, ...] = ()  # to delete

    @property
    def acts(self) -> bool:
        """Whether anything is written."""
        return bool(self.authority or self.leaves or self.objects or self.stale)


def secret_of(job: Job, role: str, region: str, *, home: bool = True) -> str:
    """Name of the Secret that the pods of a role mount; `home`: the syncer lives in this cluster.

    Elsewhere a person has brought it.
    """
    if not home:
        return credentials_name(job.name, region)
    return leaf_name(job.name, role, region if role == LEARNER_ROLE else "")


def wanted(job: Job, owner: Owner, serves: Callable[[str], bool]) -> tuple[Leaf, ...]:
    """The leaves of a job where its syncer lives."""
    home = job.spec.syncer_region
    found = [(SHARD_ROLE, home)]
    found += [(EVALUATOR_ROLE, home)] if job.spec.evaluator is not None else []
    found += [(LEARNER_ROLE, each.name) for each in job.spec.regions if serves(each.name)]
    leaves = [
        Leaf(secret=secret_of(job, role, region), identity=identity(owner, Role(role), region))
        for role, region in found
    ]
    return (*leaves, *(operators(job, owner, serves) if job.spec.syncer.tls.issuer_ref else ()))


def operators(job: Job, owner: Owner, serves: Callable[[str], bool]) -> tuple[Leaf, ...]:
    """The operator's own leaves: one for each region that it serves, to name its owners.

    That of the syncer's region comes first: shards take a job's ending from it alone.
    """
    regions = [each.name for each in job.spec.regions if serves(each.name)]
    regions.sort(key=lambda each: each != job.spec.syncer_region)
    return tuple(
        Leaf(
            secret=leaf_name(job.name, Role.OPERATOR, region),
            identity=identity(owner, Role.OPERATOR, region),
        )
        for region in regions
    )


def identity(owner: Owner, role: Role, region: str) -> Identity:
    """Who a process of the job is."""
    revocable = role in (Role.LEARNER, Role.OPERATOR)  # those that `atoll credentials` prints
    return Identity(
        namespace=owner.namespace,
        job=owner.name,
        uid=owner.uid,
        region=region,
        role=role,
        generation=owner.generations.get(region, 0) if revocable else 0,
    )


def leaf_names(job: Job, status: Status) -> set[str]:
    """Names of the Secrets of regions that the job has had, as far as its status tells."""
    regions = [each.name for each in status.regions or ()]
    roles = [Role.LEARNER, *([Role.OPERATOR] if job.spec.syncer.tls.issuer_ref else [])]
    return {leaf_name(job.name, role, each) for role in roles for each in regions}


def needed(job: Job, before: Before, *, runs: bool, tls: bool | None) -> bool:
    """Whether the job's certificates have to be there now.

    `runs`: a workload of it has pods, which talk over TLS or do not (`tls`).
    """
    if runs:
        return bool(tls)
    required = job.spec.syncer.tls.mode is TlsMode.REQUIRED
    return required and not before.over and not job.spec.suspend


def decide(
    job: Job, leaves: Sequence[Leaf], seen: Certificates, refused: Sequence[Refusal], now: float
) -> Work:
    """What to make now of `leaves`.

    `refused` are writes that the API server has not taken, `now` is in UNIX seconds.
    """
    if seen.unread:
        return Work(missing=(seen.unread,))
    known = {each.name: each for each in refused if each.kind in (SECRET, CERTIFICATE)}
    waits = {name for name, each in known.items() if each.wait_seconds > 0}
    if job.spec.syncer.tls.issuer_ref is not None:
        return _issued(leaves, seen, known, waits)
    authority = _reason(seen.authority, now)
    name = authority_name(job.name)
    if seen.authority.obstacle or name in waits:
        absent = [] if seen.authority.uid else [name]
        return Work(
            missing=_missing([*absent, *(each.secret for each in leaves)], seen),
            refused=_refusals([name], seen, known),
        )
    makings = []
    for leaf in leaves:
        each = seen.leaves.get(leaf.secret) or SecretSeen(name=leaf.secret)
        reason = _reason(each, now)
        if reason and not each.obstacle and leaf.secret not in waits:
            makings.append(Making(leaf=leaf, reason=reason, uid=each.uid, version=each.version))
    names = [each.secret for each in leaves]
    made = {each.leaf.secret for each in makings}
    return Work(
        authority=authority,
        leaves=tuple(makings),
        missing=_missing([each for each in names if each not in made], seen),
        refused=_refusals(names, seen, known),
        stale=seen.stale,
    )


def decide_brought(
    job: Job,
    namespace: str,
    serves: Callable[[str], bool],
    seen: Certificates,
    refusals: Sequence[str],
    now: float,
) -> Work:
    """What is wrong with the Secrets that people have brought, where the syncer is elsewhere.

    `refusals`: why the shards and this cluster do not take each other, in words.
    """
    if seen.unread:
        return Work(missing=(seen.unread,))
    regions = {
        credentials_name(job.name, each.name): each.name
        for each in job.spec.regions
        if serves(each.name)
    }
    found = {name: seen.leaves.get(name) or SecretSeen(name=name) for name in regions}
    do = {name: brought.command(job.name, namespace, region) for name, region in regions.items()}
    absent = [name for name, each in found.items() if not each.uid]
    if absent:
        said = tuple(f"the Secret {name} is not there: run {do[name]}" for name in absent)
        return Work(missing=said, why="CredentialsMissing")
    wrong = tuple(
        f"the Secret {name}: {each.reason}; run {do[name]}"
        for name, each in found.items()
        if each.reason
    )
    if not wrong and refusals:
        wrong = (f"{'; '.join(refusals)}; for other credentials run {'; '.join(do.values())}",)
    expiring = tuple(
        f"the certificates of the Secret {name} expire: run {do[name]}"
        for name, each in found.items()
        if now >= each.due_at
    )
    return Work(missing=wrong, why="CredentialsRefused", expiring=expiring)


def _reason(each: SecretSeen, now: float) -> str:
    """Why a Secret is to be made now; empty: it is as it should be."""
    if not each.uid:
        return "it is not there"
    return each.reason or ("two thirds of its life are over" if now >= each.due_at else "")


def _missing(names: Sequence[str], seen: Certificates) -> tuple[str, ...]:
    """Secrets that pods cannot mount, in words."""
    found = []
    for name in names:
        each = seen.authority if seen.authority.name == name else seen.leaves.get(name)
        if each is None or not each.uid:
            found.append(f"the Secret {name} is not there")
        elif each.obstacle:
            found.append(f"the Secret {name}: {each.obstacle}")
    return tuple(found)


def _obstacle(name: str, seen: Certificates) -> str:
    each = seen.authority if seen.authority.name == name else seen.leaves.get(name)
    return each.obstacle if each else ""


def _refusals(
    names: Sequence[str], seen: Certificates, known: dict[str, Refusal]
) -> tuple[Refusal, ...]:
    """What the API server has refused, and Secrets of others that have the name of one of ours."""
    found = []
    for name in names:
        said = _obstacle(name, seen)
        if said:
            found.append(Refusal(kind=SECRET, name=name, applied="", message=said))
        elif name in known:
            found.append(known[name])
    return tuple(found)


# ---------------------------------------------------------------- cert-manager


def _issued(
    leaves: Sequence[Leaf],
    seen: Certificates,
    known: dict[str, Refusal],
    waits: set[str],
) -> Work:
    """The Certificates to apply, and why those Secrets are not there that are not."""
    missing, objects = [], []
    for leaf in leaves:
        each = seen.leaves.get(leaf.secret) or SecretSeen(name=leaf.secret)
        if each.reason:
            missing.append(f"Certificate {leaf.secret}: {each.reason}")
        if each.order is not None and not each.obstacle and leaf.secret not in waits:
            objects.append(each.order)
    names = [each.secret for each in leaves]
    return Work(
        objects=tuple(objects),
        missing=tuple(missing),
        refused=_refusals(names, seen, known),
        stale=seen.stale,
    )


def order(job: Job, owner: Owner, leaf: Leaf, life_seconds: float) -> Object:
    """The object Certificate by which cert-manager makes a leaf.

    Its dates are those of ours: it lives `life_seconds` and is renewed at two thirds of that.
    """
    issuer = job.spec.syncer.tls.issuer_ref
    assert issuer is not None, "the caller has looked"
    who, labels = leaf.identity, owner.labels(leaf.identity.role)
    spec: dict[str, Any] = {
        "secretName": leaf.secret,
        "secretTemplate": {"labels": labels},
        "uris": [who.uri],
        "usages": ["digital signature", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "duration": f"{int(max(life_seconds, HOUR_SECONDS))}s",
        "renewBefore": f"{int(max(life_seconds, HOUR_SECONDS) / 3)}s",
        "issuerRef": issuer.model_dump(by_alias=True),
    }
    if who.role is Role.SHARD:
        spec |= {"dnsNames": [who.server_name], "usages": [*spec["usages"], "server auth"]}
    return owner.child(CERTIFICATE, ISSUED_API, leaf.secret, labels, spec=spec)
