"""Credentials: everything that can be wrong with them is said in one line, before any dialling."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atoll_protos.credentials import (
    HEALING,
    Credentials,
    CredentialsError,
    FaultKind,
    Needed,
    OutOfDateError,
)
from atoll_protos.identity import Identity, Owner, Role
from unit.certificate_values import DAY, HOUR, NOW, OWNER, authorities, identity, leaf

ISSUERS = authorities()
GOOD = leaf(ISSUERS)
OTHERS = leaf(authorities())  # an authority of its own: self-made, or a former run's
NEEDED = Needed(namespace="team", job="bytes", uid="0b-1", region="us-east", roles=(Role.LEARNER,))


def put(folder: Path, credentials: Credentials) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in (
        ("tls.crt", credentials.certificate),
        ("tls.key", credentials.key),
        ("ca.crt", credentials.authority),
    ):
        (folder / name).write_bytes(content)
    return folder


def of(who: Identity) -> Credentials:
    return leaf(ISSUERS, who)


def test_good_credentials_say_whose_they_are(tmp_path: Path) -> None:
    found = Credentials.read(put(tmp_path, GOOD))
    assert found == GOOD
    assert found.fault(NOW, NEEDED) is None
    assert found.check(NOW, NEEDED) == found.identity == identity()
    assert found.not_after == NOW + 30 * DAY


@pytest.mark.parametrize(
    ("credentials", "kind", "words"),
    [
        (replace(GOOD, certificate=b""), FaultKind.MISSING, "tls.crt: is empty; put there"),
        (replace(GOOD, key=b"\n"), FaultKind.MISSING, "tls.key: is empty; put there"),
        (replace(GOOD, authority=b""), FaultKind.MISSING, "ca.crt: is empty; put there"),
        (replace(GOOD, certificate=b"x"), FaultKind.UNREADABLE, "tls.crt: holds no certificate"),
        (replace(GOOD, key=GOOD.certificate), FaultKind.UNREADABLE, "tls.key: holds no private"),
        (replace(GOOD, authority=GOOD.key), FaultKind.UNREADABLE, "ca.crt: holds no certificate"),
        (
            replace(GOOD, key=OTHERS.key),
            FaultKind.OTHER_KEY,
            "tls.key: is not the key of the certificate in tls.crt; put there",
        ),
        (
            replace(GOOD, authority=OTHERS.authority),
            FaultKind.FOREIGN,
            "tls.crt: was not issued by an authority of ca.crt, but by serialNumber=",
        ),
        (
            of(identity(owner=Owner(namespace="x", job="bytes", uid="0b-1"))),
            FaultKind.OTHER_JOB,
            "tls.crt: is that of namespace x, and namespace team is needed; put there",
        ),
        (
            of(identity(owner=Owner(namespace="team", job="words", uid="0b-1"))),
            FaultKind.OTHER_JOB,
            "tls.crt: is that of job words, and job bytes is needed; put there",
        ),
        (
            of(identity(owner=Owner(namespace="team", job="bytes", uid="former"))),
            FaultKind.OTHER_RUN,
            "tls.crt: is that of UID former, and UID 0b-1 is needed; put there",
        ),
        (
            of(identity(region="eu-west")),
            FaultKind.OTHER_REGION,
            "tls.crt: is that of region eu-west, and region us-east is needed; put there",
        ),
        (
            of(identity(Role.OPERATOR)),
            FaultKind.OTHER_ROLE,
            "tls.crt: is that of role operator, and learner is needed; put there",
        ),
        (
            leaf(ISSUERS, now=NOW - 31 * DAY),
            FaultKind.EXPIRED,
            "tls.crt: expired at 2026-09-20 14:13:20 UTC; "
            "the operator of the syncer's cluster renews it",
        ),
        (
            leaf(ISSUERS, now=NOW + HOUR + 60),
            FaultKind.NOT_YET_VALID,
            "tls.crt: is valid from 2026-09-21 14:14:20 UTC, which has not come by this "
            "machine's clock; set the clocks",
        ),
    ],
)
def test_each_fault_is_one_line_with_file_and_remedy(
    credentials: Credentials, kind: FaultKind, words: str
) -> None:
    fault = credentials.fault(NOW, NEEDED)
    assert fault is not None
    assert fault.kind is kind
    assert str(fault).startswith(words)
    assert "\n" not in str(fault)
    assert "`atoll credentials" in str(fault) or fault.heals
    with pytest.raises(OutOfDateError if kind in HEALING else CredentialsError) as raised:
        credentials.check(NOW, NEEDED)
    assert str(raised.value) == str(fault)


def test_what_no_time_heals_is_said_before_what_a_renewal_heals() -> None:
    wrong_and_old = leaf(ISSUERS, identity(region="eu-west"), now=NOW - 31 * DAY)
    fault = wrong_and_old.fault(NOW, NEEDED)
    assert fault is not None
    assert fault.kind is FaultKind.OTHER_REGION


def test_an_authority_that_has_expired_is_told_apart_from_its_leaf() -> None:
    """Another tool may issue leaves that outlive their authority; ours never does."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    builder = x509.CertificateBuilder().issuer_name(name).public_key(key.public_key())
    begin = x509.load_pem_x509_certificate(GOOD.certificate).not_valid_before_utc
    end = x509.load_pem_x509_certificate(GOOD.certificate).not_valid_after_utc
    soon = begin.replace(hour=begin.hour + 1)

    def made(names: list[x509.GeneralName], until: object) -> bytes:
        one = builder.subject_name(name).serial_number(x509.random_serial_number())
        one = one.not_valid_before(begin).not_valid_after(until)  # type: ignore[arg-type]
        one = one.add_extension(x509.SubjectAlternativeName(names), critical=True)
        one = one.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return one.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    mine = [x509.UniformResourceIdentifier(identity().uri)]
    old = Credentials(made([*mine], end), pem, made([*mine], soon))
    assert old.fault(soon.timestamp(), NEEDED) is None
    fault = old.fault(soon.timestamp() + 1, NEEDED)
    assert fault is not None
    assert fault.heals
    assert fault.field == "ca.crt"


@pytest.mark.parametrize("uris", [[], [identity().uri, identity(region="x").uri], ["urn:x"]])
def test_a_certificate_without_one_identity_is_nobodys(uris: list[str]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    old = x509.load_pem_x509_certificate(GOOD.certificate)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([]),
        subject_name=x509.Name([]),
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=old.not_valid_before_utc,
        not_valid_after=old.not_valid_after_utc,
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(u) for u in uris])
        builder = builder.add_extension(names, critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    fault = Credentials(certificate, pem, certificate).fault(NOW)
    assert fault is not None
    assert fault.kind is FaultKind.NO_IDENTITY
    assert not fault.heals


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_missing_file_is_named_with_its_path(tmp_path: Path, name: str) -> None:
    (put(tmp_path, GOOD) / name).unlink()
    with pytest.raises(CredentialsError, match=f"^{tmp_path}/{name}: is missing; put there"):
        Credentials.read(tmp_path)


def test_a_missing_folder_is_named_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=f"^{tmp_path}/none: is no folder; put there"):
        Credentials.read(tmp_path / "none")


def test_a_fault_of_files_names_their_folder(tmp_path: Path) -> None:
    found = Credentials.read(put(tmp_path, replace(GOOD, key=OTHERS.key)))
    with pytest.raises(CredentialsError, match=f"^{tmp_path}/tls.key: is not the key"):
        found.check(NOW)


def test_files_of_two_sets_are_never_mixed_while_kubernetes_replaces_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted Secret is replaced by one link; the old set is removed a moment later."""
    old, new = put(tmp_path / "..1", GOOD), put(tmp_path / "..2", leaf(ISSUERS))
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    true_read, reads = Path.read_bytes, []

    def replaced_in_between(path: Path) -> bytes:
        reads.append(path.name)
        if len(reads) == 2:  # the certificate of the old set has been read
            (tmp_path / "..data.new").symlink_to("..2")
            os.replace(tmp_path / "..data.new", tmp_path / "..data")
            for name in ("tls.crt", "tls.key", "ca.crt"):
                (old / name).unlink()
            old.rmdir()
        return true_read(path)

    monkeypatch.setattr(Path, "read_bytes", replaced_in_between)
    assert Credentials.read(tmp_path) == Credentials.read(new)


def test_keys_are_not_printed() -> None:
    assert "PRIVATE" not in repr(GOOD)


def test_an_intermediate_between_leaf_and_authority_is_followed() -> None:
    """cert-manager puts those into tls.crt, after the leaf."""
    root, middle = authorities(), authorities()
    below = leaf(middle)
    top = x509.load_pem_x509_certificate(root.signer.certificate)
    key = serialization.load_pem_private_key(root.signer.key, password=None)
    own = x509.load_pem_x509_certificate(middle.signer.certificate)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    crossed = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(top.subject)
        .public_key(own.public_key())
        .serial_number(7)
        .not_valid_before(own.not_valid_before_utc)
        .not_valid_after(own.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    whole = Credentials(below.certificate + crossed, below.key, root.bundle)
    assert whole.fault(NOW, NEEDED) is None
    short = Credentials(below.certificate, below.key, root.bundle).fault(NOW, NEEDED)
    assert short is not None
    assert short.kind is FaultKind.FOREIGN


def test_what_is_left_open_is_not_compared() -> None:
    assert GOOD.fault(NOW, Needed(region="us-east")) is None
    assert GOOD.fault(NOW, Needed(roles=(Role.OPERATOR, Role.LEARNER))) is None
    assert GOOD.identity.owner == OWNER
