"""Credentials that a person brings into a cluster without the syncer: how they are made and judged.

    tls.crt, tls.key             of the region's learners, which mount them
    operator.crt, operator.key   of the region's operator, which asks the shards and names owners
    ca.crt                       the authorities by which the shards are believed

Both certificates name the job's object where the syncer runs by its UID. This cluster cannot know
that UID: it believes the Secret, and a shard decides.
"""

import base64
from dataclasses import dataclass, field
from typing import Final

from atoll_operator.authority.job_authority import Authorities, due_at, issue
from atoll_operator.kube.observed.observation import Object, Raw
from atoll_protos.names import Label
from atoll_protos.network.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials, Needed
from atoll_protos.network.identity import Identity, JobIdentity, Role

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
    """The Secret of a region; its certificates live `life` seconds from `now` (UNIX seconds).

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
    """What a region's Secret is good for at `now` (UNIX seconds); None: there is none."""
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
    due = min(due_at(each.certificate) for each in (learner, operator))
    return JudgedSecret(operator=operator, due_at=due)


def command(job: str, namespace: str, region: str) -> str:
    return (
        f"atoll credentials {job} -n {namespace} --region {region} > {region}.yaml, with the"
        f" kubeconfig of the syncer's cluster, and kubectl apply -f {region}.yaml here"
    )


def files_of(raw: Raw) -> dict[str, bytes]:
    """The entries of a Secret; what is not base64 counts as empty."""
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
