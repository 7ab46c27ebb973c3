"""The credentials with which a process of a job proves who it is (docs/security.md, Files).

A peer whose certificate is not believed sees no more than a closed connection. So each process
looks at its own files before it dials (`Credentials.fault`). Dates are healed by the next renewal,
and worth waiting for; all else stays wrong until somebody puts other files there.

Kubernetes replaces a mounted Secret by turning one link, `..data`; `read` follows it once, so that
the three files are of one set. `cryptography` is imported where a certificate is read: it is half
of what a process without credentials would import.

Who a process of a job is, as its certificate says it (docs/security.md, Identities).

Namespace, name and UID are those of the job's object in the cluster where its syncer lives; the UID
tells a run from a former one of the same name. Shards refuse a generation below that of their list,
and a machine that it does not name (rule 41). Shards serve under `server_name`, which clients
verify whatever address they dial.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


TRUST_DOMAIN: Final = "atoll.dev"
SERVER_SUFFIX: Final = "job.atoll.dev"

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
        for part in ("namespace", "job", "uid", "region", *(["machine"] if self.machine else [])):
            value = getattr(self, part)
            if re.fullmatch(PART, value) is None:
                remedy = "use letters, digits, inner dots and dashes"
                raise SpecError(f"identity.{part}", f"{value!r} is not a name", remedy)

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

    @classmethod
    def parse(cls, uri: str) -> "Identity":
        """Raise SpecError."""
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


CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
KUBERNETES_LINK: Final = "..data"

RENEW: Final = (
    "the operator of the syncer's cluster renews it; in another cluster apply its Secret again, and"
    " for a machine write its files again"
)
REPLACE: Final = (
    "put there the credentials of this run of the job; `atoll credentials JOB --region REGION` "
    "prints them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a file, and what to do. `heals`: a renewal or the clock may mend it."""

    field: str  # the file
    problem: str
    remedy: str = REPLACE
    heals: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.remedy}"


class OutOfDateError(Exception):
    """Credentials that are expired or not valid yet: the same folder may hold good ones later."""


class CredentialsError(SpecError):
    """Credentials with which no attempt can succeed until somebody puts others in their place."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.field, fault.problem, fault.remedy)
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What the identity of some credentials has to be; None and () leave a part open."""

    namespace: str | None = None
    job: str | None = None
    uid: str | None = None
    region: str | None = None
    machine: str | None = None
    roles: Collection[Role] = ()

    def unmet(self, found: Identity) -> str:
        """Return the first part that differs, in words with both values; empty: none."""
        for word, have, need in (
            ("namespace", found.namespace, self.namespace),
            ("job", found.job, self.job),
            ("UID", found.uid, self.uid),
            ("region", found.region, self.region),
            ("machine", found.machine, self.machine),
        ):
            if need is not None and have != need:
                return f"is that of {word} {have or '-'}, and {word} {need or '-'} is needed"
        if self.roles and found.role not in self.roles:
            needed = " or ".join(sorted(self.roles))
            return f"is that of role {found.role}, and {needed} is needed"
        return ""


ANY: Final = Needed()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the three files, all PEM. `source` names where they lie, for messages."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes
    source: str = field(default="", compare=False)

    @classmethod
    def read(cls, folder: Path | str) -> "Credentials":
        """Read the files of `folder`, all of one set. Raises CredentialsError."""
        folder = Path(folder)
        try:
            files = _files(folder)
        except FileNotFoundError:  # the set was replaced while it was read
            files = _files(folder)
        except OSError as error:
            fault = Fault(field=str(folder), problem=str(error.strerror))
            raise CredentialsError(fault) from error
        return cls(*files, source=str(folder))

    @property
    def identity(self) -> Identity:
        leaf = self._certificates()[0]
        try:
            return identity_of(leaf)
        except SpecError as error:
            raise CredentialsError(self._fault(CERTIFICATE, error.problem)) from error

    @property
    def not_after(self) -> float:
        return self._certificates()[0].not_valid_after_utc.timestamp()

    def fault(self, now: float, needed: Needed = ANY) -> Fault | None:
        """Return what is wrong at `now` (UNIX seconds), what no time heals first."""
        try:
            return self._first_fault(now, needed)
        except CredentialsError as error:
            return error.fault

    def check(self, now: float, needed: Needed = ANY) -> Identity:
        """Raise OutOfDateError for dates, which may heal, and CredentialsError for the rest."""
        fault = self.fault(now, needed)
        if fault is None:
            return self.identity
        raise OutOfDateError(str(fault)) if fault.heals else CredentialsError(fault)

    def _first_fault(self, now: float, needed: Needed) -> Fault | None:
        chain, authorities = self._certificates(), self._authorities()
        if not self._key_fits(chain[0]):
            return self._fault(KEY, f"is not the key of the certificate in {CERTIFICATE}")
        behind = _behind(chain, authorities)
        if not behind:
            problem = f"was not issued by an authority of {AUTHORITY}, but by {_issuer(chain[0])}"
            return self._fault(CERTIFICATE, problem)
        if unmet := needed.unmet(self.identity):
            return self._fault(CERTIFICATE, unmet)
        outdated = self._out_of_date(chain[0], CERTIFICATE, now)
        if outdated is not None or any(_valid(each, now) for each in behind):
            return outdated
        return self._out_of_date(behind[0], AUTHORITY, now)

    def _out_of_date(self, certificate: "Certificate", file: str, now: float) -> Fault | None:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > end.timestamp():
            return self._fault(file, f"expired at {_words(end)}", RENEW, heals=True)
        if now < begin.timestamp():
            problem = f"is valid from {_words(begin)}, which has not come by this machine's clock"
            remedy = "set the clocks of the machines to one time, or wait until then"
            return self._fault(file, problem, remedy, heals=True)
        return None

    def _certificates(self) -> "list[Certificate]":
        return self._pem(CERTIFICATE, self.certificate)

    def _authorities(self) -> "list[Certificate]":
        return self._pem(AUTHORITY, self.authority)

    def _pem(self, file: str, text: bytes) -> "list[Certificate]":
        if not text.strip():
            raise CredentialsError(self._fault(file, "is empty"))
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificates(text)
        except ValueError as error:
            problem = "holds no certificate in PEM"
            raise CredentialsError(self._fault(file, problem)) from error

    def _key_fits(self, certificate: "Certificate") -> bool:
        if not self.key.strip():
            raise CredentialsError(self._fault(KEY, "is empty"))
        from cryptography.hazmat.primitives import serialization

        try:
            key = serialization.load_pem_private_key(self.key, password=None)
        except (ValueError, TypeError) as error:  # a TypeError: the key is encrypted
            problem = "holds no private key in PEM without a password"
            raise CredentialsError(self._fault(KEY, problem)) from error
        return key.public_key() == certificate.public_key()

    def _fault(
        self, file: str, problem: str, remedy: str = REPLACE, *, heals: bool = False
    ) -> Fault:
        where = f"{self.source}/{file}" if self.source else file
        return Fault(field=where, problem=problem, remedy=remedy, heals=heals)


def identity_of(certificate: "Certificate") -> Identity:
    """Return the only URI name of a certificate. Raises SpecError."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    if len(uris) != 1:
        problem = f"names {len(uris)} URIs, where one has to say whose it is"
        raise SpecError("identity", problem, REPLACE)
    return Identity.parse(uris[0])


def vouches(authority: bytes, certificate: "Certificate") -> bool:
    """Whether one of these authorities (PEM) has issued the certificate itself."""
    from cryptography import x509

    authorities = x509.load_pem_x509_certificates(authority)
    return any(_issued(certificate, each) for each in authorities)


def _files(folder: Path) -> tuple[bytes, bytes, bytes]:
    link = folder / KUBERNETES_LINK
    if not folder.is_dir():
        raise CredentialsError(Fault(field=str(folder), problem="is no folder"))
    now = link.resolve() if link.is_symlink() else folder
    for name in (CERTIFICATE, KEY, AUTHORITY):
        if now.is_dir() and not (now / name).exists():
            raise CredentialsError(Fault(field=f"{folder}/{name}", problem="is missing"))
    certificate, key, authority = (
        (now / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)
    )
    return certificate, key, authority


def _behind(
    chain: "Sequence[Certificate]", authorities: "Sequence[Certificate]"
) -> "list[Certificate]":
    """Return the authorities that issued the first of `chain`, or one that stands behind it."""
    current = chain[0]
    for _ in chain:
        found = [authority for authority in authorities if _issued(current, authority)]
        between = [certificate for certificate in chain[1:] if _issued(current, certificate)]
        if found or not between:
            return found
        current = between[0]
    return []


def _issued(certificate: "Certificate", authority: "Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _valid(certificate: "Certificate", now: float) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin.timestamp() <= now <= end.timestamp()


def _issuer(certificate: "Certificate") -> str:
    from cryptography.x509.oid import NameOID

    names = {NameOID.SERIAL_NUMBER: "serialNumber"}  # by which our authorities of a job differ
    return certificate.issuer.rfc4514_string(names) or "nobody by name"


def _words(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")
