"""Credentials: everything that can be wrong with them is said in one line, before any dialling."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atoll_protos.network.credentials import (
    Credentials,
    CredentialsError,
    Identity,
    JobIdentity,
    Needed,
    OutOfDateError,
    Role,
)
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


def at(namespace: str = "team", job: str = "bytes", uid: str = "0b-1") -> Identity:
    return identity(owner=JobIdentity(namespace=namespace, job=job, uid=uid))


def of(who: Identity) -> Credentials:
    return leaf(ISSUERS, who)


OLD = x509.load_pem_x509_certificate(GOOD.certificate)
BEGIN, END = OLD.not_valid_before_utc, OLD.not_valid_after_utc
OWN_KEY = ec.generate_private_key(ec.SECP256R1())
PKCS8, NO_PASSWORD = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
SELF_KEY = OWN_KEY.private_bytes(serialization.Encoding.PEM, PKCS8, NO_PASSWORD)


def self_made(names: Sequence[x509.GeneralName], until: datetime = END) -> bytes:
    """A certificate that another tool might make, its own authority."""
    one = x509.CertificateBuilder(
        issuer_name=x509.Name([]),
        subject_name=x509.Name([]),
        public_key=OWN_KEY.public_key(),
        serial_number=1,
        not_valid_before=BEGIN,
        not_valid_after=until,
    )
    if names:
        one = one.add_extension(x509.SubjectAlternativeName(names), critical=True)
    one = one.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return one.sign(OWN_KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_good_credentials_say_whose_they_are(tmp_path: Path) -> None:
    found = Credentials.read(put(tmp_path, GOOD))
    assert found == GOOD
    assert found.fault(NOW, NEEDED) is None
    assert found.check(NOW, NEEDED) == found.identity == identity()
    assert found.not_after == NOW + 30 * DAY
    assert found.fault(NOW, Needed(region="us-east")) is None  # the rest is left open
    assert found.fault(NOW, Needed(roles=(Role.OPERATOR, Role.LEARNER))) is None
    assert found.identity.owner == OWNER
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize(
    ("credentials", "words"),
    [
        (replace(GOOD, certificate=b""), "tls.crt: is empty; put there"),
        (replace(GOOD, key=b"\n"), "tls.key: is empty; put there"),
        (replace(GOOD, authority=b""), "ca.crt: is empty; put there"),
        (replace(GOOD, certificate=b"x"), "tls.crt: holds no certificate"),
        (replace(GOOD, key=GOOD.certificate), "tls.key: holds no private"),
        (replace(GOOD, authority=GOOD.key), "ca.crt: holds no certificate"),
        (
            replace(GOOD, key=OTHERS.key),
            "tls.key: is not the key of the certificate in tls.crt; put there",
        ),
        (
            replace(GOOD, authority=OTHERS.authority),
            "tls.crt: was not issued by an authority of ca.crt, but by serialNumber=",
        ),
        *(
            (of(who), f"tls.crt: is that of {words} is needed; put there")
            for who, words in (
                (at("x"), "namespace x, and namespace team"),
                (at(job="words"), "job words, and job bytes"),
                (at(uid="former"), "UID former, and UID 0b-1"),
                (identity(region="eu"), "region eu, and region us-east"),
                (identity(Role.OPERATOR), "role operator, and learner"),
            )
        ),
        (
            leaf(ISSUERS, identity(region="eu"), now=NOW - 31 * DAY),
            "tls.crt: is that of region eu",  # what no time heals is said first
        ),
        (
            leaf(ISSUERS, now=NOW - 31 * DAY),
            "tls.crt: expired at 2026-09-20 14:13:20 UTC; "
            "the operator of the syncer's cluster renews it",
        ),
        (
            leaf(ISSUERS, now=NOW + HOUR + 60),
            "tls.crt: is valid from 2026-09-21 14:14:20 UTC, which has not come by this "
            "machine's clock; set the clocks",
        ),
    ],
)
def test_each_fault_is_one_line_with_file_and_remedy(credentials: Credentials, words: str) -> None:
    fault = credentials.fault(NOW, NEEDED)
    assert fault is not None
    assert str(fault).startswith(words)
    assert "\n" not in str(fault)
    assert fault.heals == words.startswith(("tls.crt: expired", "tls.crt: is valid from"))
    assert fault.heals or "`atoll credentials" in str(fault)
    with pytest.raises(OutOfDateError if fault.heals else CredentialsError) as raised:
        credentials.check(NOW, NEEDED)
    assert str(raised.value) == str(fault)


def test_an_authority_that_has_expired_is_told_apart_from_its_leaf() -> None:
    """Another tool may issue leaves that outlive their authority; ours never does."""
    soon = BEGIN.replace(hour=BEGIN.hour + 1)
    mine: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity().uri)]
    old = Credentials(self_made(mine), SELF_KEY, self_made(mine, soon))
    assert old.fault(soon.timestamp(), NEEDED) is None
    fault = old.fault(soon.timestamp() + 1, NEEDED)
    assert fault is not None
    assert fault.heals
    assert fault.field == "ca.crt"


@pytest.mark.parametrize("uris", [[], [identity().uri, identity(region="x").uri], ["urn:x"]])
def test_a_certificate_without_one_identity_is_nobodys(uris: list[str]) -> None:
    made = self_made([x509.UniformResourceIdentifier(uri) for uri in uris])
    fault = Credentials(made, SELF_KEY, made).fault(NOW)
    assert fault is not None
    assert fault.field == "tls.crt"
    assert not fault.heals


def test_faults_of_files_name_their_path(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=f"^{tmp_path}/none: is no folder; put there"):
        Credentials.read(tmp_path / "none")
    found = Credentials.read(put(tmp_path, replace(GOOD, key=OTHERS.key)))
    with pytest.raises(CredentialsError, match=f"^{tmp_path}/tls.key: is not the key"):
        found.check(NOW)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (put(tmp_path, GOOD) / name).unlink()
        with pytest.raises(CredentialsError, match=f"^{tmp_path}/{name}: is missing; put there"):
            Credentials.read(tmp_path)


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
    assert "was not issued by an authority" in short.problem
