"""The certificates of a job that talks over TLS: which there are, and what is to be made now.

docs/security.md (On Kubernetes) lists the Secrets, of which JOB-tls-operator-REGION is there only
where an issuer of cert-manager signs; otherwise the operator's own certificates are made in memory.
With `spec.syncer.tls.issuerRef` there is an object Certificate of the same name for each leaf. What
is there reaches this module without any key (`effects.secrets`), in the syncer's cluster alone: the
authority's key never leaves it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.syncer_fields import TlsMode
from atoll_operator.api.status.job_status import Status
from atoll_operator.kube.names import (
    EVALUATOR_ROLE,
    LEARNER_ROLE,
    SHARD_ROLE,
    Annotation,
    authority_name,
    credentials_name,
    leaf_name,
)
from atoll_operator.kube.observed.observation import (
    Certificates,
    ChildRefusal,
    Object,
    Stale,
)
from atoll_operator.kube.plan.certificates import region_secret
from atoll_operator.kube.plan.manifest.phase import Before
from atoll_operator.kube.plan.owner import JobOwner
from atoll_protos.network.identity import Identity, Role

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
class CertificateWork:
    """What one pass does about a job's certificates, and what it says about them."""

    authority: str = ""  # why the Secret of the authorities is to be written; empty: it is not
    leaves: tuple[Leaf, ...] = ()  # to issue
    objects: tuple[Object, ...] = ()  # Certificates to apply
    missing: tuple[str, ...] = ()  # what is not there and not made in this pass, in words
    why: str = "CertificatesMissing"  # reason of the condition Accepted, when something is missing
    expiring: tuple[str, ...] = ()  # what should be brought again, in words
    refused: tuple[ChildRefusal, ...] = ()  # writes that the API server did not take
    stale: tuple[Stale, ...] = ()  # to delete

    @property
    def acts(self) -> bool:
        return bool(self.authority or self.leaves or self.objects or self.stale)


NOTHING = CertificateWork()


def secret_of(job: Job, role: str, region: str, *, home: bool = True) -> str:
    """`home`: the syncer lives in this cluster; elsewhere a person has brought the Secret."""
    if not home:
        return credentials_name(job.name, region)
    return leaf_name(job.name, role, region if role == LEARNER_ROLE else "")


def wanted(job: Job, owner: JobOwner, serves: Callable[[str], bool]) -> tuple[Leaf, ...]:
    home = job.spec.syncer_region
    found = [(SHARD_ROLE, home)]
    found += [(EVALUATOR_ROLE, home)] if job.spec.evaluator is not None else []
    found += [(LEARNER_ROLE, each.name) for each in job.spec.regions if serves(each.name)]
    leaves = [
        Leaf(secret=secret_of(job, role, region), identity=identity(owner, Role(role), region))
        for role, region in found
    ]
    return (*leaves, *(operators(job, owner, serves) if job.spec.syncer.tls.issuer_ref else ()))


def operators(job: Job, owner: JobOwner, serves: Callable[[str], bool]) -> tuple[Leaf, ...]:
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


def identity(owner: JobOwner, role: Role, region: str) -> Identity:
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
    regions = [each.name for each in status.regions or ()]
    roles = [Role.LEARNER, *([Role.OPERATOR] if job.spec.syncer.tls.issuer_ref else [])]
    return {leaf_name(job.name, role, each) for role in roles for each in regions}


def needed(job: Job, before: Before, *, runs: bool, tls: bool | None) -> bool:
    """Whether they have to be there now; `runs`: there are pods, which talk over TLS if `tls`."""
    if runs:
        return bool(tls)
    required = job.spec.syncer.tls.mode is TlsMode.REQUIRED
    return required and not before.over and not job.spec.suspend


def work_of(
    job: Job, leaves: Sequence[Leaf], seen: Certificates, refused: Sequence[ChildRefusal]
) -> CertificateWork:
    """What to make now of `leaves`; `refused` are writes that the API server has not taken."""
    if seen.unread:
        return CertificateWork(missing=(seen.unread,))
    known = {each.name: each for each in refused if each.kind in (SECRET, CERTIFICATE)}
    waits = {name for name, each in known.items() if each.wait_seconds > 0}
    if job.spec.syncer.tls.issuer_ref is not None:
        return _issued(leaves, seen, known, waits)
    names, authority = [each.secret for each in leaves], seen.of(authority_name(job.name))
    if authority.obstacle or authority.name in waits:
        absent = [] if authority.uid else [authority.name]
        return CertificateWork(
            missing=_missing([*absent, *names], seen),
            refused=_refusals([authority.name], seen, known),
        )
    made = {name for name in names if seen.of(name).reason and not seen.of(name).obstacle} - waits
    return CertificateWork(
        authority=authority.reason,
        leaves=tuple(each for each in leaves if each.secret in made),
        missing=_missing([each for each in names if each not in made], seen),
        refused=_refusals(names, seen, known),
        stale=seen.stale,
    )


def work_of_region_secrets(
    job: Job,
    namespace: str,
    serves: Callable[[str], bool],
    seen: Certificates,
    refusals: Sequence[str],
    now: float,
) -> CertificateWork:
    """What is wrong with the Secrets brought for a syncer elsewhere; `refusals` are in words."""
    if seen.unread:
        return CertificateWork(missing=(seen.unread,))
    regions = {
        credentials_name(job.name, each.name): each.name
        for each in job.spec.regions
        if serves(each.name)
    }
    found = {name: seen.of(name) for name in regions}
    do = {
        name: region_secret.command(job.name, namespace, region) for name, region in regions.items()
    }
    absent = [name for name, each in found.items() if not each.uid]
    if absent:
        said = tuple(f"the Secret {name} is not there: run {do[name]}" for name in absent)
        return CertificateWork(missing=said, why="CredentialsMissing")
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
    return CertificateWork(missing=wrong, why="CredentialsRefused", expiring=expiring)


def _missing(names: Sequence[str], seen: Certificates) -> tuple[str, ...]:
    found = []
    for each in map(seen.of, names):
        if not each.uid:
            found.append(f"the Secret {each.name} is not there")
        elif each.obstacle:
            found.append(f"the Secret {each.name}: {each.obstacle}")
    return tuple(found)


def _refusals(
    names: Sequence[str], seen: Certificates, known: dict[str, ChildRefusal]
) -> tuple[ChildRefusal, ...]:
    """What the API server has refused, and Secrets of others that have the name of one of ours."""
    found = []
    for name in names:
        said = seen.of(name).obstacle
        if said:
            found.append(ChildRefusal(kind=SECRET, name=name, applied="", message=said))
        elif name in known:
            found.append(known[name])
    return tuple(found)


# ---------------------------------------------------------------- cert-manager


def _issued(
    leaves: Sequence[Leaf], seen: Certificates, known: dict[str, ChildRefusal], waits: set[str]
) -> CertificateWork:
    """The Certificates to apply, and why those Secrets are not there that are not."""
    missing, objects = [], []
    for leaf in leaves:
        each = seen.of(leaf.secret)
        if each.reason:
            missing.append(f"Certificate {leaf.secret}: {each.reason}")
        if each.order is not None and not each.obstacle and leaf.secret not in waits:
            objects.append(each.order)
    names = [each.secret for each in leaves]
    return CertificateWork(
        objects=tuple(objects),
        missing=tuple(missing),
        refused=_refusals(names, seen, known),
        stale=seen.stale,
    )


def order(job: Job, owner: JobOwner, leaf: Leaf, life_seconds: float) -> Object:
    """The Certificate for cert-manager; as ours, it is renewed at two thirds of its life."""
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
    if who.serves_as:
        spec |= {"dnsNames": [who.serves_as], "usages": [*spec["usages"], "server auth"]}
    return owner.child(CERTIFICATE, ISSUED_API, leaf.secret, labels, spec=spec)


def ordered(asked: Object, live: Object | None) -> Object | None:
    """The Certificate to apply; None where the live one was made from the same."""
    if live is None:
        return asked
    annotations = live["metadata"].get("annotations") or {}
    if annotations.get(Annotation.APPLIED) == asked["metadata"]["annotations"][Annotation.APPLIED]:
        return None
    return {**asked, "metadata": {**asked["metadata"], "uid": live["metadata"]["uid"]}}


def issuer_message(live: Object | None) -> str:
    conditions = ((live or {}).get("status") or {}).get("conditions") or []
    said = [
        f"{each.get('reason', '')}: {each.get('message', '')}"
        for each in sorted(conditions, key=lambda each: each.get("type") != "Ready")
        if (each.get("type") == "Ready") == (each.get("status") == "False")
    ]
    return "; ".join(said) or "cert-manager has said nothing of it yet"
