"""Certificates for tests: an authority and leaves of a job called team/bytes."""

from atoll_operator import certificates
from atoll_operator.certificates import Authorities
from atoll_protos.credentials import Credentials
from atoll_protos.identity import Identity, Owner, Role

NOW = 1_790_000_000.0  # UNIX seconds
HOUR, DAY = 3_600.0, 86_400.0
OWNER = Owner(namespace="team", job="bytes", uid="0b-1")


def identity(role: Role = Role.LEARNER, region: str = "us-east", owner: Owner = OWNER) -> Identity:
    return Identity(
        namespace=owner.namespace, job=owner.job, uid=owner.uid, region=region, role=role
    )


def authorities(now: float = NOW, owner: Owner = OWNER) -> Authorities:
    return certificates.make_authorities(owner, now)


def leaf(
    issuers: Authorities, who: Identity | None = None, now: float = NOW, life: float = 30 * DAY
) -> Credentials:
    return certificates.issue(issuers, who or identity(), now, life)
