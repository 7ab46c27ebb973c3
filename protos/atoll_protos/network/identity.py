"""Who a process of a job is, as its certificate says it (docs/security.md, Identities).

Namespace, name and UID are those of the job's object in the cluster where its syncer lives; the UID
tells a run from a former one of the same name. Shards refuse a generation below that of their list,
and a machine that it does not name (rule 41). Shards serve under `server_name`, the first host of a
learner under `learner_name`; clients verify that whatever address they dial.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from atoll_protos.errors import SpecError

TRUST_DOMAIN: Final = "atoll.dev"
SERVER_SUFFIX: Final = "job.atoll.dev"
LEARNER_SUFFIX: Final = "learner.atoll.dev"

PART: Final = r"[A-Za-z0-9](?:[-.A-Za-z0-9]*[A-Za-z0-9])?"  # names and UIDs of Kubernetes
PATTERN: Final = re.compile(
    rf"spiffe://{re.escape(TRUST_DOMAIN)}/ns/({PART})/job/({PART})/uid/({PART})"
    rf"/region/({PART})/role/({PART})(?:/machine/({PART}))?(?:/generation/([1-9][0-9]{{0,8}}))?"
)


class Role(StrEnum):
    """What a process does in its job, and so what it may ask of a shard."""

    SHARD = "shard"
    LEARNER = "learner"
    EVALUATOR = "evaluator"
    OBSERVER = "observer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """The object of an identity's job, in the cluster where its syncer lives."""

    namespace: str
    job: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job} (UID {self.uid})"

    @property
    def server_name(self) -> str:
        return f"{self.job}.{self.namespace}.{SERVER_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process of one job: whose it is, where it runs and what it does."""

    namespace: str
    job: str
    uid: str
    region: str
    role: Role
    machine: str = ""  # the only one whose learners it is for; empty: any of its region
    generation: int = 0  # of its region's certificates

    def __post_init__(self) -> None:
        if self.machine and self.role is not Role.LEARNER:
            problem = f"a certificate of role {self.role} is not one of a machine"
            raise SpecError("identity.machine", problem, "leave it out")
        for field in ("namespace", "job", "uid", "region", *(["machine"] if self.machine else [])):
            value = getattr(self, field)
            if re.fullmatch(PART, value) is None:
                remedy = "use letters, digits, inner dots and dashes"
                raise SpecError(f"identity.{field}", f"{value!r} is not a name", remedy)

    def __str__(self) -> str:
        on = f" on machine {self.machine}" if self.machine else ""
        return f"{self.role}{on} of region {self.region} of {self.owner}"

    @property
    def uri(self) -> str:
        machine = f"/machine/{self.machine}" if self.machine else ""
        generation = f"/generation/{self.generation}" if self.generation else ""
        return (
            f"spiffe://{TRUST_DOMAIN}/ns/{self.namespace}/job/{self.job}/uid/{self.uid}"
            f"/region/{self.region}/role/{self.role}{machine}{generation}"
        )

    @property
    def owner(self) -> JobIdentity:
        return JobIdentity(namespace=self.namespace, job=self.job, uid=self.uid)

    @property
    def server_name(self) -> str:
        return self.owner.server_name

    @property
    def learner_name(self) -> str:
        return f"{self.job}.{self.namespace}.{self.region}.{LEARNER_SUFFIX}"

    @property
    def serves_as(self) -> str:
        """The DNS name of its certificate; empty for a role that serves nobody."""
        names = {Role.SHARD: self.server_name, Role.LEARNER: self.learner_name}
        return names.get(self.role, "")

    @classmethod
    def parse(cls, uri: str) -> "Identity":
        """Raises SpecError."""
        found = PATTERN.fullmatch(uri)
        if found is None or found[5] not in list(Role):
            problem = f"{uri!r} does not name a process of a job"
            raise SpecError("identity", problem, "use a certificate that was made for the job")
        namespace, job, uid, region, role, machine, generation = found.groups()
        return cls(
            namespace=namespace,
            job=job,
            uid=uid,
            region=region,
            role=Role(role),
            machine=machine or "",
            generation=int(generation or 0),
        )
