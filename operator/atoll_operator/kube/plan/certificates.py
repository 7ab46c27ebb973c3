"""The certificates of a job that talks over TLS: which there are, and what is to be made now.

docs/security.md (On Kubernetes) lists the Secrets; the operator's own certificates are made in
memory. The authority's Secret is made here, or by those whose Secret `spec.syncer.tls.caSecret`
names. What is there reaches this module without any key (`effects.secrets`), in the syncer's
cluster alone: the authority's key never leaves it.

Credentials that a person brings into a cluster without the syncer: how they are made and judged.

    tls.crt, tls.key             of the region's learners, which mount them
    operator.crt, operator.key   of the region's operator, which asks the shards and names owners
    ca.crt                       the authorities by which the shards are believed

Both certificates name the job's object where the syncer runs by its UID. This cluster cannot know
that UID: it believes the Secret, and a shard decides.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from atoll_operator.api.job.fields import TlsMode
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import Status
from atoll_operator.authority.job_authority import Authorities, due_at, issue
from atoll_operator.kube.names import (
    EVALUATOR_ROLE,
    LEARNER_ROLE,
    SHARD_ROLE,
    JobOwner,
    authority_name,
    credentials_name,
    leaf_name,
)
from atoll_operator.kube.observed.observation import (
    Certificates,
    ChildRefusal,
    Object,
    Raw,
    Stale,
)
from atoll_operator.kube.plan.phase import Before
from atoll_protos.names import Label
from atoll_protos.network.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    Credentials,
    Identity,
    JobIdentity,
    Needed,
    Role,
)

OPERATOR_CERTIFICATE: Final = "operator.crt"
OPERATOR_KEY: Final = "operator.key"
TLS_TYPE: Final = "kubernetes.io/tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSecret:
    """What was read of one region's Secret."""

    fault: str = ""  # what is wrong with it; empty: nothing
    due_at: float = float("inf")  # UNIX seconds from which it should be brought again
    operator: Credentials | None = field(default=None, repr=False)  # if nothing is


def secret(
    authorities: Authorities,
    owner: JobIdentity,
    region: str,
    name: str,
    now: float,
    life: float,
    generation: int = 0,
    machine: str = "",
) -> Object:
    """Make a region's Secret; its certificates live `life` seconds from `now` (UNIX seconds).

    `machine`: the only one for which that of the learners is.
    """
    learner, operator = (
        issue(
            authorities,
            Identity(
                namespace=owner.namespace,
                job=owner.job,
                uid=owner.uid,
                region=region,
                role=role,
                machine=machine if role is Role.LEARNER else "",
                generation=generation,
            ),
            now,
            life,
        )
        for role in (Role.LEARNER, Role.OPERATOR)
    )
    files = {
        CERTIFICATE: learner.certificate,
        KEY: learner.key,
        AUTHORITY: learner.authority,
        OPERATOR_CERTIFICATE: operator.certificate,
        OPERATOR_KEY: operator.key,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {Label.JOB: owner.job, Label.REGION: region},
        },
        "type": TLS_TYPE,
        "data": {key: base64.b64encode(value).decode() for key, value in files.items()},
    }


def judged(raw: Raw | None, job: str, region: str, now: float) -> JudgedSecret:
    """Judge what a region's Secret is good for at `now` (UNIX seconds); None: there is none."""
    if raw is None:
        return JudgedSecret(fault="it is not there")
    learner = credentials_of(raw)
    operator = credentials_of(raw, OPERATOR_CERTIFICATE, OPERATOR_KEY)
    for names, each, role in (
        ((CERTIFICATE, KEY), learner, Role.LEARNER),
        ((OPERATOR_CERTIFICATE, OPERATOR_KEY), operator, Role.OPERATOR),
    ):
        fault = each.fault(now, Needed(job=job, region=region, roles=[role]))
        if fault is not None:
            entry = dict(zip((CERTIFICATE, KEY), names, strict=True)).get(fault.field, fault.field)
            return JudgedSecret(fault=f"{entry} {fault.problem}")
    if learner.identity.owner != operator.identity.owner:
        said = f"{OPERATOR_CERTIFICATE} is of {operator.identity.owner}, {CERTIFICATE} is of"
        return JudgedSecret(fault=f"{said} {learner.identity.owner}")
    due = min(due_at(leaf.certificate) for leaf in (learner, operator))
    return JudgedSecret(operator=operator, due_at=due)


def command(job: str, namespace: str, region: str) -> str:
    return (
        f"atoll credentials {job} -n {namespace} --region {region} > {region}.yaml, with the"
        f" kubeconfig of the syncer's cluster, and kubectl apply -f {region}.yaml here"
    )


def files_of(raw: Raw) -> dict[str, bytes]:
    """Decode the entries of a Secret; what is not base64 counts as empty."""
    found = {}
    for name, text in (raw.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(text or "")
        except ValueError:
            found[name] = b""
    return found


def credentials_of(raw: Raw, certificate: str = CERTIFICATE, key: str = KEY) -> Credentials:
    files = files_of(raw)
    return Credentials(files.get(certificate, b""), files.get(key, b""), files.get(AUTHORITY, b""))


SECRET = "Secret"


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
    ca_secret: str = ""  # with the authority that others make; empty: it is made here
    missing: tuple[str, ...] = ()  # what is not there and not made in this pass, in words
    why: str = "CertificatesMissing"  # reason of the condition Accepted, when something is missing
    expiring: tuple[str, ...] = ()  # what should be brought again, in words
    refused: tuple[ChildRefusal, ...] = ()  # writes that the API server did not take
    stale: tuple[Stale, ...] = ()  # to delete

    @property
    def acts(self) -> bool:
        return bool(self.authority or self.leaves or self.stale)


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
    found += [(LEARNER_ROLE, entry.name) for entry in job.spec.regions if serves(entry.name)]
    return tuple(
        Leaf(secret=secret_of(job, role, region), identity=identity(owner, Role(role), region))
        for role, region in found
    )


def operators(job: Job, owner: JobOwner, serves: Callable[[str], bool]) -> tuple[Identity, ...]:
    """Return the operator's own: one for each region that it serves, to name its owners.

    That of the syncer's region comes first: shards take a job's ending from it alone.
    """
    regions = [entry.name for entry in job.spec.regions if serves(entry.name)]
    regions.sort(key=lambda each: each != job.spec.syncer_region)
    return tuple(identity(owner, Role.OPERATOR, region) for region in regions)


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
    return {leaf_name(job.name, Role.LEARNER, region.name) for region in status.regions or ()}


def authority_of(job: Job) -> str:
    """Name of the Secret with the job's authority, in the syncer's cluster."""
    return job.spec.syncer.tls.ca_secret or authority_name(job.name)


def needed(job: Job, before: Before, *, runs: bool, tls: bool | None) -> bool:
    """Whether they have to be there now; `runs`: there are pods, which talk over TLS if `tls`."""
    if runs:
        return bool(tls)
    required = job.spec.syncer.tls.mode is TlsMode.REQUIRED
    return required and not before.over and not job.spec.suspend


def work_of(
    job: Job,
    leaves: Sequence[Leaf],
    seen: Certificates,
    refused: Sequence[ChildRefusal],
    now: float,
) -> CertificateWork:
    """Find what to make at `now` of `leaves`; `refused`: writes that the API server rejected."""
    if seen.unread:
        return CertificateWork(missing=(seen.unread,))
    known = {refusal.name: refusal for refusal in refused if refusal.kind == SECRET}
    waits = {name for name, each in known.items() if each.wait_seconds > 0}
    names, authority = [leaf.secret for leaf in leaves], seen.of(authority_of(job))
    ca_secret, expiring = job.spec.syncer.tls.ca_secret, tuple[str, ...]()
    if ca_secret and authority.reason:
        said = f"the Secret {ca_secret} of spec.syncer.tls.caSecret: {authority.reason}"
        return CertificateWork(missing=(said,))
    if ca_secret and now >= authority.due_at:
        said = f"the authority of the Secret {ca_secret} expires soon: let its issuer renew it"
        expiring = (said,)
    if authority.obstacle or authority.name in waits:
        absent = [] if authority.uid else [authority.name]
        return CertificateWork(
            missing=_missing([*absent, *names], seen),
            refused=_refusals([authority.name], seen, known),
        )
    made = {name for name in names if seen.of(name).reason and not seen.of(name).obstacle} - waits
    return CertificateWork(
        authority=authority.reason,
        ca_secret=ca_secret,
        expiring=expiring,
        leaves=tuple(leaf for leaf in leaves if leaf.secret in made),
        missing=_missing([name for name in names if name not in made], seen),
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
    """Check the Secrets brought for a syncer elsewhere; `refusals` are in words."""
    if seen.unread:
        return CertificateWork(missing=(seen.unread,))
    regions = {
        credentials_name(job.name, entry.name): entry.name
        for entry in job.spec.regions
        if serves(entry.name)
    }
    found = {name: seen.of(name) for name in regions}
    do = {name: command(job.name, namespace, region) for name, region in regions.items()}
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
    for secret in map(seen.of, names):
        if not secret.uid:
            found.append(f"the Secret {secret.name} is not there")
        elif secret.obstacle:
            found.append(f"the Secret {secret.name}: {secret.obstacle}")
    return tuple(found)


def _refusals(
    names: Sequence[str], seen: Certificates, known: dict[str, ChildRefusal]
) -> tuple[ChildRefusal, ...]:
    """Return what the API server refused, and others' Secrets with the name of one of ours."""
    found = []
    for name in names:
        said = seen.of(name).obstacle
        if said:
            found.append(ChildRefusal(kind=SECRET, name=name, applied="", message=said))
        elif name in known:
            found.append(known[name])
    return tuple(found)
