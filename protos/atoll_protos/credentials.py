"""The certificate, key and authorities with which a process of a job proves who it is.

They lie in one folder, as a Secret of the type kubernetes.io/tls has them when it is mounted:

    tls.crt   the process's certificate, first, and any between it and an authority (PEM)
    tls.key   its private key (PEM)
    ca.crt    the authorities by which peers are believed: two while one replaces another (PEM)

A peer whose certificate is not believed is cut off in the handshake, and sees no more than a
closed connection. So each process looks at its own files before it dials: `Credentials.fault`
says in words what is wrong with them. A certificate that has expired, or is not valid yet, is
healed by the next renewal and worth waiting for; everything else stays wrong until somebody puts
other files there.

Kubernetes replaces a mounted Secret by turning one link, `..data`, to a new folder; `read` follows
it once, so that the three files are always of one set. Whoever writes such a folder by hand does
the same, or puts a whole new folder in its place.

`cryptography` is imported where a certificate is read: it is half of what a process without
credentials would import.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from atoll_protos.errors import SpecError
from atoll_protos.identity import Identity, Role

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
KUBERNETES_LINK: Final = "..data"

RENEW: Final = (
    "the operator of the syncer's cluster renews it; in another cluster apply its Secret again"
)
REPLACE: Final = (
    "put there the credentials of this run of the job; `atoll credentials JOB --region REGION` "
    "prints them"
)


class FaultKind(StrEnum):
    """What can be wrong with a process's credentials."""

    MISSING = "missing"  # a file is absent or empty
    UNREADABLE = "unreadable"  # a file is no PEM of its kind
    OTHER_KEY = "other key"  # the key is not that of the certificate
    FOREIGN = "foreign"  # no authority of ca.crt stands behind it: self-made, or of a former run
    NO_IDENTITY = "no identity"  # it does not say whose it is
    OTHER_JOB = "other job"
    OTHER_RUN = "other run"
    OTHER_REGION = "other region"
    OTHER_ROLE = "other role"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"


HEALING: Final = frozenset({FaultKind.EXPIRED, FaultKind.NOT_YET_VALID})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with which file, and what to do. Its text is one line."""

    kind: FaultKind
    field: str  # the file
    problem: str
    remedy: str = REPLACE

    @property
    def heals(self) -> bool:
        """Whether a renewal, or time, puts it right: try again later with the same folder."""
        return self.kind in HEALING

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.remedy}"


class OutOfDateError(Exception):
    """Credentials that are expired or not valid yet: the same folder may hold good ones later."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


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
    roles: Collection[Role] = ()

    def unmet(self, found: Identity) -> tuple[FaultKind, str] | None:
        """The first part in which `found` differs, in words with both values."""
        for kind, word, have, need in (
            (FaultKind.OTHER_JOB, "namespace", found.namespace, self.namespace),
            (FaultKind.OTHER_JOB, "job", found.job, self.job),
            (FaultKind.OTHER_RUN, "UID", found.uid, self.uid),
            (FaultKind.OTHER_REGION, "region", found.region, self.region),
        ):
            if need is not None and have != need:
                return kind, f"is that of {word} {have}, and {word} {need} is needed"
        if self.roles and found.role not in self.roles:
            needed = " or ".join(sorted(self.roles))
            return FaultKind.OTHER_ROLE, f"is that of role {found.role}, and {needed} is needed"
        return None


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
        """The files of `folder`, all of one set. Raises CredentialsError if one is missing."""
        folder = Path(folder)
        try:
            files = _files(folder)
        except FileNotFoundError:  # the set was replaced while it was read
            files = _files(folder)
        except OSError as error:
            raise _error(FaultKind.UNREADABLE, str(folder), f"{error.strerror}") from error
        return cls(*files, source=str(folder))

    @property
    def identity(self) -> Identity:
        """Whose these are. Raises CredentialsError."""
        try:
            return identity_of(self._certificates()[0])
        except SpecError as error:
            if isinstance(error, CredentialsError):
                raise
            fault = self._fault(FaultKind.NO_IDENTITY, CERTIFICATE, error.problem)
            raise CredentialsError(fault) from error

    @property
    def not_after(self) -> float:
        """When the certificate expires, in UNIX seconds. Raises CredentialsError."""
        return self._certificates()[0].not_valid_after_utc.timestamp()

    def fault(self, now: float, needed: Needed = ANY) -> Fault | None:
        """What is wrong with them at `now` (UNIX seconds); None if they can be used.

        Those that no time heals come first: nobody waits for the renewal of a foreign certificate.
        """
        try:
            return self._first_fault(now, needed)
        except CredentialsError as error:
            return error.fault

    def check(self, now: float, needed: Needed = ANY) -> Identity:
        """Whose these are, if they can be used at `now` (UNIX seconds).

        Raises OutOfDateError for dates, which a renewal heals, and CredentialsError for the rest.
        """
        fault = self.fault(now, needed)
        if fault is None:
            return self.identity
        raise OutOfDateError(fault) if fault.heals else CredentialsError(fault)

    def _first_fault(self, now: float, needed: Needed) -> Fault | None:
        chain, authorities = self._certificates(), self._authorities()
        if not self._key_fits(chain[0]):
            return self._fault(
                FaultKind.OTHER_KEY, KEY, f"is not the key of the certificate in {CERTIFICATE}"
            )
        behind = _behind(chain, authorities)
        if not behind:
            problem = f"was not issued by an authority of {AUTHORITY}, but by {_issuer(chain[0])}"
            return self._fault(FaultKind.FOREIGN, CERTIFICATE, problem)
        unmet = needed.unmet(self.identity)
        if unmet is not None:
            return self._fault(unmet[0], CERTIFICATE, unmet[1])
        outdated = self._out_of_date(chain[0], CERTIFICATE, now)
        if outdated is not None or any(_valid(each, now) for each in behind):
            return outdated
        return self._out_of_date(behind[0], AUTHORITY, now)

    def _out_of_date(self, certificate: "Certificate", file: str, now: float) -> Fault | None:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > end.timestamp():
            problem = f"expired at {_words(end)}"
            return self._fault(FaultKind.EXPIRED, file, problem, RENEW)
        if now < begin.timestamp():
            problem = f"is valid from {_words(begin)}, which has not come by this machine's clock"
            remedy = "set the clocks of the machines to one time, or wait until then"
            return self._fault(FaultKind.NOT_YET_VALID, file, problem, remedy)
        return None

    def _certificates(self) -> "list[Certificate]":
        return self._pem(CERTIFICATE, self.certificate)

    def _authorities(self) -> "list[Certificate]":
        return self._pem(AUTHORITY, self.authority)

    def _pem(self, file: str, text: bytes) -> "list[Certificate]":
        """The certificates of a file, one or more. Raises CredentialsError."""
        if not text.strip():
            raise CredentialsError(self._fault(FaultKind.MISSING, file, "is empty"))
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificates(text)
        except ValueError as error:
            problem = "holds no certificate in PEM"
            raise CredentialsError(self._fault(FaultKind.UNREADABLE, file, problem)) from error

    def _key_fits(self, certificate: "Certificate") -> bool:
        if not self.key.strip():
            raise CredentialsError(self._fault(FaultKind.MISSING, KEY, "is empty"))
        from cryptography.hazmat.primitives import serialization

        try:
            key = serialization.load_pem_private_key(self.key, password=None)
        except (ValueError, TypeError) as error:  # a TypeError: the key is encrypted
            problem = "holds no private key in PEM without a password"
            raise CredentialsError(self._fault(FaultKind.UNREADABLE, KEY, problem)) from error
        return key.public_key() == certificate.public_key()

    def _fault(self, kind: FaultKind, file: str, problem: str, remedy: str = REPLACE) -> Fault:
        where = f"{self.source}/{file}" if self.source else file
        return Fault(kind=kind, field=where, problem=problem, remedy=remedy)


def identity_of(certificate: "Certificate") -> Identity:
    """The identity that a certificate holds as its only URI name. Raises SpecError."""
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
        raise _error(FaultKind.MISSING, str(folder), "is no folder")
    now = link.resolve() if link.is_symlink() else folder
    for name in (CERTIFICATE, KEY, AUTHORITY):
        if now.is_dir() and not (now / name).exists():
            raise _error(FaultKind.MISSING, f"{folder}/{name}", "is missing")
    certificate, key, authority = (
        (now / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)
    )
    return certificate, key, authority


def _error(kind: FaultKind, where: str, problem: str) -> CredentialsError:
    return CredentialsError(Fault(kind=kind, field=where, problem=problem))


def _behind(
    chain: "Sequence[Certificate]", authorities: "Sequence[Certificate]"
) -> "list[Certificate]":
    """The authorities that have issued the first of `chain`, or one that stands behind it."""
    current = chain[0]
    for _ in chain:
        found = [each for each in authorities if _issued(current, each)]
        between = [each for each in chain[1:] if _issued(current, each)]
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
