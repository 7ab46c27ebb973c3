"""The authority of a job and the certificates that it issues: pure functions of bytes and `now`.

The operator where the syncer lives makes one authority per job, and with it a leaf for each role
and region (`atoll_protos.network.credentials`). A leaf lives LEAF_DAYS and is due for renewal at
two thirds of its life, so that a third is left for it to reach every pod and every other cluster.

An authority lives AUTHORITY_DAYS. Its successor must be believed everywhere before it signs
anything, and the former one until its last leaf is gone (docs/security.md, Renewal):

    signer      issues the leaves
    successor   at two thirds of the signer's life: part of `bundle`, the ca.crt of every leaf, and
                signs nothing yet. It becomes the signer at five sixths.
    former      believed until they expire

`renewal` renews every leaf whose signer or bundle is no longer the present one. A leaf never
outlives its authority. Keys are ECDSA on P-256. Certificates begin an hour back, for clocks that
differ. Times are UNIX seconds, lives are seconds.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import (
    Credentials,
    Identity,
    JobIdentity,
    Role,
    identity_of,
)

DAY_SECONDS: Final = 86_400
LEAF_DAYS: Final = 30
AUTHORITY_DAYS: Final = 360
BACKDATED_SECONDS: Final = 3_600  # a clock that lags by less than an hour does no harm
NAME_LETTERS_MAX: Final = 64  # of a common name (RFC 5280)
USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
    "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that issues others, and its key; both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Those of one job. `former`: certificates alone, PEM, one after the other."""

    signer: Authority
    successor: Authority | None = None
    former: bytes = b""

    @property
    def bundle(self) -> bytes:
        """All that is believed: the ca.crt that goes with every leaf, the signer first."""
        successor = self.successor.certificate if self.successor else b""
        return self.signer.certificate + successor + self.former

    def to_files(self) -> dict[str, bytes]:
        files = {"tls.crt": self.signer.certificate, "tls.key": self.signer.key}
        if self.successor:
            files |= {"next.crt": self.successor.certificate, "next.key": self.successor.key}
        if self.former:
            files["former.crt"] = self.former
        return files

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], kept: str = "the Secret") -> Self:
        """Raise SpecError for a missing or damaged entry; `kept` is what holds them, in words."""
        remedy = f"delete {kept}: a new authority is made, and all leaves again"
        for name in ("tls.crt", "tls.key", *(["next.key"] if "next.crt" in files else [])):
            if not files.get(name):
                raise SpecError(name, "is missing in the job's authority", remedy)
        successor = None
        if "next.crt" in files:
            successor = Authority(files["next.crt"], files["next.key"])
        found = cls(
            signer=Authority(files["tls.crt"], files["tls.key"]),
            successor=successor,
            former=files.get("former.crt", b""),
        )
        _check(found, remedy)
        return found

    @classmethod
    def from_issuer(cls, files: Mapping[str, bytes], former: bytes, now: float) -> Self:
        """Read what others have put into a Secret; `former` (PEM) has been believed until `now`.

        Another one is believed at once, and the former ones until they expire. Raises SpecError.
        """
        remedy = "let its issuer write it again: a Certificate of cert-manager has isCA: true"
        for name in ("tls.crt", "tls.key"):
            if not files.get(name):
                raise SpecError(name, "is missing", remedy)
        _check(cls(signer=Authority(files["tls.crt"], files["tls.key"])), remedy)
        certificate = x509.load_pem_x509_certificate(files["tls.crt"])  # the first of its chain
        if fault := _unfit(certificate, now):
            raise SpecError("tls.crt", fault, remedy)
        signer = Authority(_pem(certificate), files["tls.key"])
        try:
            others = x509.load_pem_x509_certificates(former) if former else []
        except ValueError:  # somebody has changed what was believed
            others = []
        kept = b"".join(_pem(other) for other in others if other != certificate)
        return cls(signer=signer, former=_unexpired(kept, now))


def make_authorities(
    owner: JobIdentity, now: float, life: float = AUTHORITY_DAYS * DAY_SECONDS
) -> Authorities:
    return Authorities(signer=make_authority(owner, now, life))


def make_authority(
    owner: JobIdentity, now: float, life: float = AUTHORITY_DAYS * DAY_SECONDS
) -> Authority:
    """Make an authority of a job. Its name has a number of its own: two may be believed at once."""
    key = ec.generate_private_key(ec.SECP256R1())
    number = x509.random_serial_number()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Atoll"),
            x509.NameAttribute(NameOID.COMMON_NAME, _common_name(f"authority of {owner.job}")),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{number:x}"),
        ]
    )
    builder = _builder(subject, subject, key.public_key(), now, _time(now + life), number)
    own = _extended(builder, "key_cert_sign", "crl_sign", ca=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return _self_signed(own.add_extension(identifier, critical=False), key)


def issue(
    authorities: Authorities, identity: Identity, now: float, life: float = LEAF_DAYS * DAY_SECONDS
) -> Credentials:
    """Return a new key and certificate for an identity; it ends no later than its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _leaf(authorities, identity, key.public_key(), now, life)
    return Credentials(certificate, _pem_key(key), authorities.bundle)


def make_anchor(name: str, now: float, life: float) -> Authority:
    """Make a certificate that vouches for itself alone, of a server known by its digest."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _common_name(name))])
    builder = _builder(subject, subject, key.public_key(), now, _time(now + life))
    own = _extended(builder, "digital_signature", "key_cert_sign", ca=True)
    own = own.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    alternative = x509.SubjectAlternativeName([x509.DNSName(name)])
    return _self_signed(own.add_extension(alternative, critical=False), key)


def make_key() -> bytes:
    """Return a new key (PEM), which stays with who made it."""
    return _pem_key(ec.generate_private_key(ec.SECP256R1()))


def request_for(key: bytes) -> bytes:
    """Return the request (PKCS #10, PEM) that `sign` takes, for a key (PEM). Raises SpecError."""
    try:
        found = serialization.load_pem_private_key(key, password=None)
        assert isinstance(found, ec.EllipticCurvePrivateKey), "of make_key"
    except (ValueError, TypeError, AssertionError) as error:
        raise SpecError("key", f"cannot be read ({error})", "put a copy of it back") from error
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return _pem(builder.sign(found, hashes.SHA256()))


def request_digest(request: bytes) -> str:
    """Hash a request's public key, which names its maker. Raises SpecError as `sign`."""
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    data = _proven_key(request).public_bytes(serialization.Encoding.DER, spki)
    return hashlib.sha256(data).hexdigest()


def sign(
    authorities: Authorities,
    identity: Identity,
    request: bytes,
    now: float,
    life: float = LEAF_DAYS * DAY_SECONDS,
) -> bytes:
    """As `issue`, for the key of a request (PKCS #10, PEM); returns the certificate (PEM).

    Only the key is taken from the request, and whoever made it must hold its private half. Raises
    SpecError.
    """
    return _leaf(authorities, identity, _proven_key(request), now, life)


def _proven_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """Raise SpecError unless it is a key of our kind, with which the request is signed."""
    try:
        asked = x509.load_pem_x509_csr(request)
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != ec.SECP256R1.name:
            raise ValueError("its key is not one of ECDSA on P-256")
        if not asked.is_signature_valid:
            raise ValueError("it is not signed with the private half of its key")
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        remedy = "make a key of ECDSA on P-256 and sign a request (PKCS #10, PEM) with it"
        raise SpecError("request", f"cannot be signed: {error}", remedy) from error
    return key


def _leaf(
    authorities: Authorities,
    identity: Identity,
    key: ec.EllipticCurvePublicKey,
    now: float,
    life: float,
) -> bytes:
    authority = x509.load_pem_x509_certificate(authorities.signer.certificate)
    signer = serialization.load_pem_private_key(authorities.signer.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "checked by from_files"
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role is Role.SHARD:  # no other certificate is one to serve with
        names.append(x509.DNSName(identity.server_name))
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    common_name = _common_name(f"{identity.role} {identity.region} {identity.job}")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    end = min(_time(now + life), authority.not_valid_after_utc)
    builder = _builder(subject, authority.subject, key, now, end)
    return _pem(
        _extended(builder, "digital_signature")
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_identifier_of(authority), critical=False)
        .sign(signer, hashes.SHA256())
    )


def turned(
    authorities: Authorities,
    owner: JobIdentity,
    now: float,
    life: float = AUTHORITY_DAYS * DAY_SECONDS,
) -> tuple[Authorities, str]:
    """Return the authorities as they should be at `now`, and what has changed, empty for nothing.

    It is one step at most: the caller writes it down before it issues anything.
    """
    signer = x509.load_pem_x509_certificate(authorities.signer.certificate)
    if _past(signer, now, 1):
        return make_authorities(owner, now, life), "the authority had expired: a new one is made"
    if authorities.successor is None and _past(signer, now, 2 / 3):
        successor = make_authority(owner, now, life)
        return replace(authorities, successor=successor), "a new authority is believed besides"
    if authorities.successor is not None and _past(signer, now, 5 / 6):
        former = authorities.signer.certificate + authorities.former
        changed = Authorities(signer=authorities.successor, former=former)
        return changed, "the new authority signs; the former one is believed until it expires"
    kept = _unexpired(authorities.former, now)
    if kept != authorities.former:
        return replace(authorities, former=kept), "an authority that has expired is forgotten"
    return authorities, ""


def renewal(authorities: Authorities, leaf: Credentials, identity: Identity, now: float) -> str:
    """Why `leaf`, as it is stored, is to be issued again for `identity`; empty: it is not."""
    fault = leaf.fault(now)
    if fault is not None:
        return f"{fault.field} {fault.problem}"
    if why := outdated(authorities, leaf.certificate, identity, now):
        return why
    return "" if leaf.authority == authorities.bundle else "other authorities are believed now"


def outdated(authorities: Authorities, leaf: bytes, identity: Identity, now: float) -> str:
    """Return the same of a certificate (PEM) alone."""
    certificate = x509.load_pem_x509_certificate(leaf)
    signer = x509.load_pem_x509_certificate(authorities.signer.certificate)
    if identity_of(certificate) != identity:
        return f"it is that of {identity_of(certificate)}"
    if certificate.issuer != signer.subject:
        return "another authority signs now"
    return "two thirds of its life are over" if now >= due_at(leaf) else ""


def due_at(certificate: bytes) -> float:
    """When two thirds of the life of a certificate (PEM) of ours are over, in UNIX seconds."""
    return _moment(x509.load_pem_x509_certificate(certificate), 2 / 3)


def expires_soon(authorities: Authorities, now: float) -> bool:
    """Whether five sixths of the signer's life are over, by when another one should be there."""
    return _past(x509.load_pem_x509_certificate(authorities.signer.certificate), now, 5 / 6)


def _unfit(certificate: x509.Certificate, now: float) -> str:
    """Why it may not sign leaves at `now`; empty: it may."""
    try:
        extensions = certificate.extensions
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "may not sign certificates (basicConstraints has not CA:TRUE)"
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except (x509.ExtensionNotFound, ValueError) as error:
        return f"may not sign certificates: {error}"
    end = certificate.not_valid_after_utc
    return f"expired at {end:%Y-%m-%d %H:%M} UTC" if now >= end.timestamp() else ""


def _past(certificate: x509.Certificate, now: float, share: float) -> bool:
    return now >= _moment(certificate, share)


def _moment(certificate: x509.Certificate, share: float) -> float:
    """When this share of the life is over, which began when it was issued."""
    issued = certificate.not_valid_before_utc.timestamp() + BACKDATED_SECONDS
    return issued + (certificate.not_valid_after_utc.timestamp() - issued) * share


def _unexpired(bundle: bytes, now: float) -> bytes:
    certificates = x509.load_pem_x509_certificates(bundle) if bundle else []
    return b"".join(
        _pem(certificate) for certificate in certificates if not _past(certificate, now, 1)
    )


def _check(authorities: Authorities, remedy: str) -> None:
    """Raise SpecError for an authority that cannot be read, or whose key is another's."""
    both = {"tls": authorities.signer}
    if authorities.successor:
        both["next"] = authorities.successor
    for name, each in both.items():
        try:
            certificate = x509.load_pem_x509_certificate(each.certificate)
            key = serialization.load_pem_private_key(each.key, password=None)
            fits = key.public_key() == certificate.public_key()
            if not fits or not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("the key is not that of the certificate")
            x509.load_pem_x509_certificates(authorities.former or each.certificate)
        except (ValueError, TypeError) as error:
            problem = f"the authority cannot be used: {error}"
            raise SpecError(f"{name}.crt", problem, remedy) from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: float,
    end: datetime,
    number: int | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(_time(now - BACKDATED_SECONDS))
        .not_valid_after(end)
        .serial_number(number or x509.random_serial_number())
    )


def _extended(
    builder: x509.CertificateBuilder, *usages: str, ca: bool = False
) -> x509.CertificateBuilder:
    """Add what the certificate may be used for; what `ca` issues may issue nothing."""
    constraints = x509.BasicConstraints(ca=ca, path_length=0 if ca else None)
    usage = x509.KeyUsage(**{name: name in usages for name in USAGES})
    return builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)


def _self_signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> Authority:
    return Authority(_pem(builder.sign(key, hashes.SHA256())), _pem_key(key))


def _identifier_of(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    found = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(found.value)


def _common_name(text: str) -> str:
    return text[:NAME_LETTERS_MAX]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def _pem(certificate: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
