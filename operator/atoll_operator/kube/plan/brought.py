"""Credentials that a person brings into a cluster without the syncer: how they are made and judged.

Such a cluster has no authority of the job, so nothing there can issue a certificate. Where the
syncer runs, `atoll credentials JOB --region R` prints one Secret for each region R, which is
applied in the cluster of that region:

    tls.crt, tls.key             of the region's learners, which mount them
    operator.crt, operator.key   of the region's operator, which asks the shards and names owners
    ca.crt                       the authorities by which the shards are believed

Both certificates name the job's object where the syncer runs (`atoll_protos.identity`): its UID
tells a run from a former one of the same name, which has other authorities. This cluster cannot
know that UID, so it believes the Secret for what it says, and a shard decides.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from atoll_operator.certificates import Authorities, due_at, issue
from atoll_operator.kube.observation import Object, Raw
from atoll_protos.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials, Needed
from atoll_protos.identity import Identity, Owner, Role
from atoll_protos.names import Label

OPERATOR_CERTIFICATE: Final = "operator.crt"
OPERATOR_KEY: Final = "operator.key"
TLS_TYPE: Final = "kubernetes.io/tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What was read of one region's Secret."""

    name: str
    region: str
    fault: str = ""  # what is wrong with it; empty: nothing
    due_at: float = float("inf")  # UNIX seconds from which it should be brought again
    operator: Credentials | None = field(default=None, repr=False)  # if nothing is


def secret(
    authorities: Authorities,
    owner: Owner,
    region: str,
    name: str,
    now: float,
    life: float,
    generation: int = 0,
) -> Object:
    """The Secret of a region; its certificates live `life` seconds from `now` (UNIX seconds)."""
    learner, operator = (
        issue(
            authorities,
            Identity(
                namespace=owner.namespace,
                job=owner.job,
                uid=owner.uid,
                region=region,
                role=role,
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


def judged(raw: Raw | None, name: str, job: str, region: str, now: float) -> Brought:
    """What a region's Secret is good for at `now` (UNIX seconds); None: there is none."""
    if raw is None:
        return Brought(name=name, region=region, fault="it is not there")
    files = _files(raw)
    learner = Credentials(files(CERTIFICATE), files(KEY), files(AUTHORITY))
    operator = Credentials(files(OPERATOR_CERTIFICATE), files(OPERATOR_KEY), files(AUTHORITY))
    for names, each, role in (
        ((CERTIFICATE, KEY), learner, Role.LEARNER),
        ((OPERATOR_CERTIFICATE, OPERATOR_KEY), operator, Role.OPERATOR),
    ):
        fault = each.fault(now, Needed(job=job, region=region, roles=[role]))
        if fault is not None:
            entry = dict(zip((CERTIFICATE, KEY), names, strict=True)).get(fault.field, fault.field)
            return Brought(name=name, region=region, fault=f"{entry} {fault.problem}")
    if learner.identity.owner != operator.identity.owner:
        said = f"{OPERATOR_CERTIFICATE} is of {operator.identity.owner}, {CERTIFICATE} is of"
        return Brought(name=name, region=region, fault=f"{said} {learner.identity.owner}")
    due = min(due_at(each.certificate) for each in (learner, operator))
    return Brought(name=name, region=region, operator=operator, due_at=due)


def command(job: str, namespace: str, region: str) -> str:
    """What a person types to bring a region's Secret."""
    return (
        f"atoll credentials {job} -n {namespace} --region {region} > {region}.yaml, with the"
        f" kubeconfig of the syncer's cluster, and kubectl apply -f {region}.yaml here"
    )


def _files(raw: Raw) -> Any:
    data: Mapping[str, str] = raw.get("data") or {}

    def read(name: str) -> bytes:
        try:
            return base64.b64decode(data.get(name) or "")
        except ValueError:
            return b""

    return read
