"""Who a process of a job is, as its certificate says it.

Every certificate of a job holds one identity as its only URI name (SPIFFE):

    spiffe://atoll.dev/ns/NAMESPACE/job/NAME/uid/UID/region/REGION/role/ROLE[/generation/N]

Namespace, name and UID are those of the job's object in the cluster where its syncer lives: the
same manifest has another UID in every other cluster, and processes there learn these three from
their own certificate. The UID tells a run from a former one of the same name.

The generation grows by one each time the certificates of a region are revoked: shards refuse those
of a lower one (rule 41). 0 is not written.

Shards serve under one DNS name per job besides (`server_name`). Clients verify that name whatever
address they dial, so no certificate needs an address.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from atoll_protos.errors import SpecError

TRUST_DOMAIN: Final = "atoll.dev"
SERVER_SUFFIX: Final = "job.atoll.dev"

PART: Final = r"[A-Za-z0-9](?:[-.A-Za-z0-9]*[A-Za-z0-9])?"  # names and UIDs of Kubernetes
PATTERN: Final = re.compile(
    rf"spiffe://{re.escape(TRUST_DOMAIN)}/ns/({PART})/job/({PART})/uid/({PART})"
    rf"/region/({PART})/role/({PART})(?:/generation/([1-9][0-9]{{0,8}}))?"
)


class Role(StrEnum):
    """What a process does in its job, and so what it may ask of a shard."""

    SHARD = "shard"
    LEARNER = "learner"
    EVALUATOR = "evaluator"
    OBSERVER = "observer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The job that an identity belongs to: its object in the cluster where its syncer lives."""

    namespace: str
    job: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job} (UID {self.uid})"

    @property
    def server_name(self) -> str:
        """The DNS name under which all shards of the job serve, whatever their addresses."""
        return f"{self.job}.{self.namespace}.{SERVER_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process of one job: whose it is, where it runs and what it does."""

    namespace: str
    job: str
    uid: str
    region: str
    role: Role
    generation: int = 0  # of its region's certificates

    def __post_init__(self) -> None:
        for field in ("namespace", "job", "uid", "region"):
            value = getattr(self, field)
            if re.fullmatch(PART, value) is None:
                remedy = "use letters, digits, inner dots and dashes"
                raise SpecError(f"identity.{field}", f"{value!r} is not a name", remedy)

    def __str__(self) -> str:
        return f"{self.role} of region {self.region} of {self.owner}"

    @property
    def uri(self) -> str:
        """As it stands in a certificate."""
        written = f"/generation/{self.generation}" if self.generation else ""
        return (
            f"spiffe://{TRUST_DOMAIN}/ns/{self.namespace}/job/{self.job}/uid/{self.uid}"
            f"/region/{self.region}/role/{self.role}{written}"
        )

    @property
    def owner(self) -> Owner:
        """The job that this process belongs to."""
        return Owner(namespace=self.namespace, job=self.job, uid=self.uid)

    @property
    def server_name(self) -> str:
        """The DNS name under which all shards of its job serve."""
        return self.owner.server_name

    @classmethod
    def parse(cls, uri: str) -> "Identity":
        """The identity that `uri` spells. Raises SpecError."""
        found = PATTERN.fullmatch(uri)
        if found is None or found[5] not in list(Role):
            problem = f"{uri!r} does not name a process of a job"
            raise SpecError("identity", problem, "use a certificate that was made for the job")
        namespace, job, uid, region, role, generation = found.groups()
        return cls(
            namespace=namespace,
            job=job,
            uid=uid,
            region=region,
            role=Role(role),
            generation=int(generation or 0),
        )
