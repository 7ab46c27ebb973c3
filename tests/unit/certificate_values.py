"""Certificates for tests: an authority and leaves of a job called team/bytes."""

from atoll_operator.authority import job_authority
from atoll_operator.authority.job_authority import Authorities
from atoll_protos.network.credentials import Credentials, Identity, JobIdentity, Role

NOW = 1_790_000_000.0  # UNIX seconds
HOUR, DAY = 3_600.0, 86_400.0
OWNER = JobIdentity(namespace="team", job="bytes", uid="0b-1")


def identity(
    role: Role = Role.LEARNER, region: str = "us-east", owner: JobIdentity = OWNER
) -> Identity:
    return Identity(
        namespace=owner.namespace, job=owner.job, uid=owner.uid, region=region, role=role
    )


def authorities(now: float = NOW, owner: JobIdentity = OWNER) -> Authorities:
    return job_authority.make_authorities(owner, now)


def leaf(
    issuers: Authorities, who: Identity | None = None, now: float = NOW, life: float = 30 * DAY
) -> Credentials:
    return job_authority.issue(issuers, who or identity(), now, life)
